"""The mypy plugin: `plugins = ["tensorpack.mypy_plugin"]` in the section `[tool.mypy]`.

It does what no type checker can do by itself: it gives `@payload` the semantics of
attrs, payloads without the base the methods, and each field without lifetime support
an error on its own line. It imports mypy and the standard library, nothing else.
"""

import mypy.types  # noqa: F401  # first: mypy's own import cycle needs it
from mypy.plugin import Plugin

from tensorpack.mypy_plugin.hooks import TensorpackPlugin

__all__ = ["plugin"]


def plugin(version: str) -> type[Plugin]:  # noqa: ARG001  # the signature is mypy's
    """Return the plugin to mypy; it is the entry point that mypy looks for."""
    return TensorpackPlugin
