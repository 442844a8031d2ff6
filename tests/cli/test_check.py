"""`python -m tensorpack check`: what it finds in modules, and its exit codes."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from tensorpack import LifetimeError
from tensorpack._cli import main
from tensorpack._install import collected

GOOD = """
from torch import Tensor
from tensorpack import Derived, payload

@payload
class Batch:
    ids: Tensor
    size: int = 1
    mask: Derived[Tensor | None] = None

    @payload
    class Part:
        grid: Tensor
"""
BAD = """
from tensorpack import payload

@payload
class Broken:
    callback: object
    rest: list
"""
MANY = """
import dataclasses, enum
from torch import Tensor
from tensorpack import Payload, payload

@payload
class First(Payload):
    bad: object
    ids: Tensor

FIRST = First(bad=1, ids=None)

@payload
class Child(First):
    bad_too: list

@payload
class Quiet(First):
    more: Tensor

@payload
class Around:
    first: First

@payload
class Twice:
    ids: Tensor

    def to_device(self, device):
        return self

@payload
@dataclasses.dataclass
class Data:
    bad: dict
"""
SAME = """
from torch import Tensor
from tensorpack import payload

@payload
class Batch:
    ids: Tensor
    meta: object
"""
MADE = """
from tensorpack import payload

def make():
    class Batch:
        meta: object
    Batch.__qualname__ = "Batch"
    return payload(Batch)

make(), make()
"""
ADAPTER = """
from tensorpack import LifetimeAdapter

class Empty(LifetimeAdapter[range]):
    pass
"""
TWINS = """
from torch import Tensor
from tensorpack import payload

@payload
class Twice:
    ids: Tensor

    def to_device(self, device):
        return self
"""

ODD = {
    "no module name": "class Odd:\n    pass\nOdd.__module__ = None\n",
    "number for a module name": "class Odd:\n    __module__ = 3\n",
    "class that raises": """
class Lazy:
    @property
    def __class__(self):
        raise RuntimeError("not loaded")
lazy = Lazy()
""",
    "class that loads": """
class Lazy:
    @property
    def __class__(self):
        globals()["loaded"] = 1
        return type
lazy = Lazy()
""",
    "metaclass that raises": """
class Meta(type):
    def __getattribute__(cls, name):
        raise RuntimeError("not installed")
class Odd(metaclass=Meta):
    pass
""",
    "metaclass without hash": """
class Meta(type):
    __hash__ = None
    def __eq__(cls, other):
        raise RuntimeError("not compared")
class Odd(metaclass=Meta):
    pass
""",
    "name that raises": """
class Name:
    __hash__ = None
    def __eq__(self, other):
        raise RuntimeError("not compared")
__name__ = Name()
""",
    "attributes that raise": """
def __getattr__(name):
    raise RuntimeError(name)
""",
    "path that is none": "__path__ = None\n",
    "path that is text": "__path__ = 'json'\n",
    "path that is a number": "__path__ = 3\n",
    "object in its place": """
import sys
class Slotted:
    __slots__ = ()
sys.modules[__name__] = Slotted()
""",
}
FAULTS = {
    "missing": (
        "import no_such_thing",
        "it needs `no_such_thing`, which cannot be found",
    ),
    "missing inside": (
        "import checked.no_such",
        "it needs `checked.no_such`, which cannot be found",
    ),
    "missing, as its author says": (
        "raise ModuleNotFoundError('please install foo')",
        "ModuleNotFoundError: please install foo",
    ),
    "missing by name, as its author says": (
        "raise ModuleNotFoundError('please install foo', name='foo')",
        "ModuleNotFoundError: please install foo",
    ),
    "unbuilt, as its author says": (
        "raise ModuleNotFoundError('build me first', name=__name__)",
        "ModuleNotFoundError: build me first",
    ),
    "import error": (
        "raise ImportError('please install foo', name='foo')",
        "ImportError: please install foo",
    ),
    "error": ("1 / 0", "ZeroDivisionError: division by zero"),
    "error without text": ("raise ValueError", "ValueError"),
    "exit": ("raise SystemExit(3)", "SystemExit: 3"),
    "skip": (
        "import pytest\npytest.skip('no GPU', allow_module_level=True)",
        "Skipped: no GPU",
    ),
    "text that raises": (
        "class Odd(Exception):\n    def __str__(self):\n        1 / 0\nraise Odd",
        "Odd: its text cannot be made (ZeroDivisionError)",
    ),
}

Package = Callable[..., None]


def told(field: str, annotation: str = "object") -> str:
    """Give the refusal of a field whose annotation says nothing."""
    return (
        f"`{field}`: `{annotation}` does not say what it contains. Name the types "
        "(`list[Tensor]`, `dict[str, Tensor]`). Or write "
        f"`Dynamic[{annotation}]` to have its values walked at run time. Or write "
        f"`HostOnly[{annotation}]` if it stays on the host."
    )


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Package]:
    """Give a function that makes the package `checked` of the given modules."""

    def make(**modules: str) -> None:
        folder = tmp_path / "checked"
        folder.mkdir()
        (folder / "__init__.py").touch()
        for name, text in modules.items():
            (folder / f"{name}.py").write_text(text)

    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in {"checked", "adopter"}:
            del sys.modules[name]


def test_check_reports_the_payloads_of_all_modules_inside(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A package is walked, a class is reported once, where it is defined."""
    package(good=GOOD, uses="from checked.good import Batch\n")

    code = main(["check", "checked", "checked.good"])

    assert 0 == code
    assert (
        "`checked.good:Batch`: 1 field travel, 1 stay, 1 derived.\n"
        "`checked.good:Batch.Part`: 1 field travel, 0 stay.\n"
        "\n"
        "3 modules, 2 payloads, 0 refusals, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_reports_each_refusal_in_full(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """All bad fields are named, the other modules are still walked, exit code 1."""
    package(bad=BAD, good=GOOD, twins=TWINS)

    code = main(["check", "checked"])

    printed = capsys.readouterr().out
    assert 1 == code
    assert "`checked.bad`: refused.\n`Broken.callback`: `object`" in printed
    assert "\n`Broken.rest`: `list`" in printed
    assert "`checked.twins`: refused.\n" in printed
    assert "`to_device`" in printed
    assert printed.endswith("4 modules, 2 payloads, 2 refusals, 0 not imported\n")


def test_check_reports_every_refusal_of_a_module(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module goes on after a refusal: it used to end at its first one."""
    package(many=MANY)

    code = main(["check", "checked"])

    printed = capsys.readouterr().out
    refused = [
        line.partition(":")[0] for line in printed.splitlines() if ".bad" in line
    ]
    assert 1 == code
    assert ["`First.bad`", "`Child.bad_too`", "`Data.bad`"] == refused
    assert 4 == printed.count("`checked.many`: refused.\n")
    assert "`Twice`: its body defines `to_device`" in printed
    assert "`checked.many:Around`: 1 field travel, 0 stay.\n" in printed
    assert printed.endswith("2 modules, 1 payload, 4 refusals, 0 not imported\n")


@pytest.mark.parametrize(
    ("modules", "told_in"),
    [
        ({"a": SAME, "b": SAME}, ["a", "b"]),
        ({"a": SAME, "b": SAME, "c": f"from checked.a import Batch\n{SAME}"}, "abc"),
        ({"a": f"{SAME}{SAME}"}, ["a", "a"]),
        ({"a": MADE}, ["a"]),
        ({"a": "import checked.b", "b": MADE, "c": "import checked.b"}, ["b"]),
    ],
    ids=["two modules", "three modules", "one module", "made twice", "imported"],
)
def test_check_reports_each_place_of_a_refusal_once(
    modules: dict[str, str],
    told_in: Sequence[str],
    package: Package,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Two classes of one name have a refusal each, and it stops no import.

    The second was said to be stopped by the first: it has to be mended by itself.
    """
    package(**modules)

    code = main(["check", "checked"])

    count = len(told_in)
    refused = [f"`checked.{n}`: refused.\n{told('Batch.meta')}\n\n" for n in told_in]
    assert 1 == code
    assert (
        f"{''.join(refused)}{len(modules) + 1} modules, 0 payloads, "
        f"{count} refusal{'' if count == 1 else 's'}, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_reports_an_adapter_that_stops_its_module_and_others(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused adapter is raised, and each module that it stops says so."""
    package(adapter=ADAPTER, before="import checked.adapter\n")

    code = main(["check", "checked.before", "checked"])

    text = "`Empty`: an adapter needs its own `leaves`. Define `leaves` in `Empty`."
    assert 1 == code
    assert (
        f"`checked.before`: refused.\n{text}\n\n"
        f"`checked.adapter`: refused.\n{text}\n\n"
        "What follows the refusal in `checked.before`, `checked.adapter` was not "
        "checked.\n"
        "3 modules, 0 payloads, 2 refusals, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_reports_a_field_that_a_child_gets_wrong_again(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A field that a child writes anew is its own, and what it inherits is not."""
    package(
        bad=f"{BAD}\n"
        "@payload\nclass Same(Broken):\n    callback: object\n"
        "class Between(Broken):\n    rest: list\n"
        "@payload\nclass Below(Between):\n    pass\n"
        "@payload(fields={'rest': list})\nclass Corrected(Broken):\n    pass\n"
        "@payload\nclass Quiet(Broken):\n    pass\n"
    )

    main(["check", "checked"])

    refused = [
        f"{told('Broken.callback')}\n{told('Broken.rest', 'list')}",
        told("Same.callback"),
        told("Below.rest", "list"),
        told("Corrected.rest", "list"),
    ]
    assert (
        "".join(f"`checked.bad`: refused.\n{text}\n\n" for text in refused)
        + "2 modules, 0 payloads, 4 refusals, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_says_again_what_an_earlier_check_has_refused(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that is imported already has its stand-ins, which are no payloads."""
    package(bad=BAD, good=GOOD)
    main(["check", "checked"])
    first = capsys.readouterr().out

    code = main(["check", "checked"])

    assert 1 == code
    assert first == capsys.readouterr().out


@pytest.mark.parametrize("folder", ["sub", "sub/deep"])
def test_check_visits_folders_without_an_init(
    folder: str,
    package: Package,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They are packages too, and used to be passed over in silence."""
    package()
    inside = tmp_path / "checked" / folder
    inside.mkdir(parents=True)
    (inside / "bad.py").write_text(BAD)
    (inside / "upwards").symlink_to(tmp_path / "checked")
    (inside / "same").symlink_to(inside)
    (inside / "not-a-name").mkdir()
    (inside / "not-a-name" / "script.py").write_text("raise AssertionError")
    (tmp_path / "checked" / "data" / "rows").mkdir(parents=True)
    (tmp_path / "checked" / "data" / "rows" / "rows.txt").touch()

    code = main(["check", "checked"])

    assert 1 == code
    assert (
        f"`checked.{folder.replace('/', '.')}.bad`: refused.\n"
        f"{told('Broken.callback')}\n{told('Broken.rest', 'list')}\n"
        "\n"
        "2 modules, 0 payloads, 1 refusal, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_starts_at_a_folder_without_an_init(
    package: Package, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A project may have no `__init__` at all."""
    package(good=GOOD)
    (tmp_path / "checked" / "__init__.py").unlink()

    code = main(["check", "checked"])

    assert 0 == code
    assert capsys.readouterr().out.endswith(
        "2 modules, 2 payloads, 0 refusals, 0 not imported\n"
    )


@pytest.mark.parametrize("text", list(ODD.values()), ids=list(ODD))
def test_check_looks_through_odd_modules(
    text: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lazy objects and odd classes used to end the check with a traceback."""
    package(odd=f"{BAD}\n{text}", zoo=GOOD)

    code = main(["check", "checked"])

    assert 1 == code
    assert (
        "`checked.zoo:Batch`: 1 field travel, 1 stay, 1 derived.\n"
        "`checked.zoo:Batch.Part`: 1 field travel, 0 stay.\n"
        "\n"
        "`checked.odd`: refused.\n"
        f"{told('Broken.callback')}\n{told('Broken.rest', 'list')}\n"
        "\n"
        "3 modules, 2 payloads, 1 refusal, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_runs_a_module_that_is_lazy(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is imported already, and its text is run when it is first asked for a name."""
    package(
        bad=BAD,
        aside="import sys\nfrom importlib import util\n"
        "spec = util.find_spec('checked.bad')\n"
        "spec.loader = util.LazyLoader(spec.loader)\n"
        "module = sys.modules['checked.bad'] = util.module_from_spec(spec)\n"
        "spec.loader.exec_module(module)\n",
    )

    code = main(["check", "checked.aside", "checked.bad"])

    assert 1 == code
    assert (
        "`checked.bad`: refused.\n"
        f"{told('Broken.callback')}\n{told('Broken.rest', 'list')}\n"
        "\n"
        "2 modules, 0 payloads, 1 refusal, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_tells_a_payload_without_a_module_name_where_it_is_found(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its module used to be called `None`."""
    package(good=f"{GOOD}\nBatch.__module__ = None\n")

    main(["check", "checked"])

    assert (
        "`checked.good:Batch`: 1 field travel, 1 stay, 1 derived.\n"
        "`checked.good:Batch.Part`: 1 field travel, 0 stay.\n"
        "\n"
        "2 modules, 2 payloads, 0 refusals, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_ends_when_the_user_says_so(package: Package) -> None:
    """Control-C during an import is no fault of the module."""
    package(slow="raise KeyboardInterrupt")

    with pytest.raises(KeyboardInterrupt):
        main(["check", "checked"])


def test_check_reports_a_refusal_once_for_all_that_use_it(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A module that imports the refused class is checked as any other."""
    package(bad=BAD, user=f"from checked.bad import Broken\n{GOOD}")

    main(["check", "checked.user", "checked"])

    printed = capsys.readouterr().out
    assert 1 == printed.count("Broken.callback")
    assert "`checked.bad`: refused.\n" in printed
    assert printed.endswith("3 modules, 2 payloads, 1 refusal, 0 not imported\n")


@pytest.mark.parametrize(
    "use",
    [
        "FIRST = Broken.payload_keys()",
        "Broken(1, []).to_device('meta')",
        "import tensorpack\ntensorpack.evolve(Broken(1, []), rest=[])",
        "import tensorpack\ntensorpack.clone([Broken(1, [])])",
    ],
)
def test_check_reports_a_module_that_uses_a_refused_class(
    use: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """The class has no method of a payload, so its use ends the import, loudly."""
    package(bad=BAD, use=f"from checked.bad import Broken\n{use}\n{GOOD}")

    code = main(["check", "checked"])

    printed = capsys.readouterr().out
    assert 1 == code
    assert "`checked.bad`: refused.\n" in printed
    assert "`checked.use`: " in printed
    assert "3 modules, 0 payloads, " in printed


def test_check_reports_an_undecorated_subclass(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A forgotten decorator is a refusal; a base without fields is not."""
    package(
        good=GOOD,
        forgotten="from checked.good import Batch\nfrom tensorpack import payload\n"
        "from torch import Tensor\n"
        "class Child(Batch):\n    more: Tensor\n"
        "class Between(Batch):\n    pass\n"
        "@payload\nclass Leaf(Between):\n    pass\n",
    )

    code = main(["check", "checked"])

    printed = capsys.readouterr().out
    assert 1 == code
    assert 1 == printed.count("refused.\n")
    assert "`checked.forgotten`: refused.\n`Child` " in printed
    assert "Decorate `Child` with `@payload`." in printed
    assert printed.endswith("3 modules, 3 payloads, 1 refusal, 0 not imported\n")


def test_check_collects_past_a_metaclass_that_forbids_changes(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal is reported, not what the metaclass has against a stand-in."""
    package(
        sealed="import attrs\nfrom tensorpack import payload\n"
        "class Meta(type):\n    def __setattr__(cls, name, value):\n"
        "        if sealed: raise TypeError('sealed')\n"
        "        super().__setattr__(name, value)\n"
        "sealed = False\n"
        "@attrs.define\nclass Bad(metaclass=Meta):\n    meta: object\n"
        "sealed = True\npayload(Bad)\n"
    )

    main(["check", "checked"])

    assert (
        f"`checked.sealed`: refused.\n{told('Bad.meta')}\n\n"
        "2 modules, 0 payloads, 1 refusal, 0 not imported\n"
    ) == capsys.readouterr().out


def test_check_reports_a_class_whose_options_are_wrong_too(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refusal is reported even if attrs cannot make the class."""
    package(
        both="from tensorpack import payload\n@payload(bogus=True)\nclass Bad:\n"
        "    ids: int\n    def to_device(self, device):\n        return self\n"
    )

    assert 1 == main(["check", "checked"])
    assert (
        "`checked.both`: refused.\n"
        "`Bad`: its body defines `to_device`, which `@payload` generates. Delete "
        "`to_device`, or write `@payload(keep=('to_device',))` to keep your own.\n"
        "\n"
        "2 modules, 0 payloads, 1 refusal, 0 not imported\n"
    ) == capsys.readouterr().out


def test_imports_raise_as_ever(package: Package) -> None:
    """Refusals are collected by `check` alone: before and after, each thread raises."""
    package(bad=BAD)
    raised: list[BaseException] = []

    def import_it() -> None:
        try:
            importlib.import_module("checked.bad")
        except LifetimeError as error:
            raised.append(error)

    def import_on_both() -> None:
        import_it()
        thread = threading.Thread(target=import_it)
        thread.start()
        thread.join()

    import_on_both()
    with collected() as found:
        pass
    import_on_both()

    assert 4 == len(raised)
    assert [] == found


def test_check_reports_what_a_thread_of_a_module_decorates(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its refusal used to die with the thread, and the check said nothing."""
    package(
        threaded="import threading\nfrom tensorpack import payload\n"
        "def work():\n    @payload\n    class Broken:\n        meta: object\n"
        "t = threading.Thread(target=work)\nt.start()\nt.join()\n"
    )

    code = main(["check", "checked.threaded"])

    printed = capsys.readouterr()
    assert 1 == code
    assert "" == printed.err
    assert (
        f"`checked.threaded`: refused.\n{told('work.<locals>.Broken.meta')}\n\n"
        "1 module, 0 payloads, 1 refusal, 0 not imported\n"
    ) == printed.out


@pytest.mark.parametrize(("text", "reason"), list(FAULTS.values()), ids=list(FAULTS))
def test_check_names_a_module_that_cannot_be_imported(
    text: str, reason: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault that is none of a payload gives exit code 2, and the walk goes on.

    An author's own text is told as it is: "it needs `None`" used to stand for it.
    """
    package(fault=text, good=GOOD)

    code = main(["check", "checked"])

    printed = capsys.readouterr().out
    assert 2 == code
    assert f"`checked.fault`: cannot be imported: {reason}.\n" in printed
    assert printed.endswith("3 modules, 2 payloads, 0 refusals, 1 not imported\n")


@pytest.mark.parametrize("name", ["no_such_module", "json.no_such_module"])
def test_check_names_a_module_that_is_not_there(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong spelling is said to be one."""
    code = main(["check", name])

    assert 2 == code
    assert (
        f"`{name}`: cannot be imported: there is no module `{name}`.\n\n"
        "1 module, 0 payloads, 0 refusals, 1 not imported\n"
    ) == capsys.readouterr().out


def test_check_does_not_run_a_main_module(package: Package) -> None:
    """A package's `__main__` is a program, not a module to import."""
    package(__main__="raise AssertionError")

    assert 0 == main(["check", "checked"])


def test_check_reports_a_foreign_class_that_a_module_adopts(
    package: Package,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A class of another project counts where `payload(TheirClass)` is applied."""
    package(theirs="import dataclasses, torch\n@dataclasses.dataclass\nclass Theirs:\n")
    with (tmp_path / "checked" / "theirs.py").open("a") as file:
        file.write("    ids: torch.Tensor\n")
    (tmp_path / "adopter.py").write_text(
        "from tensorpack import payload\nfrom checked.theirs import Theirs\n"
        "payload(Theirs)\n"
    )

    main(["check", "adopter"])

    assert "`checked.theirs:Theirs`: 1 field travel" in capsys.readouterr().out


NAMED = """
from torch import Tensor
from tensorpack import HostOnly, payload

@payload
class Batch:
    lens: Tensor
    lens_cpu: Tensor
    host_mask: Tensor | None
    kept_cpu: HostOnly[Tensor]
"""


def test_leaf_that_its_name_keeps_on_the_host_is_noted(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is a note, not a refusal: the name may be wrong as well."""
    package(named=NAMED)

    assert 0 == main(["check", "checked.named"])
    text = capsys.readouterr().out
    kept = "moves to the device; `HostOnly[Tensor]` keeps it on the host."
    assert [
        f"note: `Batch.lens_cpu`: {kept}",
        f"note: `Batch.host_mask`: {kept}",
    ] == [line for line in text.splitlines() if line.startswith("note")]
