"""The form of an object: all that decides where its leaves are and what their axes are.

# Note [forms]
Two objects of one form have their leaves at the same keys, so what was found out about
the one holds for the other. For a class whose fields are leaves and host values alone,
the form is which of them are None; else it is the keys, and the classes on the way.
"""

import operator
from collections.abc import Callable, Hashable
from typing import Any

from tensorpack._plan.plan import ClassPlan
from tensorpack._rules.markers import PLAN
from tensorpack._rules.nodes import (
    BorrowedNode,
    CachedNode,
    DerivedNode,
    HostNode,
    HostOnlyNode,
    PropertyNode,
    ResidentNode,
    TensorNode,
)
from tensorpack._walk.walk import Walk

__all__ = ["form_of"]

_getters: dict[ClassPlan, Callable[[Any], tuple[Any, ...]] | None] = {}


def form_of(value: Any) -> Hashable:
    """Return the form of a walked object."""
    plan = getattr(type(value), PLAN, None)
    if plan.__class__ is ClassPlan and plan.cls is type(value):
        if plan not in _getters:
            _getters[plan] = _getter(plan)
        getter = _getters[plan]
        if getter is not None:
            return plan, tuple([x is None for x in getter(value)])
    keyed = _Form(value)
    return (
        type(value),
        tuple([key for key, _ in keyed.run().leaves]),
        tuple(keyed.classes),
    )


def _getter(plan: ClassPlan) -> Callable[[Any], tuple[Any, ...]] | None:
    """Return what reads the leaves of a class; None if it has other fields."""
    names: list[str] = []
    for field in plan.fields:
        match field.node:
            case TensorNode() if not field.may_lack:
                names.append(field.name)
            case HostNode() | HostOnlyNode() | BorrowedNode():
                pass
            case DerivedNode() | ResidentNode() | CachedNode() | PropertyNode():
                pass
            case _:
                return None
    if len(names) < 2:  # noqa: PLR2004  # of one name it gives no tuple
        return None
    return operator.attrgetter(*names)


class _Form(Walk):
    """Notes the classes of payloads on the way."""

    __slots__ = ("classes",)

    def __init__(self, value: Any) -> None:
        super().__init__(value, keyed=True)
        self.classes: list[type] = []

    def nested(self, value: Any, key: str) -> None:
        """Note the class of a payload, then walk it."""
        self.classes.append(type(value))
        super().nested(value, key)
