"""The command: exit codes, files, and sources that cannot be audited."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tensorpack._audit import files
from tensorpack._cli import main

FORGETS = """
from dataclasses import dataclass
from torch import Tensor

@dataclass
class Batch:
    ids: Tensor
    mask: Tensor

    def record_stream(self, stream):
        self.ids.record_stream(stream)
"""
COMPLETE = FORGETS + "        self.mask.record_stream(stream)\n"


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with one module that forgets a field, and go there."""
    (tmp_path / "pkg").mkdir()
    (tmp_path / "pkg" / "batch.py").write_text(FORGETS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def python(*args: str) -> str:
    """Return what an interpreter of its own prints."""
    return subprocess.run(
        [sys.executable, *args], capture_output=True, text=True, check=False
    ).stdout


def test_report_says_where_what_why_and_how_sure(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A report names file, line, rule, confidence, class, method and field."""
    assert 1 == main(["audit", "pkg"])
    assert (
        "pkg/batch.py:10: TP101 [high] `Batch.record_stream`: `mask`\n"
        "    `mask`, annotated `Tensor`, is never mentioned by `record_stream`: its "
        "memory may be handed out again while the stream still reads it.\n"
        "\n"
        "`@payload` would delete 1 methods, 2 lines, of 1 classes (--adoption lists "
        "them)\n"
        "1 files, 1 classes; 1 reports (1 high)\n"
    ) == capsys.readouterr().out


def test_nothing_found_gives_0(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A complete class gives no report and exit code 0."""
    (project / "pkg" / "batch.py").write_text(COMPLETE)

    assert 0 == main(["audit", "pkg"])
    assert capsys.readouterr().out.endswith("1 files, 1 classes; 0 reports\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nowhere"], "audit: nowhere: there is no such file or folder"),
        ([], "audit: name a file or a folder"),
        (["pkg", "--select", "XY"], "audit: no rule `XY`: there are TP101 to TP121"),
        (["--explain", "TP999"], "audit: no rule `TP999`: there are TP101 to TP121"),
        (["pkg", "--baseline", "pkg/batch.py"], "is not a baseline of `audit`"),
        (
            ["pkg", "--update-baseline"],
            "audit: --update-baseline needs --baseline FILE",
        ),
        (["empty"], "audit: no Python file could be audited"),
        (["pkg", "--json", "nowhere/x.json"], "No such file or directory"),
    ],
)
def test_what_cannot_run_gives_2(
    project: Path, capsys: pytest.CaptureFixture[str], args: list[str], message: str
) -> None:
    """Arguments that make no audit end with exit code 2 and one line."""
    (project / "empty").mkdir()

    assert 2 == main(["audit", *args])
    assert message in capsys.readouterr().err


def test_json_has_every_report_and_every_skipped_file(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--json` writes what is printed, and why files were left out."""
    (project / "pkg" / "old.py").write_text("print 'two'\n")

    main(["audit", "pkg", "--json", "out.json"])

    found = json.loads((project / "out.json").read_text())
    (report,) = found["reports"]
    assert ("TP101", "Batch", "record_stream", ["mask"], "high", 10) == tuple(
        report[key] for key in ("rule", "cls", "method", "fields", "confidence", "line")
    )
    assert ["pkg/old.py"] == [each["path"] for each in found["skipped"]]


def test_sarif_points_at_the_line_and_names_the_rule(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--sarif` writes version 2.1.0 with rules, levels, places and fingerprints."""
    main(["audit", "pkg", "--sarif", "out.sarif"])

    log = json.loads((project / "out.sarif").read_text())
    (run,) = log["runs"]
    (result,) = run["results"]
    place = result["locations"][0]["physicalLocation"]
    assert "2.1.0" == log["version"]
    assert ("TP101", "error") == (result["ruleId"], result["level"])
    assert "pkg/batch.py" == place["artifactLocation"]["uri"]
    assert 10 == place["region"]["startLine"]
    assert "TP101" in [rule["id"] for rule in run["tool"]["driver"]["rules"]]
    assert result["partialFingerprints"]


def test_baseline_hides_what_is_known_wherever_it_moves(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A known report stays known when lines are added above it; a new one is told."""
    path = project / "pkg" / "batch.py"
    assert 0 == main(["audit", "pkg", "--baseline", "known.json", "--update-baseline"])
    path.write_text("# a line more\n\n" + FORGETS)
    assert 0 == main(["audit", "pkg", "--baseline", "known.json"])

    path.write_text(FORGETS.replace("mask: Tensor", "mask: Tensor\n    new: Tensor"))
    capsys.readouterr()

    assert 1 == main(["audit", "pkg", "--baseline", "known.json"])
    out = capsys.readouterr().out
    assert "`new`" in out
    assert "`mask`, annotated" not in out


def test_select_and_ignore_choose_rules(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A rule that is not chosen is not told and does not count."""
    assert 1 == main(["audit", "pkg", "--select", "TP101"])
    assert 0 == main(["audit", "pkg", "--ignore", "TP10"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("mask: Tensor", "mask: Tensor  # tensorpack: keep[mask] freed with ids"),
        (
            "        self.ids.r",
            "        # tensorpack: keep[mask] why\n        self.ids.r",
        ),
        ("@dataclass\n", "@dataclass\n# tensorpack: keep[*] old code\n"),
    ],
    ids=["field", "method", "class"],
)
def test_comment_silences_a_report(
    project: Path, capsys: pytest.CaptureFixture[str], old: str, new: str
) -> None:
    """A `keep` comment at the field, in the method or at the class silences it."""
    path = project / "pkg" / "batch.py"
    path.write_text(path.read_text().replace(old, new))

    assert 0 == main(["audit", "pkg"])
    assert capsys.readouterr().out.endswith("1 silenced\n")


def test_comment_for_another_field_silences_nothing(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A `keep` comment holds for the fields that it names."""
    path = project / "pkg" / "batch.py"
    text = path.read_text().replace(
        "mask: Tensor", "mask: Tensor  # tensorpack: keep[x]"
    )
    path.write_text(text)

    assert 1 == main(["audit", "pkg"])


def test_adoption_lists_methods_and_markers(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--adoption` names what would be deleted and what an annotation would need."""
    path = project / "pkg" / "batch.py"
    text = path.read_text().replace("mask: Tensor", "mask: Tensor\n    meta: dict")
    path.write_text(text)

    main(["audit", "pkg", "--adoption"])

    out = capsys.readouterr().out
    assert "pkg/batch.py:6: Batch: record_stream (2)\n" in out
    assert "      meta: needs types of its items, Dynamic or HostOnly\n" in out


def test_explain_shows_a_rule(capsys: pytest.CaptureFixture[str]) -> None:
    """`--explain` prints the rule and needs no path."""
    assert 0 == main(["audit", "--explain", "tp103"])
    assert capsys.readouterr().out.startswith("TP103: no method moves a field\n")


def test_files_that_cannot_be_audited_have_one_line_each(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each bad file is told in one line, and the others are audited all the same."""
    folder = project / "pkg"
    (folder / "two.py").write_text("print 'two'\n")
    (folder / "latin.py").write_bytes(b"x = '\xe9'\n")
    (folder / "late.py").write_bytes(b"x = 1\n" * 3 + b"y = '\xe9'\n")
    (folder / "codec.py").write_bytes(b"# coding: nonsense\n")
    (folder / "null.py").write_bytes(b"x = 1\0\n")
    (folder / "deep.py").write_text("x = " + "(" * 500 + ")" * 500 + "\n")
    (folder / "huge.py").write_text("#" * (files.LARGEST + 1))
    (folder / "dangling.py").symlink_to(folder / "nothing.py")

    assert 1 == main(["audit", "pkg"])

    lines = capsys.readouterr().out.splitlines()
    told = dict(
        line.removeprefix("pkg/").split(": not audited: ")
        for line in lines
        if "not audited: " in line
    )
    assert told.pop("two.py").startswith("not valid Python 3: line 1: ")
    assert told.pop("deep.py")
    assert told.pop("null.py")
    assert "TP101" in lines[0]
    assert {
        "latin.py": "not utf-8 text, and no encoding is declared",
        "late.py": "not utf-8 text: byte 23",
        "codec.py": "cannot be parsed: unknown encoding: nonsense",
        "huge.py": f"larger than 2,000,000 bytes: {files.LARGEST + 1:,}",
        "dangling.py": "cannot be read: No such file or directory",
    } == told


def test_declared_encoding_is_read(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file in the encoding that it declares is audited, line ends of Windows too."""
    text = "# coding: latin-1\n# caf\xe9\n" + FORGETS
    path = project / "pkg" / "batch.py"
    path.write_bytes(text.replace("\n", "\r\n").encode("latin-1"))

    assert 1 == main(["audit", "pkg"])
    assert "pkg/batch.py:12: TP101" in capsys.readouterr().out


def test_links_in_a_circle_end(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A link to a folder above is not followed; a file has one report by two paths."""
    (project / "pkg" / "again").symlink_to(project / "pkg")
    (project / "pkg" / "same.py").symlink_to(project / "pkg" / "batch.py")

    assert 1 == main(["audit", "pkg", "pkg/batch.py"])
    assert 1 == capsys.readouterr().out.count("TP101")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission_has_one_line(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file and a folder without permission are told, and the rest goes on."""
    (project / "pkg" / "secret.py").write_text(FORGETS)
    (project / "pkg" / "secret.py").chmod(0)

    assert 1 == main(["audit", "pkg"])
    assert "secret.py: not audited: cannot be read: " in capsys.readouterr().out


def test_folder_that_cannot_be_listed_has_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the operating system refuses to list is told, and the rest goes on."""

    def refusing(
        top: Path, onerror: Callable[[OSError], None]
    ) -> Iterator[tuple[str, list[str], list[str]]]:
        onerror(PermissionError(13, "Permission denied", "pkg/closed"))
        yield from walk(top)

    walk = os.walk
    monkeypatch.setattr(files.os, "walk", refusing)

    assert 1 == main(["audit", "pkg"])
    assert (
        "pkg/closed: not audited: cannot be read: Permission denied"
        in capsys.readouterr().out
    )


def test_environments_and_outputs_are_passed_over(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Hidden folders, caches and virtual environments are no part of a project."""
    for name in (".git", "node_modules", "env"):
        (project / "pkg" / name).mkdir()
        (project / "pkg" / name / "batch.py").write_text(FORGETS)
    (project / "pkg" / "env" / "pyvenv.cfg").write_text("")

    main(["audit", "pkg"])

    assert "1 files, " in capsys.readouterr().out


def test_audit_imports_neither_torch_nor_attrs() -> None:
    """The command starts without torch, attrs or the audited code."""
    code = (
        "import sys\nfrom tensorpack._cli import main\n"
        "main(['audit', '--explain', 'TP101'])\n"
        "import tensorpack._audit.audit\n"
        "print({'torch', 'attr', 'attrs', 'numpy'} & set(sys.modules))"
    )

    assert "set()" == python("-c", code).splitlines()[-1]


def test_audit_does_not_run_the_code(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that ends the process when it is imported is only read."""
    (project / "pkg" / "ends.py").write_text("raise SystemExit(7)\n")

    assert 1 == main(["audit", "pkg"])


@pytest.mark.skipif(os.name == "nt", reason="closes descriptors")
@pytest.mark.parametrize("closed", ["<&-", ">&-", "<&- >&- 2>&-"])
def test_closed_streams_change_nothing(project: Path, closed: str) -> None:
    """Without input, output or errors the exit code is the same."""
    many = project / "pkg" / "many"
    many.mkdir()
    for number in range(60):  # enough for processes
        (many / f"m{number}.py").write_text(COMPLETE)
    command = f"exec {sys.executable} -m tensorpack audit pkg {closed}"

    done = subprocess.run(
        ["/bin/sh", "-c", command],
        check=False,
        timeout=120,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": str(Path(files.__file__).parents[2])},
    )

    assert 1 == done.returncode


def test_processes_find_the_same(project: Path) -> None:
    """What one process finds is found by several, in the same order."""
    from tensorpack._audit.audit import audit  # noqa: PLC0415 - only here

    for number in range(70):
        (project / "pkg" / f"m{number}.py").write_text(FORGETS)

    alone = audit([project], processes=1)
    together = audit([project], processes=2)

    assert 71 == len(alone.reports)
    assert alone.reports == together.reports
