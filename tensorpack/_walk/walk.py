"""The walk of a whole object: its leaves, checked, with or without their keys."""

from typing import Any

from torch import Tensor

from tensorpack._leaves.tracing import TRACES_ALL, let_trace_as
from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.markers import PLAN
from tensorpack._walk.traversal import Entries, Walk

__all__ = ["Entries", "Pair", "Walk", "pairs", "walk"]

Pair = tuple[str, Any]
"""The key of a leaf, and the leaf."""

_PLAIN = {Tensor}


def walk(value: Any) -> Walk:
    """Walk a payload, or any value by the types found in it.

    Raises:
        LeafError: something in it is not what its annotation says.
    """
    cls = type(value)
    plan = getattr(cls, PLAN, None)
    if plan.__class__ is ClassPlan and plan.cls is cls:
        # `Walk(value).run()`, spelled out: see Note [cold caches].
        found = object.__new__(Walk)
        found.value, found.keyed, found.hooked = value, False, plan.hooked
        found.leaves = []
        found.add = found.leaves.append
        found._open, found._aside = [id(value)], None
        cls.__tensorpack_leaves__(value, found, "")
    else:
        found = Walk(value).run()
    leaves = found.leaves
    if found._aside is not None:
        found._aside.settle()
        leaves = found.recordable()
    kinds = set(map(type, leaves))
    found.plain = kinds == _PLAIN
    if not found.plain:
        found.check(kinds)
    return found


def _walk_step_by_step(value: Any) -> Walk:
    """Stand for `walk` where `id` cannot be traced."""
    found = Walk(value).run()
    kinds = set(map(type, found.recordable()))
    found.plain = kinds == _PLAIN
    found.check(kinds)
    return found


if not TRACES_ALL:
    let_trace_as(walk, _walk_step_by_step)


def pairs(value: Any) -> list[Pair]:
    """List the leaves that travel, each with its key."""
    walk(value)
    return Walk(value, keyed=True).run().leaves
