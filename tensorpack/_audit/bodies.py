"""The syntax trees of functions, parsed from their own lines when they are needed."""

import ast
import warnings
from dataclasses import dataclass, field

from tensorpack._audit.files import read
from tensorpack._audit.functions import Function

__all__ = ["Bodies", "FunctionNode"]

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Bodies:
    """Lines of files and trees of their functions, each read once."""

    _lines: dict[str, list[str]] = field(default_factory=dict)
    _nodes: dict[tuple[str, int], FunctionNode | None] = field(default_factory=dict)

    def lines(self, path: str) -> list[str]:
        """Return the lines of a file; none if it cannot be read any more."""
        if path not in self._lines:
            try:
                self._lines[path] = read(path).split("\n")
            except (OSError, SyntaxError, UnicodeDecodeError):
                self._lines[path] = []
        return self._lines[path]

    def node(self, function: Function) -> FunctionNode | None:
        """Return the tree of a function; None if its file has changed since."""
        key = (function.path, function.line)
        if key not in self._nodes:
            self._nodes[key] = self._parsed(function)
        return self._nodes[key]

    def text(self, function: Function) -> str:
        """Return the text of a function, from its `def` on."""
        lines = self.lines(function.path)
        return "\n".join(lines[function.line - 1 : function.last])

    def _parsed(self, function: Function) -> FunctionNode | None:
        text = self.text(function)
        # Under an `if`, lines may be indented as they are.
        indented = text[:1].isspace()
        above = "\n" * (function.line - (2 if indented else 1))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                tree = ast.parse(f"{above}if 1:\n{text}" if indented else above + text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return None
        node = tree.body[0] if tree.body else None
        if indented and isinstance(node, ast.If):
            node = node.body[0]
        return node if isinstance(node, FunctionNode) else None
