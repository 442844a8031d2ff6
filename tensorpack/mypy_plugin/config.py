"""The settings: the section `[tool.tensorpack]` of `pyproject.toml`."""

import dataclasses
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from mypy.errors import CompileError
from mypy.options import Options

__all__ = ["Config", "read_config"]

_KEYS = ("adapters", "decorators")


@dataclasses.dataclass(frozen=True)
class Config:
    """What a project tells the plugin.

    Attributes:
        adapters: modules whose adapters count everywhere.
        decorators: full names of functions that decorate as `@payload` does.
    """

    adapters: tuple[str, ...] = ()
    decorators: tuple[str, ...] = ()


def read_config(options: Options) -> Config:
    """Read the settings beside mypy's own, or in the current folder.

    Raises:
        CompileError: the section has an unknown key or a value that is not a list of
            names.
    """
    folder = Path(options.config_file).parent if options.config_file else Path()
    path = folder / "pyproject.toml"
    if not path.is_file():
        return Config()
    try:
        section = tomllib.loads(path.read_text("utf-8")).get("tool", {})
    except tomllib.TOMLDecodeError as error:
        _fail(path, f"it cannot be read: {error}.")
    return _config(section.get("tensorpack", {}), path)


def _config(section: Mapping[str, object], path: Path) -> Config:
    """Check the section and make the settings of it."""
    found: dict[str, tuple[str, ...]] = {}
    for key, value in section.items():
        if key not in _KEYS:
            known = " and ".join(f"`{k}`" for k in _KEYS)
            _fail(path, f"the key `{key}` is unknown. The keys are {known}.")
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            _fail(path, f'`{key}` is not a list of names. Write `{key} = ["pkg.mod"]`.')
        found[key] = tuple(value)
    return Config(**found)


def _fail(path: Path, problem: str) -> NoReturn:
    raise CompileError([f"{path}: [tool.tensorpack]: {problem}"], use_stdout=True)
