"""`python -m tensorpack check`: what it finds in modules, and its exit codes."""

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import tensorpack
from tensorpack import LifetimeError
from tensorpack._cli import main
from tensorpack._refusals import collected

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

Package = Callable[..., None]


def told(field: str, annotation: str = "object") -> str:
    """Give the refusal of a field whose annotation says nothing."""
    return (
        f"`{field}`: `{annotation}` says nothing of what is inside. Name the types "
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


def test_check_reports_a_refusal_that_stops_imports(
    package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused class that is used, or an adapter, ends the import that it is in."""
    package(adapter=ADAPTER, use=f"{BAD}\nBroken(1, []).to_device('meta')\n{GOOD}")

    main(["check", "checked"])

    printed = capsys.readouterr().out
    assert "`checked.adapter`: refused.\n`Empty`: an adapter needs" in printed
    assert "The same stops the import of `checked.use`.\n" in printed
    assert (
        "What follows the refusal in `checked.adapter`, `checked.use` is not checked "
        "yet.\n"
    ) in printed
    assert printed.endswith("3 modules, 0 payloads, 2 refusals, 0 not imported\n")


@pytest.mark.parametrize(
    "use",
    [
        lambda broken: broken.to_device("meta"),
        lambda broken: broken.to_device("meta", non_blocking=True),
        lambda broken: broken.to("meta"),
        lambda broken: broken.pin_memory(),
        lambda broken: broken.record_stream(object()),
        lambda broken: broken.payload_keys(),
        lambda broken: type(broken).payload_keys(),
        lambda broken: type(broken).host_keys(),
        lambda broken: tensorpack.clone([broken]),
        tensorpack.compact,
        tensorpack.evolve,
        lambda broken: tensorpack.evolve(broken, rest=[]),
        lambda broken: list(tensorpack.tensors(broken)),
        lambda broken: list(tensorpack.opaque(broken)),
        lambda broken: tensorpack.to_device({"a": broken}, "meta"),
        lambda broken: tensorpack.record_stream(broken, object()),
        lambda broken: torch.utils._pytree.tree_leaves(
            tensorpack.register_pytree(type(broken)) and broken
        ),
    ],
)
def test_refused_class_of_a_check_raises_at_every_use(
    use: Callable[[Any], object], package: Package
) -> None:
    """Whoever imports it afterwards gets its refusal, not half a payload.

    Its keys used to be empty, and `evolve` said that it had no fields.
    """
    package(bad=BAD)
    main(["check", "checked.bad"])
    broken = importlib.import_module("checked.bad").Broken(1, [])

    with pytest.raises(LifetimeError) as caught:
        use(broken)

    wanted = [told("Broken.callback"), told("Broken.rest", "list")]
    assert wanted == str(caught.value).splitlines()


USES = """
from torch import Tensor
from tensorpack import evolve, payload, register_pytree

@register_pytree
@payload
class Bad:
    ids: Tensor
    meta: object

"""


@pytest.mark.parametrize(
    "use",
    [
        'FIRST = Bad.payload_keys().index("ids")',
        "FIRST = Bad.host_keys()[0]",
        "FIRST = evolve(Bad(None, 1), meta=2).meta",
        "class Child(Bad):\n    pass\nKEYS = Child.payload_keys()",
    ],
)
def test_check_says_that_a_refusal_stops_a_module_that_uses_the_class(
    use: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """It used to be an error of its own: "tuple.index(x): x not in tuple"."""
    package(uses=f"{USES}{use}\n")

    code = main(["check", "checked"])

    assert 1 == code
    assert (
        f"`checked.uses`: refused.\n{told('Bad.meta')}\n"
        "The same stops the import of `checked.uses`.\n"
        "\n"
        "What follows the refusal in `checked.uses` is not checked yet.\n"
        "2 modules, 0 payloads, 1 refusal, 0 not imported\n"
    ) == capsys.readouterr().out


HOLDS = {
    "slot": """
@payload
class B:
    ids: int
    payload_keys: int = 0
assert 0 == B(1).payload_keys
""",
    "attribute": """
@payload(slots=False)
class B:
    host_keys: int = 3
assert 3 == B().host_keys
""",
    "adopted": """
@payload
@attrs.define
class B:
    to_device: object
assert 1 == B(1).to_device
""",
    "dataclass": """
@payload
@dataclasses.dataclass(slots=True)
class B:
    record_stream: int = 3
assert 3 == B().record_stream
""",
    "callable default": """
@payload
@dataclasses.dataclass
class B:
    to_device: object = print
assert print is B.to_device
""",
    "inherited": """
@attrs.define
class A:
    host_keys: int
@payload
class B(A):
    ids: int
assert 1 == B(1, 2).host_keys
""",
    "slot apart": """
class A:
    __slots__ = ("to",)
@payload
class B(A):
    ids: int
b = B(1)
b.to = 2
assert 2 == b.to
""",
    "constant": """
@payload
class B:
    ids: int
    host_keys = ("ids",)
assert ("ids",) == B.host_keys
""",
    "property": """
@payload
class B:
    ids: int
    @property
    def payload_keys(self):
        return self.ids
assert 1 == B(1).payload_keys
""",
}


@pytest.mark.parametrize("text", list(HOLDS.values()), ids=list(HOLDS))
def test_refused_class_of_a_check_keeps_what_its_instances_hold(
    text: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A method took the place of a slot: "object attribute is read-only"."""
    package(holds=f"import attrs, dataclasses\nfrom tensorpack import payload\n{text}")

    assert 1 == main(["check", "checked"])
    assert capsys.readouterr().out.endswith(
        "2 modules, 0 payloads, 1 refusal, 0 not imported\n"
    )


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
    """A refusal is reported even if no stand-in can be made."""
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
        "`checked.both`: cannot be imported: TypeError: define() got an unexpected "
        "keyword argument 'bogus'.\n"
        "\n"
        "2 modules, 0 payloads, 1 refusal, 1 not imported\n"
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


THREADS = {
    "thread": "t = threading.Thread(target=work)\nt.start()\nt.join()\n",
    "import": "t = threading.Thread(target=lambda: __import__('checked.hidden.bad'))\n"
    "t.start()\nt.join()\n",
    "pool": "with ThreadPoolExecutor() as pool:\n    pool.submit(work)\n",
}


@pytest.mark.parametrize("start", list(THREADS.values()), ids=list(THREADS))
def test_check_reports_what_a_thread_of_a_module_decorates(
    start: str,
    package: Package,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Its refusal used to die with the thread, and the check said nothing."""
    package(
        threaded="import threading\nfrom concurrent.futures import ThreadPoolExecutor\n"
        "from tensorpack import payload\n"
        "def work():\n    @payload\n    class Broken:\n        meta: object\n"
        f"{start}"
    )
    (tmp_path / "checked" / "hidden").mkdir()
    (tmp_path / "checked" / "hidden" / "bad.py").write_text(BAD)

    code = main(["check", "checked.threaded"])

    printed = capsys.readouterr()
    assert 1 == code
    assert "" == printed.err
    assert "refused.\n`work.<locals>.Broken.meta`: `object`" in printed.out or (
        "`checked.hidden.bad`: refused.\n`Broken.callback`: `object`" in printed.out
    )
    assert printed.out.endswith("1 module, 0 payloads, 1 refusal, 0 not imported\n")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("import no_such_thing", "it needs `no_such_thing`, which is not there"),
        ("1 / 0", "ZeroDivisionError: division by zero"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_check_names_a_module_that_cannot_be_imported(
    text: str, reason: str, package: Package, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fault that is none of a payload gives exit code 2, and the walk goes on."""
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
