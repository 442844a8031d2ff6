"""The free functions: what is done to payloads, tensors, containers and mappings."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

import tensorpack.integrations.adapters  # noqa: F401  # registers them
from tensorpack._leaves.operations import (
    check_methods,
    cloned,
    compacted,
    moved,
)
from tensorpack._leaves.record import record
from tensorpack._plan.makers import setter_of
from tensorpack._walk.build import prepared, rebuild
from tensorpack._walk.mappings import check_replaceable, entries_of, merged
from tensorpack._walk.values import a_class, is_payload, payload_plan
from tensorpack._walk.walk import pairs, walk
from tensorpack.errors import its_fields

__all__ = [
    "clone",
    "compact",
    "evolve",
    "map_tensors",
    "opaque",
    "record_stream",
    "tensors",
    "to_device",
]

T = TypeVar("T")


def tensors(value: object, /) -> Iterator[tuple[str, Tensor]]:
    """Iterate the tensors that travel, each with its key, in plan order.

    `Derived` fields and cached properties do not travel and are left out.

    >>> from tensorpack import payload
    >>> @payload
    ... class Batch:
    ...     ids: Tensor
    ...     images: list[Tensor] | None = None
    >>> [key for key, _ in tensors(Batch(ids=torch.ones(2), images=[torch.ones(1)]))]
    ['ids', 'images[0]']
    """
    return iter([pair for pair in pairs(value) if isinstance(pair[1], Tensor)])


def opaque(value: object, /) -> Iterator[tuple[str, object]]:
    """Iterate the leaves that are not tensors, each with its key, in plan order."""
    return iter([pair for pair in pairs(value) if not isinstance(pair[1], Tensor)])


def clone(value: T, /) -> T:
    """Copy a value, with new storage for every leaf; host fields are the same objects.

    Streams:
        Copies are queued on the current stream of each leaf's device; the host does
        not block.

    >>> from tensorpack import payload
    >>> @payload
    ... class Batch:
    ...     ids: Tensor
    >>> batch = Batch(ids=torch.ones(2))
    >>> clone(batch).ids is batch.ids
    False
    """
    found = walk(value)
    check_methods(found.leaves, "clone", found.root, found.key_of)
    return rebuild(value, cloned(found.leaves))


def map_tensors(function: Callable[[Tensor], Tensor], value: T, /) -> T:
    """Return a new object with a function of every tensor that travels.

    A tensor in two fields is asked once. Other leaves and host fields are the same
    objects, and no `__init__` runs again.

    Args:
        function: makes the new tensor from the old one.
        value: a payload, a tensor, or a container of them.

    Raises:
        TypeError: the function gave no tensor.

    >>> from tensorpack import payload
    >>> @payload
    ... class Batch:
    ...     ids: Tensor
    >>> map_tensors(torch.Tensor.half, Batch(ids=torch.ones(2))).ids.dtype
    torch.float16
    """
    found = walk(value)
    done: dict[int, Tensor] = {}
    new: list[Any] = []
    for leaf in found.leaves:
        if not isinstance(leaf, Tensor):
            new.append(leaf)
            continue
        if id(leaf) not in done:
            mapped: object = function(leaf)
            if not isinstance(mapped, Tensor):
                msg = (
                    f"`{found.key_of(leaf)}`: the function gave "
                    f"{a_class(type(mapped))}, and only a tensor fits there. Return a "
                    "tensor."
                )
                raise TypeError(msg)
            done[id(leaf)] = mapped
        new.append(done[id(leaf)])
    return rebuild(value, new)


def compact(value: T, /) -> T:
    """Copy a value so that its leaves hold no memory but their own.

    A leaf that is a view of a larger tensor, or that was packed for a transfer, gets
    its own memory; the others are the same objects, as are tensors whose class or
    layout is not plain. Call it before `pickle`, `torch.save` or a queue between
    processes: they ship the whole memory of each leaf.

    Streams:
        Copies are queued on the current stream of each leaf's device; the host does
        not block.

    >>> from tensorpack import payload
    >>> @payload
    ... class Batch:
    ...     row: Tensor
    >>> batch = Batch(row=torch.ones(1000, 8)[0])
    >>> [x.row.untyped_storage().nbytes() for x in (batch, compact(batch))]
    [32000, 32]
    """
    return rebuild(value, compacted(walk(value).leaves))


def evolve(value: T, /, **changes: object) -> T:
    """Make a changed copy of a payload without running its `__init__`.

    Leaves are shared with the original; `Derived` fields get their default.

    Args:
        value: a payload, frozen or not.
        **changes: new values by field name (not by the alias of `__init__`).

    Raises:
        TypeError: a name is not a field, or `value` is not a payload.

    >>> from tensorpack import payload
    >>> @payload(frozen=True)
    ... class Batch:
    ...     ids: Tensor
    ...     size: int = 1
    >>> evolve(Batch(ids=torch.ones(2)), size=2).size
    2
    """
    if not is_payload(value):
        msg = (
            f"`evolve` takes a payload, and this is {a_class(type(value))}. "
            "Pass an instance of a class decorated with `@payload`."
        )
        raise TypeError(msg)
    names = [f.name for f in payload_plan(type(value)).fields if f.role != "property"]
    unknown = [f"`{name}`" for name in changes if name not in names]
    if unknown:
        msg = (
            f"`{type(value).__qualname__}` has no field {', '.join(unknown)}. "
            + its_fields(names)
        )
        raise TypeError(msg)
    new = rebuild(value, walk(value).leaves)
    put = setter_of(type(value))
    for name, changed in changes.items():
        put(new, name, changed)
    return new


def to_device(
    value: T,
    device: torch.device | str | int,
    *,
    keys: Iterable[str] | None = None,
    non_blocking: bool = False,
) -> T:
    """Return a copy of any value with every leaf on `device`.

    Args:
        value: a payload, a tensor, a container of them, or with `keys` a mapping.
        device: where to: a device, its name or its index.
        keys: of a mapping, the entries that travel. Others pass through untouched; a
            missing entry and None are skipped.
        non_blocking: let copies from pinned memory go on while the host does. A move
            to the host always blocks.

    Raises:
        LeafError: a value has no lifetime support; the error names its key. Nothing
            has been moved then.

    Streams:
        Copies are queued on the current stream of `device`. None of the promises of
        order and lifetime across streams is kept here: `CopyStream` does that.

    >>> mapping = {"ids": torch.ones(2), "step": 7}
    >>> to_device(mapping, "meta", keys=["ids"])["ids"].device.type
    'meta'
    """
    if keys is None:
        return moved_copy(value, device, non_blocking=non_blocking)
    entries = entries_of(value, keys)
    check_replaceable(value)
    return merged(value, moved_copy(entries, device, non_blocking=non_blocking))


def moved_copy(value: T, device: torch.device | str | int, *, non_blocking: bool) -> T:
    """Make a copy of a value on a device, by its plan."""
    value, found = prepared(value)
    new = moved(
        found.leaves, device, non_blocking=non_blocking, only_tensors=found.only_tensors
    )
    return rebuild(value, new)


def record_stream(
    value: object, stream: torch.Stream, *, keys: Iterable[str] | None = None
) -> None:
    """Mark every device leaf of any value as used by `stream`.

    Args:
        value: a payload, a tensor, a container of them, or with `keys` a mapping.
        stream: the stream whose queued work reads the leaves.
        keys: of a mapping, the entries whose leaves are recorded.

    Raises:
        LeafError: a value has no lifetime support; the error names its key.

    Streams:
        Keeps one promise, device lifetime: the allocator does not hand a leaf's block
        out before the work that `stream` has queued when the block is freed is done.
        Call it after `stream` waits for the copy, and before the leaf is dropped. Host
        and meta leaves are passed over. The host does not block.
    """
    found = walk(value if keys is None else entries_of(value, keys))
    record(
        found.recordable(), stream, where=found.where, only_tensors=found.only_tensors
    )
