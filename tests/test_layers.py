"""The import table of the package: which module may import which."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "tensorpack"
MODULES = sorted(PACKAGE.rglob("*.py"))

CORE: dict[str, set[str]] = {
    "errors": set(),
    "_hosts": set(),
    "_stored": {"_hosts"},
    "_lifetime": {"errors", "_stored"},
    "_resolve": {"errors"},
    "_hidden": {"_hosts", "_stored"},
    "_msgspec": set(),
    "_values": {"_hidden", "_hosts", "_msgspec", "_stored"},
    "adapters": {"errors", "_lifetime", "_values"},
    "_nodes": {"_resolve"},
    "_containers": set(),
    "_generics": {"_resolve"},
    "_classes": {"errors", "_lifetime", "_msgspec", "_resolve"},
    "_structs": {"_classes", "_generics", "_msgspec", "_resolve", "_stored"},
    "_names": {"errors", "_lifetime", "_classes"},
    "_remedies": {"errors", "_resolve"},
    "_unions": {"_containers", "_nodes", "_remedies"},
    "_plan": {
        "_lifetime",
        "_resolve",
        "_classes",
        "_containers",
        "_hosts",
        "_nodes",
        "_structs",
        "_remedies",
        "_unions",
    },
    "_leftovers": {"errors", "_classes", "_lifetime", "_resolve"},
    "_fields": {
        "_leftovers",
        "errors",
        "_lifetime",
        "_resolve",
        "_classes",
        "_generics",
        "_nodes",
        "_plan",
        "_remedies",
    },
    "_words": {"_nodes"},
    "_twins": {"_msgspec", "_nodes", "_words"},
    "_source": {"_hosts", "_nodes", "_twins", "_words"},
    "_compile": set(),
    "_kinds": {
        "errors",
        "_stored",
        "_lifetime",
        "_resolve",
        "_hosts",
        "_values",
        "adapters",
        "_nodes",
        "_structs",
    },
    "_lies": {"_hidden", "_hosts", "_kinds"},
    "_checks": {"errors", "_values", "_kinds", "_lies"},
    "_tracing": set(),
    "_traversal": {
        "errors",
        "_lifetime",
        "_hidden",
        "_hosts",
        "_values",
        "_nodes",
        "_kinds",
        "_lies",
        "_checks",
        "_tracing",
    },
    "_walk": {"_lifetime", "_nodes", "_tracing", "_traversal"},
    "_build": {
        "errors",
        "_hosts",
        "_lifetime",
        "_nodes",
        "_kinds",
        "_tracing",
        "_walk",
    },
    "_streams": {"errors"},
    "_opened": {"errors"},
    "_once": {"_tracing"},
    "_move": {"errors", "_once", "_opened", "_streams", "_tracing"},
    "_repr": set(),
    "_functions": {"errors", "_kinds", "_msgspec", "_walk", "_build", "_move"},
    "_refusals": {"errors", "_classes", "_nodes", "_resolve"},
    "_install": {"_build", "_compile", "_lifetime", "_nodes", "_source"},
}
ALLOWED: dict[str, set[str]] = {
    **CORE,
    "_payload": set(CORE),
    "_pytree": {"_build", "_kinds", "_msgspec", "_nodes"},
    # The transfer layer knows walks and leaves, never plans.
    "_layout": set(),
    "_pack": {"_compile", "_layout", "_streams"},
    "_polling": {"errors"},
    "_flights": {"errors", "_streams"},
    "_staging": {"_layout", "_streams"},
    "_queue": {
        "_kinds",
        "errors",
        "_move",
        "_once",
        "_opened",
        "_streams",
        "_pack",
        "_staging",
    },
    "_handoff": {"errors", "_move", "_polling", "_flights", "_queue"},
    "_fetch": {
        "errors",
        "_walk",
        "_build",
        "_move",
        "_once",
        "_streams",
        "_layout",
        "_pack",
        "_polling",
    },
    "transfer": {
        "errors",
        "_walk",
        "_build",
        "_functions",
        "_streams",
        "_pack",
        "_polling",
        "_flights",
        "_staging",
        "_queue",
        "_handoff",
        "_fetch",
    },
    "_prefetch": {"_streams", "transfer"},
    "mypy_plugin": set(),
    "__init__": set(),
}
"""Each module, after those that it may import; `__init__` names them in strings."""

UNRESTRICTED = {"testing", "_cli", "__main__"}

LONGEST_MODULE = 350


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
    """Return the tree of a module; of the package's own, without what checkers see.

    The package names its public objects once for type checkers, where nothing is
    imported.
    """
    tree = ast.parse(path.read_text())
    if path == PACKAGE / "__init__.py":
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


def test_table_goes_one_way() -> None:
    """A module is allowed only modules of earlier rows, so no cycle can be."""
    rows = list(ALLOWED)

    for position, (own, allowed) in enumerate(ALLOWED.items()):
        assert set() == allowed - set(rows[:position]), own


def test_mypy_plugin_imports_neither_torch_nor_attrs() -> None:
    """A run of mypy does not pay for the import of torch."""
    for path in MODULES:
        if room(dotted(path)) == "mypy_plugin":
            assert set() == top_level(path) & {"torch", "attrs", "attr"}, path


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
    """A module over 350 lines holds more than one noun."""
    lines = path.read_text().count("\n")

    assert lines <= LONGEST_MODULE


@each_module
def test_module_has_a_name_of_its_own(path: Path) -> None:
    """What two modules need belongs to the lower one, not to a module of leftovers."""
    assert "utils" not in dotted(path).replace("_", ".").split(".")
