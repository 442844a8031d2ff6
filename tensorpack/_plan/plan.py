"""The frozen description of a class, which everything else reads."""

from collections.abc import Callable, Mapping

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

    Attributes:
        cls: the class.
        fields: its fields in definition order, inherited ones included.
        cached: its cached properties, which are no fields.
        assigns: whether a twin is filled by plain assignment.
        stores: names that an instance's `__dict__` may have; None without one.
        hooked: whether the class has a `__payload_prepare__`.
        notes: what a reader of the plan should know.
        namespace: where the class's own annotations were looked up.
        corrections: annotations given to `payload(fields=...)` for this class.
        by_name: the fields by their names.
        payload_keys: names of the fields that travel.
        host_keys: names of the fields that stay.
    """

    cls: type
    fields: tuple[FieldPlan, ...]
    cached: tuple[FieldPlan, ...]
    assigns: bool
    stores: frozenset[str] | None
    hooked: bool
    notes: tuple[str, ...]
    namespace: Namespace = attrs.field(repr=False)
    corrections: Mapping[str, object] = attrs.field(factory=dict, repr=False)
    by_name: Mapping[str, FieldPlan] = attrs.field(init=False, repr=False)
    payload_keys: tuple[str, ...] = attrs.field(init=False, repr=False)
    host_keys: tuple[str, ...] = attrs.field(init=False, repr=False)

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
