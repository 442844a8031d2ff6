"""Equality of objects that hold tensors: by numbers, and by where they differ."""

from collections.abc import Iterator, Set as AbstractSet
from typing import Any

import torch
from torch import Tensor

from tensorpack.testing._device import DeviceTensor, class_of
from tensorpack.testing._oracle import children, is_array

__all__ = ["assert_equal", "same_numbers"]


def assert_equal(a: object, b: object, /, *, device: bool = False) -> None:
    """Fail unless two objects are equal, tensors by their numbers.

    Classes, dtypes, shapes, layouts and numbers are compared, and whatever the objects
    hold, at any depth. NaN equals NaN, in tensors, arrays and floats. The order of a
    mapping's entries does not count. No method of the objects' classes is called,
    except `==` of host values that hold nothing.

    Args:
        a: an object of any class.
        b: another.
        device: whether tensors must also be on the same device.

    Raises:
        AssertionError: they differ; the error names the first key at which they do.

    Streams:
        The host blocks until the numbers of device tensors are there.

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
    """One comparison; a pair that is being compared already counts as equal."""

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
        if is_array(a):
            problem = _arrays_differ(a, b)
            if problem or not a.dtype.hasobject:
                return (key, problem) if problem else None
        self._open.add((id(a), id(b)))
        mine, theirs = dict(children(a)), dict(children(b))
        if isinstance(a, AbstractSet) or (not mine and not theirs):
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
    """Compare two values of one class that hold nothing, or nothing but host values."""
    cls: Any = type(a)
    if cls.__eq__ is object.__eq__ and cls.__flags__ & _MADE_IN_PYTHON:
        return True  # instances of it differ by what they hold
    try:
        equal = a == b
        return bool(equal) or bool(a != a and b != b)  # noqa: PLR0124  # NaN
    except Exception:  # noqa: BLE001  # a class's own `__eq__` may raise anything
        return False


def _arrays_differ(a: Any, b: Any) -> str:
    """Describe how two arrays differ, objects aside; "" if they do not."""
    if a.dtype != b.dtype:
        return f"the dtypes differ: {a.dtype} and {b.dtype}"
    if a.shape != b.shape:
        return f"the shapes differ: {list(a.shape)} and {list(b.shape)}"
    if a.dtype.hasobject or bool(((a == b) | ((a != a) & (b != b))).all()):  # noqa: PLR0124  # NaN
        return ""
    return f"{a!r} is not {b!r}"


def _tensors_differ(a: Tensor, b: Tensor, *, device: bool) -> str:
    """Describe how two tensors differ; "" if they do not."""
    if not _of_one_class(a, b):
        mine, theirs = _class_of(a).__name__, _class_of(b).__name__
        return f"the classes differ: `{mine}` and `{theirs}`"
    for name in ("dtype", "layout", *(("device",) if device else ())):
        if getattr(a, name) != getattr(b, name):
            return f"the {name}s differ: {getattr(a, name)} and {getattr(b, name)}"
    if shape_of(a) != shape_of(b):
        return f"the shapes differ: {shape_of(a)} and {shape_of(b)}"
    if same_numbers(a, b):
        return ""
    return f"the numbers differ: {a} and {b}"


def _class_of(tensor: Tensor) -> type:
    """Return the class of a tensor; what stands for a parameter is one."""
    is_parameter = isinstance(tensor, torch.nn.Parameter)
    if is_parameter and isinstance(tensor, DeviceTensor):
        return torch.nn.Parameter
    return class_of(tensor)


def _of_one_class(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors are of one class, as far as a device tensor tells."""
    if isinstance(a, DeviceTensor) or isinstance(b, DeviceTensor):
        one, other = _class_of(a), _class_of(b)
        return one is other or all(
            issubclass(cls, torch.nn.Parameter) for cls in (one, other)
        )
    return type(a) is type(b)


def shape_of(tensor: Tensor) -> list[Any]:
    """Return the shape of a tensor, of a nested one the shapes of its parts."""
    if tensor.is_nested:
        return [shape_of(part) for part in _parts(tensor)]
    return list(tensor.shape)


def _parts(nested: Tensor) -> Iterator[Tensor]:
    """Iterate the tensors in a nested one."""
    yield from nested.unbind()


def same_numbers(a: Tensor, b: Tensor) -> bool:
    """Compare the numbers of two tensors of one dtype and shape; meta ones have none.

    Streams:
        The host blocks until the numbers of device tensors are there.
    """
    if a.is_meta or b.is_meta:
        return True
    a, b = a.detach(), b.detach()
    if a.is_nested:
        return all(map(same_numbers, _parts(a), _parts(b)))
    a, b = _comparable(a), _comparable(b)
    has_nan = a.dtype.is_floating_point or a.dtype.is_complex
    same = (a == b) | ((a != a) & (b != b)) if has_nan else a == b  # noqa: PLR0124  # NaN
    return bool(same.all())


def _comparable(tensor: Tensor) -> Tensor:
    """Return the numbers of a tensor in a form whose kernels compare."""
    tensor = tensor.cpu()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    if type(tensor) is not Tensor:
        tensor = tensor.as_subclass(Tensor)
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.dtype.is_floating_point and tensor.element_size() == 1:
        return tensor.float()
    return tensor
