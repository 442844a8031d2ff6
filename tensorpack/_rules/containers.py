"""The kinds of containers: one row each, with all that the package knows of a kind.

A kind is added here and nowhere else: both readers of annotations, the walk, the
generated code and the examples of the test kit go by these rows.
"""

import collections
import collections.abc
import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

__all__ = [
    "BY_ANNOTATION",
    "BY_FULL_NAME",
    "CONTAINERS",
    "MAPPING_CLASSES",
    "SEQUENCE_CLASSES",
    "Container",
    "classes_of",
    "like",
    "overlap",
]


def _from_items(value: Any, items: Any) -> Any:
    return type(value)(items)


@dataclasses.dataclass(frozen=True)
class Container:
    """A kind of container.

    Attributes:
        name: the kind, as an annotation writes it.
        holds: how an item is addressed: by its `"index"` or `"key"`; the items of a
            `"set"` have no address, so they must be host values.
        cls: the class that a value of the kind has, exactly; of an abstract kind, the
            class of an example.
        annotations: what names the kind in an annotation, as `typing.get_origin` gives
            it.
        full_names: the same, as mypy names it.
        takes_in: the other kinds whose values an annotation of this kind accepts.
        is_abstract: whether the kind has no class of its own.
        like: makes a container of a value's own class from new items.
        example: makes a container from items alone.
    """

    name: str
    holds: str
    cls: Any
    annotations: tuple[object, ...]
    full_names: tuple[str, ...]
    takes_in: tuple[str, ...] = ()
    is_abstract: bool = False
    like: Callable[[Any, Any], Any] = _from_items
    example: Callable[[Any], Any] | None = None

    def make(self, items: Any) -> Any:
        """Return a container of the kind with some items."""
        return (self.example or self.cls)(items)


CONTAINERS: Mapping[str, Container] = {
    row.name: row
    for row in (
        Container("list", "index", list, (list,), ("builtins.list",)),
        Container("tuple", "index", tuple, (tuple,), ("builtins.tuple",)),
        Container(
            "deque",
            "index",
            collections.deque,
            (collections.deque,),
            ("collections.deque",),
            like=lambda value, items: collections.deque(items, value.maxlen),
        ),
        Container(
            "Sequence",
            "index",
            list,
            (collections.abc.Sequence, collections.abc.MutableSequence),
            ("typing.Sequence", "typing.MutableSequence"),
            takes_in=("list", "tuple", "deque"),
            is_abstract=True,
        ),
        Container(
            "dict",
            "key",
            dict,
            (dict,),
            ("builtins.dict",),
            takes_in=("OrderedDict", "defaultdict"),
        ),
        Container(
            "OrderedDict",
            "key",
            collections.OrderedDict,
            (collections.OrderedDict,),
            ("collections.OrderedDict",),
        ),
        Container(
            "defaultdict",
            "key",
            collections.defaultdict,
            (collections.defaultdict,),
            ("collections.defaultdict",),
            like=lambda value, items: collections.defaultdict(
                value.default_factory, items
            ),
            example=lambda items: collections.defaultdict(list, items),
        ),
        Container(
            "Mapping",
            "key",
            dict,
            (collections.abc.Mapping, collections.abc.MutableMapping),
            ("typing.Mapping", "typing.MutableMapping"),
            takes_in=("dict", "OrderedDict", "defaultdict"),
            is_abstract=True,
        ),
        Container(
            "set",
            "set",
            set,
            (set, collections.abc.Set),
            ("builtins.set", "typing.AbstractSet"),
            takes_in=("frozenset",),
        ),
        Container("frozenset", "set", frozenset, (frozenset,), ("builtins.frozenset",)),
    )
}
"""Every kind, by its name."""

BY_ANNOTATION: Mapping[object, Container] = {
    named: row for row in CONTAINERS.values() for named in row.annotations
}
BY_FULL_NAME: Mapping[str, Container] = {
    name: row for row in CONTAINERS.values() for name in row.full_names
}


def _classes(holds: str) -> frozenset[type]:
    return frozenset(row.cls for row in CONTAINERS.values() if row.holds == holds)


SEQUENCE_CLASSES = _classes("index")
MAPPING_CLASSES = _classes("key")

_LIKE: Mapping[type, Callable[[Any, Any], Any]] = {
    row.cls: row.like for row in CONTAINERS.values() if not row.is_abstract
}


def classes_of(kind: str) -> tuple[type, ...]:
    """Return the classes that a value of a kind has: one, unless it is abstract."""
    row = CONTAINERS[kind]
    if not row.is_abstract:
        return (row.cls,)
    return tuple(CONTAINERS[taken].cls for taken in row.takes_in)


def overlap(kind: str, other: str) -> bool:
    """Return whether a value could be of either of two kinds."""
    return (
        kind == other
        or kind in CONTAINERS[other].takes_in
        or other in CONTAINERS[kind].takes_in
    )


def like(value: Any, items: Any) -> Any:
    """Return a container of a value's own class with new items."""
    cls = type(value)
    if cls is type(items):
        return items
    if hasattr(cls, "_fields"):
        return tuple.__new__(cls, items)
    return _LIKE[cls](value, items)
