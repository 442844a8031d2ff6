"""The import table of the package: which module may import which."""

import ast
import graphlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tensorpack"
MODULES = sorted(PACKAGE.rglob("*.py"))

ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    # The model of streams and blocks knows no torch; the rest of the guard no payloads.
    "guard": {"errors"},
    "_rules": {"errors"},
    "_leaves": {"errors", "_rules"},
    "_plan": {"errors", "_rules", "_leaves"},
    "_walk": {"errors", "_rules", "_leaves", "_plan"},
    "_codegen": {"_rules", "_leaves", "_plan", "_walk"},
    "integrations": {"errors", "_rules", "_leaves", "_plan", "_walk"},
    "_repr": set(),
    "_functions": {"errors", "_rules", "_leaves", "_plan", "_walk", "integrations"},
    "_install": {"errors", "_rules", "_leaves", "_plan", "_codegen", "_walk"},
    "_payload": {
        "errors",
        "_rules",
        "_leaves",
        "_plan",
        "_walk",
        "integrations",
        "_repr",
        "_functions",
        "_install",
    },
    "axes": {"errors", "_rules", "_leaves", "_plan", "_walk"},
    # The transfer layer knows walks and leaves, never plans.
    "transfer": {
        "errors",
        "guard",
        "_leaves",
        "_codegen",
        "_walk",
        "_functions",
        "axes",
    },
    "distributed": {
        "errors",
        "_rules",
        "_leaves",
        "_plan",
        "_walk",
        "transfer",
    },
    "mypy_plugin": {"errors", "_rules"},
    # The audit reads text: neither torch nor anything of the package.
    "_audit": set(),
    "__init__": set(),
}
"""Each folder and top-level module, after those that it may import.

`__init__` names its rooms in strings.
"""

UNRESTRICTED = {"testing", "_cli", "__main__"}

LONGEST_MODULE = 400


def dotted(path: Path) -> str:
    """Return the full name of a module: `tensorpack.mypy_plugin.fields`."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room(name: str) -> str:
    """Return the row of the table that a full name of the package belongs to."""
    _, _, inside = name.partition(".")
    return inside.partition(".")[0] or "__init__"


def imports(path: Path) -> Iterator[str]:
    """Yield the full name of all that a module imports, at its top or further in."""
    package = dotted(path).split(".")
    if path.stem != "__init__":
        package.pop()
    for node in ast.walk(at_run_time(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            origin = ".".join([*base, *filter(None, [node.module])])
            if origin == PACKAGE.name:
                yield from (imported_from_package(alias.name) for alias in node.names)
            else:
                yield origin


def at_run_time(path: Path) -> ast.Module:
    """Return the tree of a module; of a package's own, without what checkers see.

    A package names its public objects once for type checkers, where nothing is
    imported.
    """
    tree = ast.parse(path.read_text())
    if path.name == "__init__.py":
        tree.body = [node for node in tree.body if not is_for_checkers(node)]
    return tree


def is_for_checkers(node: ast.stmt) -> bool:
    """Tell whether a statement is an `if TYPE_CHECKING:` without another branch."""
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
        and not node.orelse
    )


def imported_from_package(name: str) -> str:
    """Return the full name of a submodule, or the package for any other name."""
    submodule = PACKAGE / name
    if submodule.is_dir() or submodule.with_suffix(".py").is_file():
        return f"{PACKAGE.name}.{name}"
    return PACKAGE.name


def top_level(path: Path) -> set[str]:
    """Return the top-level packages that a module imports."""
    return {name.partition(".")[0] for name in imports(path)}


def loaded_by(statement: str) -> set[str]:
    """Return the top-level modules of a fresh interpreter after one statement."""
    done = subprocess.run(
        [sys.executable, "-c", f"{statement}\nimport sys\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


each_module = pytest.mark.parametrize("path", MODULES, ids=dotted)


@each_module
def test_module_imports_only_what_the_table_allows(path: Path) -> None:
    """A module has a row in the table and imports nothing outside that row."""
    own = room(dotted(path))
    if own in UNRESTRICTED:
        return
    inside = {
        room(name) for name in imports(path) if name.split(".")[0] == "tensorpack"
    }

    assert own in ALLOWED, f"give {own} a row in the table"
    assert set() == inside - ALLOWED[own] - {own}


def test_modules_of_a_folder_import_in_one_way() -> None:
    """No two modules of the package import each other, by whatever way round."""
    graph = {
        dotted(path): {
            name for name in imports(path) if name.partition(".")[0] == PACKAGE.name
        }
        - {dotted(path)}
        for path in MODULES
        if room(dotted(path)) not in UNRESTRICTED
    }

    tuple(graphlib.TopologicalSorter(graph).static_order())


def test_table_goes_one_way() -> None:
    """A module is allowed only modules of earlier rows, so no cycle can be."""
    rows = list(ALLOWED)

    for position, (own, allowed) in enumerate(ALLOWED.items()):
        assert set() == allowed - set(rows[:position]), own


def test_mypy_plugin_imports_neither_torch_nor_attrs() -> None:
    """A run of mypy does not pay for the import of torch."""
    for path in MODULES:
        if room(dotted(path)) in ("mypy_plugin", "_rules", "errors"):
            assert set() == top_level(path) & {"torch", "attrs", "attr"}, path


def test_rules_import_the_standard_library_alone() -> None:
    """What a type means needs neither torch nor attrs, so both readers can ask it."""
    for path in MODULES:
        if room(dotted(path)) in ("_rules", "errors"):
            foreign = top_level(path) - {PACKAGE.name} - sys.stdlib_module_names
            assert set() == foreign, path


@each_module
def test_module_does_not_import_numpy(path: Path) -> None:
    """The package works where numpy is not installed."""
    assert "numpy" not in top_level(path)


def test_public_names_load_no_tool_of_the_developer() -> None:
    """Neither the package nor any of its lazy names loads mypy or pytest."""
    loaded = loaded_by("from tensorpack import *")

    assert "tensorpack" in loaded
    assert set() == loaded & {"mypy", "pytest", "_pytest"}


@each_module
def test_module_is_short_enough_to_know(path: Path) -> None:
    """A module over 400 lines holds more than one noun."""
    lines = path.read_text().count("\n")

    assert lines <= LONGEST_MODULE


@each_module
def test_module_has_a_name_of_its_own(path: Path) -> None:
    """What two modules need belongs to the lower one, not to a module of leftovers."""
    assert "utils" not in dotted(path).replace("_", ".").split(".")


LONGEST_SHARED_TEXT = 9

TEXT_ELSEWHERE = {
    ("_audit.method_rules", "_audit.walker_rules"),
    ("_cli.show", "_cli.stubs"),
}
"""Pairs of modules whose texts are the business of one command."""


def texts_of(path: Path) -> Iterator[str]:
    """Yield the texts of a module that are not documentation, each hole as `{}`."""
    tree = ast.parse(path.read_text())
    documentation = {
        id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)
    }
    parts = {
        id(part)
        for node in ast.walk(tree)
        if isinstance(node, ast.JoinedStr)
        for part in ast.walk(node)
        if part is not node
    }
    for node in ast.walk(tree):
        if id(node) in documentation | parts:
            continue
        match node:
            case ast.Constant(value=str(text)):
                yield text
            case ast.JoinedStr(values=values):
                yield "".join(
                    str(value.value) if isinstance(value, ast.Constant) else "{}"
                    for value in values
                )


def test_no_text_stands_in_two_modules() -> None:
    """What is said in two places would come to differ: ten words are in one module."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        name = dotted(path).removeprefix(f"{PACKAGE.name}.")
        for text in texts_of(path):
            words = text.split()
            for start in range(len(words) - LONGEST_SHARED_TEXT):
                run = " ".join(words[start : start + LONGEST_SHARED_TEXT + 1])
                found.setdefault(run, set()).add(name)
    shared = {
        run: names
        for run, names in found.items()
        if len(names) > 1 and tuple(sorted(names)) not in TEXT_ELSEWHERE
    }

    assert {} == shared
