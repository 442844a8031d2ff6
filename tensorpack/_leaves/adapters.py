"""What lifetime support means: the protocol and the adapters.

A value has lifetime support when it can be moved to a device and when a stream can be
recorded on every block of device memory that it owns.
"""

import threading
from collections.abc import Callable, Sequence
from types import UnionType
from typing import (
    Any,
    ClassVar,
    Generic,
    Protocol,
    Self,
    TypeVar,
    Union,
    get_args,
    get_origin,
    runtime_checkable,
)

import torch
from torch import Tensor

from tensorpack.errors import DefinitionError

__all__ = [
    "LifetimeAdapter",
    "SupportsLifetime",
    "adapter_of",
    "is_tensor_type",
    "of_class",
    "owns_lifetime",
    "register",
    "register_late",
    "register_marked",
    "supports_lifetime",
]

T = TypeVar("T")


@runtime_checkable
class SupportsLifetime(Protocol):
    """A value that moves itself and records streams on itself, as payloads do."""

    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self:
        """Return a copy of the value on `device`."""

    def record_stream(self, stream: torch.Stream, /) -> None:
        """Mark the value's device memory as used by `stream`."""


class LifetimeAdapter(Generic[T]):
    """Lifetime support for a type that has none: derive, and name the type.

    Defining the subclass is enough: the type `T` is then accepted as a field. The
    adapter must be defined before the payload that has such a field.

    >>> class Handle:
    ...     def __init__(self, keys: Tensor, name: str) -> None:
    ...         self.keys, self.name = keys, name
    >>> class HandleAdapter(LifetimeAdapter[Handle]):
    ...     def leaves(self, value: Handle) -> list[Tensor]:
    ...         return [value.keys]
    ...
    ...     def rebuild(self, value: Handle, leaves: Sequence[Tensor]) -> Handle:
    ...         return Handle(leaves[0], value.name)
    >>> adapter_of(Handle)
    <HandleAdapter for Handle>
    """

    adapts: ClassVar[type]

    def leaves(self, value: T) -> Sequence[Tensor]:
        """List every tensor that `value` owns, always in the same order."""
        raise NotImplementedError

    def rebuild(self, value: T, leaves: Sequence[Tensor]) -> T:
        """Make a copy of `value` with other leaves, given in the same order."""
        raise NotImplementedError

    def host(self, value: T) -> Sequence[Tensor]:  # noqa: ARG002  # for subclasses
        """List the tensors of `value` that stay on the host, wherever it is moved.

        A move hands them on as they are, since `rebuild` is not given others. The test
        kit accuses a class of every tensor that is neither listed here nor a leaf.
        """
        return ()

    def __init_subclass__(cls, **kwargs: object) -> None:
        """Register the adapter for the type that its base names."""
        super().__init_subclass__(**kwargs)
        adapted = _adapted_type(cls)
        if adapted is None:
            return
        cls.adapts = adapted
        for name in ("leaves", "rebuild"):
            if getattr(cls, name) is getattr(LifetimeAdapter, name):
                raise DefinitionError(
                    cls=cls.__qualname__,
                    problem=f"an adapter needs its own `{name}`",
                    remedy=f"Define `{name}` in `{cls.__qualname__}`.",
                )
        _add(adapted, cls())

    def __repr__(self) -> str:
        """Name the adapter and its type."""
        return f"<{type(self).__qualname__} for {self.adapts.__qualname__}>"


def _adapted_type(cls: type) -> type | None:
    """Return the class that an adapter class names in its base, if it names one."""
    for base in getattr(cls, "__orig_bases__", ()):
        origin = get_origin(base)
        if isinstance(origin, type) and issubclass(origin, LifetimeAdapter):
            (argument,) = get_args(base)
            outer = get_origin(argument) or argument
            if isinstance(outer, type) and outer not in (Any, UnionType, Union):
                return outer
            if not isinstance(argument, TypeVar):
                raise DefinitionError(
                    cls=cls.__qualname__,
                    problem=f"`{argument}` is not a class, so it cannot be adapted",
                    remedy="Name a class: `LifetimeAdapter[Handle]`.",
                )
    return None


class _FunctionAdapter(LifetimeAdapter[T]):
    """An adapter made of two functions."""

    def __init__(
        self,
        adapted: type,
        leaves: Callable[[T], Sequence[Tensor]],
        rebuild: Callable[[T, Sequence[Tensor]], T],
        host: Callable[[T], Sequence[Tensor]],
    ) -> None:
        self.adapts = adapted  # type: ignore[misc]  # one class serves many types
        self._leaves = leaves
        self._rebuild = rebuild
        self._host = host

    def leaves(self, value: T) -> Sequence[Tensor]:
        return self._leaves(value)

    def rebuild(self, value: T, leaves: Sequence[Tensor]) -> T:
        return self._rebuild(value, leaves)

    def host(self, value: T) -> Sequence[Tensor]:
        return self._host(value)


class _ReadyAdapter(_FunctionAdapter[T]):
    """A ready adapter for a foreign type; the user may register another."""


def _none(_: object) -> Sequence[Tensor]:
    return ()


_adapters: dict[type, LifetimeAdapter[Any]] = {}
_late: dict[str, tuple[Callable[..., Any], ...]] = {}
_marked: dict[str, tuple[Callable[..., Any], ...]] = {}
_lock = threading.Lock()


def _add(adapted: type, adapter: LifetimeAdapter[Any]) -> None:
    """Put an adapter into the registry, once for each type."""
    if adapted is Tensor or adapted is object:
        raise DefinitionError(
            cls=adapted.__qualname__,
            problem="an adapter for it would take the place of all others",
            remedy="Name the class that lacks lifetime support.",
        )
    with _lock:
        known = _adapters.get(adapted)
        taken = known is not None and not isinstance(known, _ReadyAdapter)
        if taken and not _same_origin(known, adapter):
            raise DefinitionError(
                cls=adapted.__qualname__,
                problem=f"it already has the adapter {known!r}",
                remedy="Keep one adapter for each type.",
            )
        _adapters[adapted] = adapter


def _same_origin(one: object, other: object) -> bool:
    """Return whether an adapter class was defined again, as by a module reload."""
    a, b = type(one), type(other)
    if issubclass(a, _FunctionAdapter) or issubclass(b, _FunctionAdapter):
        return False
    return (a.__module__, a.__qualname__) == (b.__module__, b.__qualname__)


def register(
    adapted: type[T],
    *,
    leaves: Callable[[T], Sequence[Tensor]],
    rebuild: Callable[[T, Sequence[Tensor]], T],
    host: Callable[[T], Sequence[Tensor]] = _none,
) -> None:
    """Give a foreign type lifetime support by two functions.

    Args:
        adapted: the type.
        leaves: lists every tensor that a value owns, always in the same order.
        rebuild: makes a copy of a value with other leaves, in the same order.
        host: lists the tensors that stay on the host, wherever a value is moved.

    Raises:
        DefinitionError: the type has an adapter already.
    """
    _add(adapted, _FunctionAdapter(adapted, leaves, rebuild, host))


def register_late(
    qualified_name: str,
    *,
    leaves: Callable[[Any], Sequence[Tensor]],
    rebuild: Callable[[Any, Sequence[Tensor]], Any],
    host: Callable[[Any], Sequence[Tensor]] = _none,
) -> None:
    """Give a type lifetime support without importing it: it is known by its name.

    An adapter that the user registers comes first.
    """
    with _lock:
        _late[qualified_name] = (leaves, rebuild, host)


def register_marked(
    mark: str,
    *,
    leaves: Callable[[Any], Sequence[Tensor]],
    rebuild: Callable[[Any, Sequence[Tensor]], Any],
    host: Callable[[Any], Sequence[Tensor]] = _none,
) -> None:
    """Give types lifetime support that are known by an attribute in their body."""
    with _lock:
        _marked[mark] = (leaves, rebuild, host)


def adapter_of(cls: type) -> LifetimeAdapter[Any] | None:
    """Find the adapter of a class, its own or the nearest base's."""
    for base in cls.__mro__:
        adapter = _adapters.get(base)
        if adapter is not None:
            return adapter
        ready = _late.get(f"{base.__module__}.{base.__qualname__}")
        ready = ready or next((_marked[m] for m in _marked if m in vars(base)), None)
        if ready is not None:
            with _lock:
                return _adapters.setdefault(base, _ReadyAdapter(base, *ready))
    return None


_TensorType = type(torch.LongTensor)


def is_tensor_type(tp: object) -> bool:
    """Return whether an annotation names tensors: a subclass, or `LongTensor` and kin.

    `torch.LongTensor` and kin are not subclasses of `Tensor` at run time: their
    metaclass answers `isinstance` alone.
    """
    return isinstance(tp, _TensorType) or (
        isinstance(tp, type) and issubclass(tp, Tensor)
    )


def of_class(cls: type, name: str) -> Any:
    """Return what a class or a base of it defines under a name; None if none does.

    `getattr` would ask the metaclass too, and one with a `__getattr__` has any name.
    """
    for base in cls.__mro__:
        if name in base.__dict__:
            return base.__dict__[name]
    return None


def supports_lifetime(cls: type) -> bool:
    """Return whether a class has the methods of `SupportsLifetime`.

    The class is asked, not the value: that could answer any name.
    """
    return all(callable(of_class(cls, n)) for n in ("to_device", "record_stream"))


def owns_lifetime(cls: type) -> bool:
    """Return whether values of a class move and record themselves.

    Such a class has its own `record_stream`, `to_device` or `to`, and `is_cuda` or
    `device`: without the last there is no telling whether there is anything to record.
    """
    names = _declared(cls)
    return (
        callable(of_class(cls, "record_stream"))
        and not names.isdisjoint(("to_device", "to"))
        and not names.isdisjoint(("is_cuda", "device"))
    )


def _declared(cls: type) -> set[str]:
    """Return every name that instances of a class have for certain."""
    names: set[str] = set()
    for base in cls.__mro__:
        names.update(base.__dict__)
        for listed in ("__annotations__", "__dataclass_fields__"):
            found = base.__dict__.get(listed)
            names.update(found if isinstance(found, dict) else ())
    return names
