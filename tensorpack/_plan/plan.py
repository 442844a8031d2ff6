"""The frozen description of a class, which everything else reads."""

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from tensorpack._plan.namespace import Namespace
from tensorpack._rules.nodes import (
    DerivedNode,
    Node,
    PropertyNode,
    ResidentNode,
    role,
    travels,
    why,
)

__all__ = ["ClassPlan", "FieldPlan"]


@attrs.frozen
class FieldPlan:
    """One field: its name, what its annotation means, and how the class keeps it.

    Attributes:
        name: the attribute's name.
        node: what the annotation means.
        annotation: the annotation as the user wrote it.
        may_lack: whether an instance may be without the attribute.
        default: makes the default for the twin, if the field is `Derived`.
    """

    name: str
    node: Node
    annotation: str
    may_lack: bool = False
    default: Callable[[object], object] | None = None

    @property
    def role(self) -> str:
        """Name what happens to the field."""
        return role(self.node)

    @property
    def why(self) -> str:
        """Say why."""
        return why(self.node)


@attrs.frozen(eq=False)
class ClassPlan:
    """The description of a payload class, which everything else reads.

    A plan that is pickled keeps only what it was made from, and makes itself anew when
    it is first read: see Note [classes that are sent by value] in `_install`.

    Attributes:
        cls: the class.
        namespace: where the class's own annotations were looked up.
        corrections: annotations given to `payload(fields=...)` for this class.
        notes: what a reader of the plan should know.
        made_by: makes the plan from the four above.
        fields: its fields in definition order, inherited ones included.
        cached: its cached properties, which are not fields.
        assigns: whether a copy is filled by plain assignment.
        stores: names that an instance's `__dict__` may have; None without one.
        hooked: whether the class has a `__payload_prepare__`.
        compiled: the generated traversals by name, once they are compiled.
        compiled_keyed: the traversal with keys; apart, since a trace that has read the
            other dictionary does not see it change.
        by_name: the fields by their names.
        payload_keys: names of the fields that travel.
        host_keys: names of the fields that stay.
    """

    cls: type
    namespace: Namespace = attrs.field(repr=False)
    corrections: Mapping[str, object] = attrs.field(repr=False)
    notes: tuple[str, ...]
    made_by: Callable[..., "ClassPlan"] = attrs.field(repr=False)
    fields: tuple[FieldPlan, ...]
    cached: tuple[FieldPlan, ...]
    assigns: bool
    stores: frozenset[str] | None
    hooked: bool
    compiled: dict[str, Callable[..., object]] = attrs.field(
        init=False, factory=dict, repr=False
    )
    compiled_keyed: dict[str, Callable[..., object]] = attrs.field(
        init=False, factory=dict, repr=False
    )
    by_name: Mapping[str, FieldPlan] = attrs.field(init=False, repr=False)
    payload_keys: tuple[str, ...] = attrs.field(init=False, repr=False)
    host_keys: tuple[str, ...] = attrs.field(init=False, repr=False)

    def __reduce__(self) -> tuple[Callable[..., "ClassPlan"], tuple[object, ...]]:
        """Keep what the plan was made from."""
        origins = (getattr(self, name) for name in _ORIGINS)
        return _unmade, tuple(origins)

    def __getattr__(self, name: str) -> Any:
        """Make the plan anew: this is only called where a slot is empty."""
        if name.startswith("__"):
            raise AttributeError(name)
        made = self.made_by(self.cls, self.namespace, self.corrections, self.notes)
        for slot in attrs.fields_dict(ClassPlan):
            if slot not in _ORIGINS:
                object.__setattr__(self, slot, getattr(made, slot))
        return object.__getattribute__(self, name)

    @by_name.default
    def _by_name(self) -> Mapping[str, FieldPlan]:
        return {f.name: f for f in self.fields}

    @payload_keys.default
    def _payload_keys(self) -> tuple[str, ...]:
        return tuple(f.name for f in self.fields if travels(f.node))

    @host_keys.default
    def _host_keys(self) -> tuple[str, ...]:
        return tuple(
            f.name
            for f in self.fields
            if not travels(f.node)
            and not isinstance(f.node, (DerivedNode, ResidentNode, PropertyNode))
        )


_ORIGINS = ("cls", "namespace", "corrections", "notes", "made_by")


def _unmade(*origins: object) -> ClassPlan:
    """Return a plan that is made when it is first read."""
    plan = object.__new__(ClassPlan)
    for name, value in zip(_ORIGINS, origins, strict=True):
        object.__setattr__(plan, name, value)
    return plan
