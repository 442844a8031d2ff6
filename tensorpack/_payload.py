"""The decorator and the typed base: wires the rooms together, sets the mark last."""

import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar, dataclass_transform, overload

import attrs
import torch

import tensorpack.integrations.adapters  # noqa: F401  # registers them
from tensorpack._functions import moved_copy
from tensorpack._install import (
    Refused,
    collecting,
    install,
    methods_of,
    restored_on_error,
)
from tensorpack._leaves.operations import check_methods, moved, pinned
from tensorpack._leaves.record import record
from tensorpack._leaves.tracing import let_trace_init
from tensorpack._plan.checks import (
    check_body,
    check_class,
    check_field_names,
    check_hash,
    check_post_init,
    listed,
    unusable_defaults,
)
from tensorpack._plan.fields import plan_class
from tensorpack._plan.makers import is_made
from tensorpack._plan.making import make
from tensorpack._plan.namespace import Namespace
from tensorpack._repr import payload_repr
from tensorpack._rules.markers import REFUSED
from tensorpack._walk.build import prepared, rebuild
from tensorpack._walk.values import payload_plan
from tensorpack._walk.walk import walk
from tensorpack.errors import DefinitionError, LifetimeError

__all__ = ["Payload", "payload"]

T = TypeVar("T")


class Payload:
    """Shows the methods of a payload to type checkers. It may be left out.

    A class that derives from it still has to be decorated with `@payload`.
    """

    __slots__ = ()
    # Lets type checkers accept payloads in `attrs.fields` and its kin.
    __attrs_attrs__: ClassVar[Any]
    __tensorpack_base__ = True

    def to_device(
        self, device: torch.device | str | int, non_blocking: bool = False
    ) -> Self:
        """Give a twin of the payload with every leaf on `device`.

        Host fields are the same objects. No `__init__`, converter, validator or
        post-init runs again; a leaf that stands in two fields stays one object.

        Args:
            device: where to: a device, its name or its index.
            non_blocking: let copies from pinned memory go on while the host does. A
                move to the host always blocks.

        Raises:
            LeafError: a value is not what its annotation says; nothing was changed.
            UndecoratedError: the class, or one inside, is not decorated.
            CycleError: the payload holds itself.

        Streams:
            Copies are queued on the current stream of `device`. Order and lifetime
            across streams are the caller's, or `CopyStream`'s.
        """
        found = walk(self)
        if found.hooked:
            return moved_copy(self, device, non_blocking=non_blocking)
        # `moved_copy`, spelled out: see Note [cold caches].
        new = moved(
            found.leaves,
            device,
            non_blocking=non_blocking,
            only_tensors=found.only_tensors,
        )
        return rebuild(self, new)

    def record_stream(self, stream: torch.Stream, /) -> None:
        """Mark every device leaf as used by `stream`.

        Host and meta leaves are passed over. `Derived` fields are recorded too, and so
        is what cached properties keep.

        Raises:
            LeafError: a value is not what its annotation says.

        Streams:
            Keeps one promise, device lifetime: no leaf's block is handed out before
            the work that `stream` has queued when the block is freed is done. Call it
            after `stream` waits for the copy, and before the payload is dropped. The
            host does not block.
        """
        found = walk(self)
        record(
            found.recordable(),
            stream,
            where=found.where,
            only_tensors=found.only_tensors,
        )

    @classmethod
    def payload_keys(cls) -> tuple[str, ...]:
        """Name the fields that travel, in definition order."""
        keys: tuple[str, ...] = payload_plan(cls).payload_keys
        return keys

    @classmethod
    def host_keys(cls) -> tuple[str, ...]:
        """Name the fields that stay where they are, in definition order.

        `Derived` fields are in neither list: a twin gets their default.
        """
        keys: tuple[str, ...] = payload_plan(cls).host_keys
        return keys

    def to(self, device: torch.device | str | int, non_blocking: bool = False) -> Self:
        """Do what `to_device` does, under the name that trainers call."""
        return self.to_device(device, non_blocking=non_blocking)

    def pin_memory(self) -> Self:
        """Give a twin with every host leaf in pinned memory.

        Leaves on a device stay as they are. `DataLoader(pin_memory=True)` calls this.
        """
        value, found = prepared(self)
        check_methods(found.leaves, "pin_memory", found.root, found.key_of)
        twin: Self = rebuild(value, pinned(found.leaves))
        return twin


@overload
@dataclass_transform(eq_default=False, field_specifiers=(attrs.field,))
def payload(
    cls: type[T],
    /,
    *,
    fields: Mapping[str, object] | None = None,
    keep: Sequence[str] = (),
) -> type[T]: ...


@overload
@dataclass_transform(eq_default=False, field_specifiers=(attrs.field,))
def payload(
    *,
    fields: Mapping[str, object] | None = None,
    keep: Sequence[str] = (),
    these: Mapping[str, Any] | None = None,
    repr: bool = True,
    unsafe_hash: bool | None = None,
    init: bool = True,
    slots: bool = False,
    frozen: bool = False,
    weakref_slot: bool = True,
    str: bool = False,
    auto_attribs: bool | None = None,
    kw_only: bool = False,
    auto_exc: bool = True,
    eq: bool = False,
    order: bool = False,
    auto_detect: bool = True,
    getstate_setstate: bool | None = None,
    on_setattr: Any = None,
    field_transformer: Any = None,
    match_args: bool = True,
) -> Callable[[type[T]], type[T]]: ...


def payload(
    cls: type[Any] | None = None,
    /,
    *,
    fields: Mapping[str, object] | None = None,
    keep: Sequence[str] = (),
    **options: Any,
) -> Any:
    """Give a class the traversal behind `to_device`, `record_stream` and the keys.

    On a plain class it makes the attrs class first, with the options of
    `attrs.define` (`eq` and `order` off: `Tensor == Tensor` is no truth value). Over a
    class that attrs, `dataclasses` or msgspec has made, and for `payload(TheirClass)`,
    it only adds the methods.

    Args:
        cls: the class.
        fields: annotations that replace those of the class, by the name of a field or
            cached property.
        keep: generated names that the class body defines itself, and that stay. They
            serve calls on the object itself; inside another payload the object still
            travels by its plan.
        **options: of `attrs.define`, for a plain class.

    Returns:
        The class, or the decorator if only options were given.

    Raises:
        LifetimeError: some fields have no lifetime support; it lists all of them.
        DefinitionError: the class body defines a generated name, or an option does not
            fit.

    >>> from torch import Tensor
    >>> @payload
    ... class Batch(Payload):
    ...     ids: Tensor
    ...     size: int = 1
    >>> Batch.payload_keys(), Batch.host_keys()
    (('ids',), ('size',))
    >>> Batch(ids=torch.zeros(2, 3)).to_device("meta")
    Batch(ids=float32[2, 3] meta, size=1)
    """
    if cls is not None:
        return _make(cls, fields or {}, keep, options)
    return lambda plain: _make(plain, fields or {}, keep, options)


def _make(
    cls: type,
    corrections: Mapping[str, object],
    keep: Sequence[str],
    options: dict[str, Any],
) -> type:
    """Make a payload of a class, or note the refusal where refusals are collected."""
    try:
        return _made(cls, corrections, keep, options)
    except (DefinitionError, LifetimeError) as error:
        lists = collecting()
        if not lists or not isinstance(cls, type):
            raise
        module, line = _decorated_at(cls)
        made = _without_methods(cls, corrections, options)
        refused = Refused(made, error, corrections, module, line)
        for refusals in lists:
            refusals.append(refused)
        with contextlib.suppress(TypeError, AttributeError):  # a class made in C
            setattr(made, REFUSED, refused)
        return made


def _without_methods(
    cls: type, corrections: Mapping[str, object], options: dict[str, Any]
) -> type:
    """Return a refused class as attrs would have made it, if it can."""
    try:
        check_class(cls)
        return cls if is_made(cls) else make(cls, options, corrections, payload_repr)
    except (DefinitionError, TypeError, ValueError):
        return cls


def _decorated_at(cls: type) -> tuple[str, int]:
    """Return the module that a refusal is reported by, and the line of the call.

    A class of another project is reported where it is adopted.
    """
    frame = sys._getframe(1)
    while frame.f_back and frame.f_globals.get("__name__", __name__) == __name__:
        frame = frame.f_back
    caller = str(frame.f_globals.get("__name__"))
    same = caller.partition(".")[0] == str(cls.__module__).partition(".")[0]
    return (cls.__module__ if same else caller), frame.f_lineno


def _made(
    cls: type,
    corrections: Mapping[str, object],
    keep: Sequence[str],
    options: dict[str, Any],
) -> type:
    """Make a payload of a class; leave it as it was if anything is wrong."""
    check_class(cls)
    adopted = is_made(cls)
    if adopted:
        check_field_names(cls)
    check_body(cls, keep, vars(Payload))
    if adopted and options:
        raise DefinitionError(
            cls=cls.__qualname__,
            problem="attrs, `dataclasses` or msgspec has made it already, so "
            f"{listed(options)} cannot apply",
            remedy="Pass the options to the decorator that makes the class.",
        )
    with restored_on_error(cls):
        made = cls if adopted else _define(cls, options, corrections)
        check_field_names(made)
        methods, notes = methods_of(made, keep, vars(Payload))
        namespace = Namespace.of(made, _enclosing(made))
        install(made, plan_class(made, namespace, corrections, notes), methods)
    let_trace_init(made)
    return made


def _define(
    cls: type, options: dict[str, Any], corrections: Mapping[str, object]
) -> type:
    """Have attrs make a plain class, after the checks of its body."""
    check_post_init(cls)
    refusals = tuple(unusable_defaults(cls))
    if refusals:
        raise LifetimeError(cls=cls.__qualname__, refusals=refusals)
    made = make(cls, options, corrections, payload_repr)
    check_hash(made)
    return made


def _enclosing(cls: type) -> dict[str, object]:
    """Return the names of the functions around a local class, the innermost first.

    They are found by the function names in the class's qualified name, so a wrapper
    of the decorator changes nothing.
    """
    around = [p.rsplit(".", 1)[-1] for p in cls.__qualname__.split(".<locals>")[:-1]]
    found: dict[str, object] = {}
    frame = sys._getframe(1)  # there is no other way to local names
    while around and frame is not None:
        if frame.f_code.co_name == around[-1]:
            around.pop()
            found = {**frame.f_locals, **found}
        frame = frame.f_back  # type: ignore[assignment]  # ends with None
    return found
