"""What a project asserts of its own classes: that nothing is left out."""

import contextlib
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from tensorpack._functions import to_device
from tensorpack._rules.markers import Marker
from tensorpack._walk.values import a_class, is_payload, payload_plan
from tensorpack._walk.walk import walk
from tensorpack.errors import LeafError, TensorpackError
from tensorpack.testing._equality import same_numbers, shape_of
from tensorpack.testing._example import examples
from tensorpack.testing._log import is_under
from tensorpack.testing._oracle import Found, Search
from tensorpack.testing._recorded_streams import RecordedStream
from tensorpack.testing._recording import recorded_world
from tensorpack.testing._twin import device_twin

__all__ = ["assert_covers", "assert_honest", "assert_moves"]


def assert_covers(
    subject: object, /, *, ignore: Collection[str] = (), **values: object
) -> None:
    """Fail unless a class moves and records every tensor that its instances reach.

    It is meant for generated and hand-written methods alike. The tensors are found by
    the oracle. Of a class, examples are made that hold each arm of each union, and two
    items in each container. The class's own `record_stream` must record each that is
    on a device, and its `to_device`, `to` and `pin_memory` must bring each along; what
    the class does not have at all is left out, if it records or moves. `HostOnly` and
    `Borrowed` fields are held to their promises too.

    Args:
        subject: a class, of which an example is made, or an instance on the host.
        ignore: keys that someone else answers for, with everything under them.
        **values: of a class, values by field name, for what its annotations cannot
            tell; the other fields are filled as `example` fills them.

    Raises:
        AssertionError: something is left out, or a field could not be filled; the error
            names the key of each.
        TypeError: no example can be made of the class, or `values` are given beside
            an instance.

    >>> from tensorpack import payload
    >>> @payload
    ... class Batch:
    ...     ids: Tensor
    ...     images: list[Tensor]
    >>> assert_covers(Batch)
    >>> assert_covers(Batch, images=[])
    >>> class Drifted:
    ...     def __init__(self, ids: Tensor, mask: Tensor):
    ...         self.ids, self.mask = ids, mask
    ...
    ...     def record_stream(self, stream):
    ...         self.ids.record_stream(stream)
    >>> assert_covers(Drifted)
    Traceback (most recent call last):
        ...
    AssertionError: `Drifted.record_stream` leaves out `mask`.
    """
    __tracebackhide__ = True
    unfilled: list[str] = []
    if isinstance(subject, type):
        subjects = list(examples(subject, values, unfilled))
    elif values:
        msg = (
            f"`assert_covers` was given {_listed(values)} beside "
            f"{a_class(type(subject))}. Set them in the instance, or pass its class."
        )
        raise TypeError(msg)
    else:
        subjects = [subject]
    found = [problem for value in subjects for problem in _uncovered(value, ignore)]
    found += unfilled
    if found:
        raise AssertionError("\n".join(dict.fromkeys(found)))


def _uncovered(value: Any, ignore: Collection[str]) -> list[str]:
    """Describe what the methods of an object leave out."""
    cls = type(value)
    moves = [name for name in ("to_device", "to") if _moves(cls, name)]
    problems: list[str] = []
    if not hasattr(cls, "record_stream") and not moves:
        problems = [f"{a_class(cls)} has neither `record_stream` nor `to_device`."]
    with _on_any_machine():
        if hasattr(cls, "record_stream"):
            problems += _unrecorded(value, ignore)
        for name in moves:
            moved = getattr(value, name)("cuda:0")
            problems += _unmoved(value, moved, torch.device("cuda:0"), ignore, name)
        if moves and callable(getattr(cls, "pin_memory", None)):
            problems += _unpinned(value, ignore)
    return problems


def _unpinned(value: Any, ignore: Collection[str]) -> Iterator[str]:
    """Describe what `pin_memory` leaves out; a leaf that cannot be pinned raises."""
    try:
        pinned = value.pin_memory()
    except LeafError as error:
        if "has no method `pin_memory`" not in error.problem:
            raise
        return
    yield from _unmoved(value, pinned, torch.device("cpu"), ignore, "pin_memory")


def _moves(cls: type, name: str) -> bool:
    """Return whether a method of a class moves its instances to a device.

    A `to` beside a `to_device` may mean something else: a dtype, say.
    """
    method = getattr(cls, name, None)
    if name == "to_device" or not hasattr(cls, "to_device"):
        return callable(method)
    return callable(method) and "device" in inspect.signature(method).parameters


@contextlib.contextmanager
def _on_any_machine() -> Iterator[None]:
    """Record on this thread; the recorded machine is enough."""
    with recorded_world():
        yield


def _unrecorded(value: Any, ignore: Collection[str]) -> Iterator[str]:
    """Describe which device tensors `record_stream` leaves out, or should have."""
    with recorded_world() as world:
        twin = device_twin(value)
        stuck = _on_host_still(value, twin)
        if stuck:
            problem = f"its copies share {_listed(stuck)}"
            yield f"`{_name(value)}` cannot be put on a device: {problem}."
            return
        stream = RecordedStream("cuda")
        before = len(world.log)
        twin.record_stream(stream)
        name = f"{type(value).__qualname__}.record_stream"
        missing = world.log.missing(twin, stream, ignore=ignore)
        if missing:
            yield f"`{name}` leaves out {_listed(missing)}."
        recorded = {e.storage for e in world.log.raw[before:] if e.call == "record"}
        owed = {n for _, numbers in world.log.owned(twin, ignore) for n in numbers}
        strangers = [
            found.key
            for found in Search(twin).found
            if Marker.BORROWED in found.marks.whole
            and recorded.intersection(world.storages(found.tensor)) - owed
        ]
        if strangers:
            yield f"`{name}` records {_listed(strangers)}, which is borrowed."


def _on_host_still(value: object, twin: object) -> list[str]:
    """List the tensors of an object that its copy should have on the device."""
    there = {f.key: f.tensor for f in Search(twin).found}
    found = Search(value).found
    staying = {
        id(f.tensor) for f in found if f.on_host or f.marks.may(Marker.HOST_ONLY)
    }
    return [
        f.key
        for f in found
        if there.get(f.key) is f.tensor
        and f.tensor.device.type == "cpu"
        and id(f.tensor) not in staying
    ]


def assert_moves(
    payload: object,
    device: torch.device | str | int,
    /,
    *,
    ignore: Collection[str] = (),
) -> None:
    """Fail unless every tensor of an object arrives on a device, and nothing else does.

    The copy must be of the same class, hold the same numbers, keep one object one
    object, and leave the original as it was. Where the device is CUDA's and the
    machine has none, a recorded one stands in.

    Args:
        payload: an object of any class; what has no `to_device` is moved by
            `tensorpack.to_device`.
        device: where to.
        ignore: keys that someone else answers for, with everything under them.

    Raises:
        AssertionError: something else happened; the error names the key of each.

    >>> from tensorpack import payload
    >>> @payload
    ... class Batch:
    ...     ids: Tensor
    >>> assert_moves(Batch(ids=torch.ones(2)), "meta")
    """
    __tracebackhide__ = True
    value: Any = payload
    target = torch.device(device)
    absent = target.type == "cuda" and not torch.cuda.is_available()
    with recorded_world() if absent else contextlib.nullcontext():
        before = [(f.key, f.tensor, f.tensor.device) for f in Search(value).found]
        own = hasattr(type(value), "to_device")
        moved = value.to_device(target) if own else to_device(value, target)
        problems = list(_unmoved(value, moved, target, ignore, "to_device"))
        after = [(f.key, f.tensor, f.tensor.device) for f in Search(value).found]
        changed = [
            key
            for key, tensor, where in before
            if not any(key == k and tensor is t and where == w for k, t, w in after)
        ]
    if changed:
        problems.append(f"`{_name(value)}.to_device` changes {_listed(changed)}.")
    if problems:
        raise AssertionError("\n".join(problems))


def _name(value: object) -> str:
    return type(value).__qualname__


_STAYING = frozenset({Marker.HOST_ONLY, Marker.BORROWED})


def _unmoved(
    value: Any, moved: Any, device: torch.device, ignore: Collection[str], method: str
) -> Iterator[str]:
    """Describe what a move has left out, lost or altered."""
    name = f"{_name(value)}.{method}"
    if type(moved) is not type(value):
        yield f"`{name}` returns {a_class(type(moved))}."
        return
    new = {f.key: f for f in Search(moved).found}
    old = [f for f in Search(value).found if not is_under(f.key, ignore)]
    fates = [(_fate(found, new.get(found.key), device), found.key) for found in old]
    for fate in dict.fromkeys(fate for fate, _ in fates if fate):
        yield f"`{name}` {fate.format(_listed([k for f, k in fates if f == fate]))}."
    if is_payload(value):
        yield from _unlike_a_payload(value, moved, name, old, new)


def _fate(found: Found, twin: Found | None, device: torch.device) -> str:
    """Describe what a move has done wrong to one tensor; "" if nothing."""
    stayed = twin is not None and twin.tensor is found.tensor
    if Marker.DERIVED in found.marks.whole:
        return ""
    if found.marks.whole & _STAYING:
        return "" if stayed else "copies {}, which is `HostOnly` or `Borrowed`"
    if stayed and found.marks.inside & _STAYING:
        return ""
    if twin is None:
        return "loses {}"
    if found.on_host and twin.tensor.device.type != "cpu":
        return "moves {}, which its adapter keeps on the host"
    if not found.on_host and not _is_on(twin.tensor, device):
        return "leaves {} where it was"
    return "" if _is_same(found.tensor, twin.tensor) else "alters {}"


def _unlike_a_payload(
    value: object,
    moved: object,
    name: str,
    old: Collection[Found],
    new: Mapping[str, Found],
) -> Iterator[str]:
    """Describe which promises of generated methods a move has not kept."""
    kept = [
        key
        for key in payload_plan(type(value)).host_keys
        if getattr(value, key, None) is not getattr(moved, key, None)
    ]
    if kept:
        yield f"`{name}` copies {_listed(kept)}, which stays on the host."
    moved_ones = [f for f in old if not _stays(f) and f.key in new]
    split = [f.key for f in moved_ones if not _is_one(f, moved_ones, new)]
    if split:
        yield f"`{name}` makes several objects of {_listed(split)}."


def _stays(found: Found) -> bool:
    """Return whether a tensor stays where it is, or may, or is reset."""
    marked = any(found.marks.may(m) for m in (*_STAYING, Marker.DERIVED))
    return marked or found.on_host


def _is_one(found: Found, old: Collection[Found], new: Mapping[str, Found]) -> bool:
    """Return whether a tensor that is in several places is still one object."""
    others = (o.key for o in old if o.tensor is found.tensor)
    return all(new[key].tensor is new[found.key].tensor for key in others)


def _is_on(tensor: Tensor, device: torch.device) -> bool:
    """Return whether a tensor is on a device; one without an index means any."""
    return tensor.device.type == device.type and device.index in (
        None,
        tensor.device.index,
    )


def _is_same(old: Tensor, new: Tensor) -> bool:
    """Return whether a tensor is a copy of another one."""
    alike = old.dtype is new.dtype and old.layout is new.layout
    return alike and shape_of(old) == shape_of(new) and same_numbers(old, new)


def assert_honest(payload: object, /) -> None:
    """Fail unless every tensor that a payload reaches is where its plan looks for it.

    The traversal looks into host fields only at the surface; here they are searched to
    their end. A tensor hidden in a host container would be neither moved nor recorded,
    and a device tensor under a `HostOnly` field has an unknown owner.

    Raises:
        AssertionError: the payload hides something; the error names the key of each.

    >>> from typing import Any
    >>> from tensorpack import HostOnly, payload
    >>> @payload
    ... class Batch:
    ...     ids: Tensor
    ...     session: HostOnly[list[dict[str, Any]]]
    >>> assert_honest(Batch(ids=torch.ones(2), session=[{"name": "a"}]))
    """
    __tracebackhide__ = True
    try:
        known = _known_to_plan(payload)
    except TensorpackError as error:
        raise AssertionError(str(error)) from None
    hidden, misplaced = [], []
    for found in Search(payload).found:
        if id(found.tensor) in known or found.marks.may(Marker.BORROWED):
            continue
        if found.on_host and found.tensor.device.type == "cpu":
            continue
        if not found.marks.may(Marker.HOST_ONLY):
            hidden.append(found.key)
        elif found.tensor.device.type not in ("cpu", "meta"):
            misplaced.append(found.key)
    problems = []
    if hidden:
        problems.append(
            f"`{_name(payload)}` hides {_listed(hidden)} in a host field. Annotate the "
            "field so that its tensors travel, or mark it `HostOnly`."
        )
    if misplaced:
        problems.append(
            f"`{_name(payload)}` has {_listed(misplaced)} on a device, in a `HostOnly` "
            "field. Mark the field `Borrowed` if it is owned and recorded elsewhere."
        )
    if problems:
        raise AssertionError("\n".join(problems))


def _known_to_plan(payload: object) -> set[int]:
    """Return the ids of the tensors that the walk meets, or that its leaves hold."""
    leaves = walk(payload).recordable()
    return {id(found.tensor) for leaf in leaves for found in Search(leaf).found}


def _listed(keys: Collection[str]) -> str:
    return ", ".join(f"`{key}`" if key else "the tensor" for key in keys)
