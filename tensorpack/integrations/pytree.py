"""Payloads as nodes of `torch.utils._pytree`: the fields that travel are children."""

# Note [what a tree's structure may hold]
# The structure of a tree outlives its leaves: `torch.compile` and `torch.export` keep
# it. So it holds a bare twin of the payload, in which every field with a child is None,
# and new children are put into a twin of that. None has no child, and neither has the
# host value of a union: torch's trees would take it for a leaf, and `vmap` refuses a
# leaf that is no tensor.

import reprlib
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from torch.utils import _pytree as pytree

from tensorpack._plan.makers import copied_by, setter_of
from tensorpack._rules.nodes import (
    HostNode,
    Node,
    PayloadNode,
    UnionNode,
    children,
    travels,
)
from tensorpack._walk.build import Build
from tensorpack._walk.values import payload_plan

__all__ = ["register_pytree"]

T = TypeVar("T")


class Frame:
    """A payload without its children: what a tree's structure keeps of it.

    Attributes:
        bare: the payload, with None in every field that has a child.
        names: the fields that have a child, in plan order.
    """

    __slots__ = ("bare", "names")

    def __init__(self, bare: Any, names: tuple[str, ...]) -> None:
        self.bare: Any = bare
        self.names: tuple[str, ...] = names

    def __eq__(self, other: object) -> bool:
        """Tell whether two payloads were the same but for their children."""
        if not isinstance(other, Frame):
            return NotImplemented
        if type(self.bare) is not type(other.bare) or self.names != other.names:
            return False
        return all(
            _same(kept, getattr(other.bare, name, None)) for name, kept in self.kept()
        )

    def __hash__(self) -> int:
        """Hash what every equal frame has: host values need not be hashable."""
        return hash((type(self.bare), self.names))

    def __repr__(self) -> str:
        """Name the children, and show what else counts."""
        kept = ", ".join(f"{name}={reprlib.repr(kept)}" for name, kept in self.kept())
        return f"[{', '.join(self.names)}{'; ' * bool(kept)}{kept}]"

    def kept(self) -> Iterator[tuple[str, Any]]:
        """Iterate the fields that belong to the structure, in plan order."""
        for field in payload_plan(type(self.bare)).fields:
            kept = getattr(self.bare, field.name, None)
            if field.name not in self.names and (kept is not None):
                yield field.name, kept


def register_pytree(cls: type[T], /) -> type[T]:
    """Make a payload class a node of torch's trees, with its leaves below it.

    `torch.vmap`, `torch.func`, `torch.export` and `tree_map` then see the tensors in a
    payload, those in containers and in nested payloads too: the payloads that its
    fields name are registered with it. Nobody can know of a subclass that only stands
    in a field by its value: register it as well.

    Each field that travels is a child, unless it is None or a union's host value. The
    other fields belong to the structure: payloads that differ there are trees of
    different structure. `Derived` fields get their default.

    Args:
        cls: the payload class.

    Returns:
        The class, so that it serves as a decorator above `@payload`.

    Raises:
        UndecoratedError: the class is no payload.

    >>> import torch
    >>> from tensorpack import payload
    >>> @register_pytree
    ... @payload
    ... class Batch:
    ...     ids: torch.Tensor
    ...     size: int = 1
    >>> torch.vmap(lambda batch: batch.ids.sum())(Batch(ids=torch.ones(2, 3)))
    tensor([3., 3.])
    """
    plan = payload_plan(cls)
    if cls in pytree.SUPPORTED_NODES:
        return cls
    pytree.register_pytree_node(
        cls,
        _flatten,
        _unflatten,
        serialized_type_name=f"{cls.__module__}.{cls.__qualname__}",
        flatten_with_keys_fn=_flatten_with_keys,
    )
    for field in plan.fields:
        for nested in _nested(field.node):
            register_pytree(nested)
    return cls


def _nested(node: Node) -> Iterator[type]:
    """Iterate the payload classes that a node names."""
    if isinstance(node, PayloadNode):
        yield node.cls
    for child in children(node):
        yield from _nested(child)


def _flatten(value: Any) -> tuple[list[Any], Frame]:
    """Take a payload apart: its children, and what is left."""
    names = tuple(
        field.name
        for field in payload_plan(type(value)).fields
        if travels(field.node)
        and not _is_kept(getattr(value, field.name, None), field.node)
    )
    bare = _twin(value, _Nothing())
    _put(bare, names, [None] * len(names))
    return [getattr(value, name) for name in names], Frame(bare, names)


def _is_kept(value: Any, node: Node) -> bool:
    """Tell whether a field has no child: nothing is there, or a union's host value."""
    if not isinstance(node, UnionNode):
        return value is None
    arms = (arm.types for arm in node.arms if isinstance(arm, HostNode))
    return value is None or any(isinstance(value, types) for types in arms)


def _flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], Frame]:
    """Take a payload apart, each child with its key."""
    found, frame = _flatten(value)
    keys = map(pytree.GetAttrKey, frame.names)
    return list(zip(keys, found, strict=True)), frame


def _unflatten(found: Iterable[Any], frame: Frame) -> Any:
    """Put children into a twin of the bare payload."""
    new = _twin(frame.bare, Build(()))
    _put(new, frame.names, found)
    return new


class _Nothing(Build):
    """Makes a twin without leaves."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(())
        self.take = lambda: None

    def nested(self, value: Any) -> Any:
        """Leave a payload out."""

    adapted = dynamic = nested


def _twin(value: Any, build: Build) -> Any:
    return type(value).__tensorpack_rebuild__(value, build)


def _put(value: Any, names: Iterable[str], found: Iterable[Any]) -> None:
    """Set fields of a twin, frozen or not."""
    for name, child in zip(names, found, strict=True):
        if copied_by(type(value)) is not None:
            setter_of(type(value))(value, name, child)
        else:
            # `torch.compile` traces it under this name only.
            object.__setattr__(value, name, child)


def _same(one: Any, other: Any) -> bool:
    """Tell whether two host values are the same; of arrays, all elements."""
    if one is other or type(one) is not type(other):
        return one is other
    if isinstance(one, dict):
        return list(one) == list(other) and all(_same(one[k], other[k]) for k in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(_same, one, other))
    if getattr(one, "shape", None) != getattr(other, "shape", None):
        return False
    equal = one == other
    return bool(equal.all() if hasattr(equal, "all") else equal)
