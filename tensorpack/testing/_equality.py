"""Equality of objects that hold tensors: by numbers, and by where they differ."""

from typing import Any

import torch
from torch import Tensor

from tensorpack.testing._oracle import children

__all__ = ["assert_equal", "same_numbers"]


def assert_equal(a: object, b: object, /, *, device: bool = False) -> None:
    """Fail unless two objects are equal, tensors by their numbers.

    Classes, dtypes, shapes and numbers (NaN equals NaN) are compared, and whatever the
    objects hold, at any depth. No method of their classes is asked, but of host values
    that hold nothing.

    Args:
        a: an object of any class.
        b: another.
        device: whether tensors must also be on the same device.

    Raises:
        AssertionError: they differ; the error names the first key at which they do.

    >>> assert_equal([torch.ones(2)], [torch.zeros(2)])
    Traceback (most recent call last):
        ...
    AssertionError: `[0]`: the numbers differ: tensor([1., 1.]) and tensor([0., 0.]).
    """
    __tracebackhide__ = True
    difference = _Comparison(device=device).difference(a, b, "")
    if difference is not None:
        key, problem = difference
        raise AssertionError(f"`{key}`: {problem}." if key else f"{problem}.")


_MADE_IN_PYTHON = 1 << 9


class _Comparison:
    """One comparison; pairs that are being compared already are taken for equal."""

    def __init__(self, *, device: bool) -> None:
        self._device = device
        self._open: set[tuple[int, int]] = set()

    def difference(self, a: Any, b: Any, key: str) -> tuple[str, str] | None:
        """Find the first key at which two objects differ, and how."""
        if a is b or (id(a), id(b)) in self._open:
            return None
        if isinstance(a, Tensor) and isinstance(b, Tensor):
            problem = _tensors_differ(a, b, device=self._device)
            return (key, problem) if problem else None
        if type(a) is not type(b):
            return key, f"one is {_short(a)}, the other is {_short(b)}"
        self._open.add((id(a), id(b)))
        mine, theirs = dict(children(a)), dict(children(b))
        if not mine and not theirs:
            return None if _values_equal(a, b) else (key, f"{a!r} is not {b!r}")
        for part in [*mine, *theirs]:
            where = f"{key}{part}" if key else part.removeprefix(".")
            if part not in mine or part not in theirs:
                return where, "only one of them has it"
            found = self.difference(mine[part], theirs[part], where)
            if found is not None:
                return found
        return None


def _short(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a `{type(value).__name__}`"
    return f"`{value!r}`" if len(repr(value)) < 40 else f"a `{type(value).__name__}`"  # noqa: PLR2004  # fits a line


def _values_equal(a: Any, b: Any) -> bool:
    """Compare two values of one class that hold nothing."""
    cls: Any = type(a)
    if cls.__eq__ is object.__eq__ and cls.__flags__ & _MADE_IN_PYTHON:
        return True  # instances of it differ by what they hold
    equal = a == b
    return bool(equal.all() if hasattr(equal, "all") else equal)


def _tensors_differ(a: Tensor, b: Tensor, *, device: bool) -> str:
    """Say how two tensors differ; "" if they do not."""
    for name in ("dtype", "shape", *(("device",) if device else ())):
        mine, theirs = getattr(a, name), getattr(b, name)
        if mine != theirs:
            mine, theirs = (
                (list(mine), list(theirs)) if name == "shape" else (mine, theirs)
            )
            return f"the {name}s differ: {mine} and {theirs}"
    if same_numbers(a, b):
        return ""
    return f"the numbers differ: {a} and {b}"


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Compare the numbers of two tensors of one dtype and shape; meta ones have none.

    Streams:
        The host blocks until the numbers of device tensors are there.
    """
    if a.is_meta or b.is_meta:
        return True
    a, b = a.detach().cpu(), b.detach().cpu()
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    a, b = a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    if a.dtype.is_floating_point and a.element_size() == 1:  # no kernel compares them
        a, b = a.float(), b.float()
    comparable = a.dtype.is_floating_point or a.dtype.is_complex
    same = (a == b) | ((a != a) & (b != b)) if comparable else a == b  # noqa: PLR0124  # NaN
    return bool(same.all())
