"""The host part of a message: everything of a payload but its leaves.

It is pickled, as `torch.distributed` pickles objects: send it between ranks of one job
only. Leaves are left out and named by number. Fields that belong to one rank
(`Borrowed`, `Resident`) are left out too and arrive as their default.
"""

import copy
import hashlib
import io
import pickle
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tensorpack._plan.makers import setter_of
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.markers import PLAN
from tensorpack._walk.build import rebuild
from tensorpack.errors import RankError

__all__ = ["dump", "load", "numbered"]


def numbered(leaves: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Return each leaf once, and the number of each place's leaf among them."""
    order: dict[int, int] = {}
    once: list[Any] = []
    for leaf in leaves:
        if id(leaf) not in order:
            order[id(leaf)] = len(once)
            once.append(leaf)
    return once, [order[id(leaf)] for leaf in leaves]


def dump(value: Any, holes: Sequence[Tensor], numbers: Sequence[int]) -> bytes:
    """Write a walked value without its leaves.

    Args:
        value: what was walked.
        holes: a meta tensor for each leaf, each object once.
        numbers: for each place of a leaf in plan order, the number of its hole.
    """
    empty = rebuild(value, [holes[number] for number in numbers])
    text = io.BytesIO()
    pickler = _Pickler(text, {id(hole): n for n, hole in enumerate(holes)})
    pickler.dump(empty)
    return pickle.dumps((pickler.digests, text.getvalue()), protocol=5)


def load(text: bytes, once: Sequence[Tensor]) -> Any:
    """Read what `dump` has written, with new leaves in their places.

    Raises:
        RankError: a class is not there, or has other fields than the sender's.
    """
    digests, body = pickle.loads(text)  # noqa: S301  # from a rank of the same job
    try:
        for (module, name), digest in digests.items():
            _check(_Unpickler(io.BytesIO(), ()).find_class(module, name), digest)
        return _Unpickler(io.BytesIO(body), once).load()
    except (ImportError, AttributeError) as error:
        raise RankError(
            problem=f"this rank does not have what the sender has: {error}",
            remedy="Import the same modules, in the same version, on every rank.",
        ) from error


class _Pickler(pickle.Pickler):
    """Writes leaves by their number, and notes the payload classes that it meets."""

    def __init__(self, file: io.BytesIO, numbers: Mapping[int, int]) -> None:
        super().__init__(file, protocol=5)
        self._numbers = numbers
        self.digests: dict[tuple[str, str], bytes] = {}

    def persistent_id(self, obj: object) -> int | None:
        """Return the number of a leaf."""
        return self._numbers.get(id(obj)) if type(obj) is Tensor else None

    def reducer_override(self, obj: Any) -> Any:
        """Write a payload without the fields that belong to this rank."""
        cls = type(obj)
        plan = vars(cls).get(PLAN)
        if not isinstance(plan, ClassPlan):
            return NotImplemented
        self.digests[cls.__module__, cls.__qualname__] = _digest(plan)
        own = [f.name for f in plan.fields if f.role in _OF_ONE_RANK]
        if not own:
            return NotImplemented
        sent = copy.copy(obj)
        put = setter_of(cls)
        for name in own:
            put(sent, name, _default(cls, name))
        return sent.__reduce_ex__(5)


class _Unpickler(pickle.Unpickler):
    """Puts new leaves where the sender had its own."""

    def __init__(self, file: io.BytesIO, leaves: Sequence[Tensor]) -> None:
        super().__init__(file)
        self._leaves = leaves

    def persistent_load(self, pid: int) -> Tensor:
        """Return a leaf by its number."""
        return self._leaves[pid]


_OF_ONE_RANK = frozenset({"borrowed", "resident"})


def _check(cls: type, digest: bytes) -> None:
    """Raise for a class that is not the sender's.

    Raises:
        RankError: its fields, or what they mean, differ.
    """
    plan = vars(cls).get(PLAN)
    if not isinstance(plan, ClassPlan) or _digest(plan) != digest:
        raise RankError(
            problem=f"the class `{cls.__module__}.{cls.__qualname__}` of this rank has "
            "other fields than the sender's",
            remedy="Run the same version of the class on every rank.",
        )


def _default(cls: Any, name: str) -> object:
    """Return the default of a field that does not travel; None if it has none."""
    made = getattr(cls, "__attrs_attrs__", None)
    default: Any = getattr(made, name).default if made is not None else None
    if hasattr(default, "factory") and hasattr(default, "takes_self"):
        return None if default.takes_self else default.factory()
    if made is None:
        return getattr(cls, name, None) if hasattr(cls, "__dict__") else None
    return None if type(default).__qualname__ == "_Nothing" else default


_digests: "weakref.WeakKeyDictionary[type, bytes]" = weakref.WeakKeyDictionary()


def _digest(plan: ClassPlan) -> bytes:
    """Return eight bytes that tell versions of a class apart: its fields in order."""
    found = _digests.get(plan.cls)
    if found is None:
        rows = [(f.name, f.annotation, f.role) for f in plan.fields]
        found = hashlib.blake2b(repr(rows).encode(), digest_size=8).digest()
        _digests[plan.cls] = found
    return found
