"""The oracle: every tensor that an object reaches, found without its plan.

It knows nothing of payloads, plans and generated code. It looks where values can be:
in containers, in instance dictionaries, in slots, and, for objects that have none of
these, where the garbage collector looks. What code captures (closures, bound methods)
is not owned by the object and not looked into; the arguments of a `partial` are. Of an
adapter it believes what `host` declares, and not what `leaves` lists.
"""

import enum
import gc
import types
from collections import deque
from collections.abc import Iterator, Set as AbstractSet
from typing import Any

import attrs
import torch
from torch import Tensor

from tensorpack._leaves.adapters import adapter_of
from tensorpack.testing._marked import Marks, marks_of

__all__ = ["Found", "Search", "attributes", "children", "is_array", "reachable"]


@attrs.frozen
class Found:
    """A tensor, and the way to it.

    Attributes:
        key: its address, spelled as payloads spell the keys of their leaves.
        tensor: the tensor.
        marks: the markers on the fields on the way.
        on_host: whether an adapter says that the tensor stays on the host.
    """

    key: str
    tensor: Tensor
    marks: Marks
    on_host: bool = False


def reachable(value: object, /) -> Iterator[tuple[str, Tensor]]:
    """Iterate every tensor that an object reaches, with its key.

    The object may be of any class. Neither plans nor annotations are asked. A tensor
    that is in two places comes twice; a container that does, once.

    >>> class Handle:
    ...     def __init__(self):
    ...         self.cache = {"keys": [torch.ones(1)]}
    >>> [key for key, _ in reachable(Handle())]
    ["cache['keys'][0]"]
    """
    return iter([(found.key, found.tensor) for found in Search(value).found])


class Search:
    """One search: what was found, and how the objects on the way hang together.

    Attributes:
        found: the tensors, in each place that holds them.
        seen: every object that was met, by its id.
    """

    def __init__(self, value: object) -> None:
        self.found: list[Found] = []
        self.seen: dict[int, object] = {}
        self._above: dict[int, set[int]] = {}
        self._marks: dict[type, dict[str, Marks]] = {}
        self._on_host: set[int] = set()
        self._visit(value)

    def _visit(self, root: object) -> None:
        """Meet every object once, and a tensor in each place, depth first."""
        rest: list[tuple[object, str, Marks, int]] = [(root, "", Marks(), 0)]
        while rest:
            value, key, marks, above = rest.pop()
            self._above.setdefault(id(value), set()).add(above)
            if isinstance(value, Tensor):
                on_host = id(value) in self._on_host
                self.found.append(Found(key, value, marks, on_host))
            if id(value) in self.seen:
                continue
            self.seen[id(value)] = value
            adapter = None if isinstance(value, Tensor) else adapter_of(type(value))
            if adapter is not None:
                self._on_host.update(map(id, adapter.host(value)))
            inner = list(children(value))
            of_class = self._marks_of(type(value)) if inner else {}
            for part, child in reversed(inner):
                name = part.removeprefix(".")
                below = marks | of_class.get(name, Marks())
                rest.append((child, f"{key}{part}" if key else name, below, id(value)))

    def _marks_of(self, cls: type) -> dict[str, Marks]:
        if cls not in self._marks:
            plain = cls.__module__ in ("builtins", "collections")
            self._marks[cls] = {} if plain else marks_of(cls)
        return self._marks[cls]

    def leading_to(self, tensors: list[Tensor]) -> set[int]:
        """Return the ids of the objects from which one of the tensors is reached."""
        found: set[int] = set()
        rest = [above for t in tensors for above in self._above.get(id(t), ())]
        while rest:
            one = rest.pop()
            if one and one not in found:
                found.add(one)
                rest.extend(self._above[one])
        return found


_ENDS = (
    type,
    enum.Enum,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.MethodType,
    types.CodeType,
    types.FrameType,
    torch.dtype,
    torch.device,
    torch.Stream,
    torch.Event,
)
_ATOMS = frozenset({bool, int, float, complex, str, bytes, type(None)})


def children(value: Any) -> Iterator[tuple[str, object]]:
    """Iterate what an object holds, each with the text that addresses it."""
    if type(value) in _ATOMS or isinstance(value, (*_ENDS, Tensor)):
        return
    inside = list(_items(value))
    inside += attributes(value)
    if not inside and gc.is_tracked(value) and not _is_container(value):
        inside = list(_referents(value))
    yield from inside


def _is_container(value: object) -> bool:
    return isinstance(value, (dict, list, tuple, deque, AbstractSet))


def _items(value: Any) -> Iterator[tuple[str, object]]:
    """Iterate the items of a container."""
    if isinstance(value, (dict, types.MappingProxyType)):
        for name, item in value.items():
            yield f"[{name!r}]", item
        for name in value:
            if type(name) not in _ATOMS:
                yield f".keys()[{name!r}]", name
    elif isinstance(value, tuple) and hasattr(type(value), "_fields"):
        names: Any = type(value)
        yield from zip((f".{n}" for n in names._fields), value, strict=True)
    elif isinstance(value, (list, tuple, deque, AbstractSet)):
        yield from ((f"[{index}]", item) for index, item in enumerate(value))
    elif is_array(value) and value.dtype.hasobject:
        yield from ((f".flat[{i}]", v) for i, v in enumerate(value.ravel().tolist()))


def is_array(value: object) -> bool:
    """Return whether a value is an array of numpy, or of a class derived from it."""
    return any(
        base.__module__ == "numpy" and base.__name__ == "ndarray"
        for base in type(value).__mro__
    )


def attributes(value: Any) -> Iterator[tuple[str, object]]:
    """Iterate the attributes that are stored: in slots, then in the dictionary."""
    for base in reversed(type(value).__mro__):
        for name, member in _slots(base):
            try:
                yield f".{name}", member.__get__(value)
            except AttributeError:  # it is not set
                continue
    # Not `vars`: a class may have an attribute called `__dict__` of its own making.
    stored = getattr(value, "__dict__", None)
    if isinstance(stored, dict):
        yield from ((f".{name}", item) for name, item in stored.items())


def _slots(base: type) -> list[tuple[str, Any]]:
    """List the slots of a class, in the order in which they were written."""
    written = vars(base).get("__slots__", ())
    order = [written] if isinstance(written, str) else list(written)
    found = [
        (name, member)
        for name, member in vars(base).items()
        if isinstance(member, types.MemberDescriptorType)
    ]
    return sorted(found, key=lambda x: order.index(x[0]) if x[0] in order else -1)


def _referents(value: object) -> Iterator[tuple[str, object]]:
    """Iterate what the garbage collector knows of an object of foreign make."""
    for index, item in enumerate(gc.get_referents(value)):
        if not isinstance(item, _ENDS):
            yield f".<referent {index}>", item
