"""What a type means, as the run-time validator reads it, and why one is refused."""

import dataclasses
import enum
from typing import NoReturn

__all__ = [
    "NONE",
    "Choice",
    "Entries",
    "Fixed",
    "Guard",
    "Items",
    "Kept",
    "Leaf",
    "Node",
    "Record",
    "Refusal",
    "RefusedError",
    "Typed",
    "Unknown",
    "Walked",
    "refuse",
]


class Guard(enum.Enum):
    """What a value that is kept by reference must not be."""

    TENSOR = "host"
    DEVICE_TENSOR = "host only"
    NOTHING = "borrowed"


@dataclasses.dataclass(frozen=True)
class Leaf:
    """A tensor, a payload, or a type that moves itself or has an adapter."""

    kind: str


@dataclasses.dataclass(frozen=True)
class Walked:
    """Walked at run time by the types of its values."""


@dataclasses.dataclass(frozen=True)
class Unknown:
    """A type that mypy does not see: nothing is said about it."""


@dataclasses.dataclass(frozen=True)
class Kept:
    """Kept by reference; a container without leaves has its form as `inside`."""

    guard: Guard
    what: str = ""
    inside: "Node | None" = None


@dataclasses.dataclass(frozen=True)
class Items:
    """A sequence of any length."""

    kind: str
    item: "Node"


@dataclasses.dataclass(frozen=True)
class Fixed:
    """A tuple of fixed length."""

    items: tuple["Node", ...]


@dataclasses.dataclass(frozen=True)
class Entries:
    """A mapping."""

    kind: str
    value: "Node"


@dataclasses.dataclass(frozen=True)
class Record:
    """A named tuple."""

    name: str
    items: tuple["Node", ...]


@dataclasses.dataclass(frozen=True)
class Typed:
    """A dictionary whose keys are declared."""

    name: str
    items: tuple["Node", ...]


@dataclasses.dataclass(frozen=True)
class Choice:
    """A union: the value decides."""

    arms: tuple["Node", ...]


Node = (
    Leaf | Walked | Unknown | Kept | Items | Fixed | Entries | Record | Typed | Choice
)

NONE = Kept(Guard.TENSOR, "None")


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why one type has no lifetime support.

    Attributes:
        culprit: the part of the annotation that has none.
        reason: why, as a clause.
        remedies: what to write instead, one sentence each.
    """

    culprit: str
    reason: str
    remedies: tuple[str, ...]

    def sentence(self, where: str, annotation: str) -> str:
        """Compose the message for a field: the run-time error has the same words."""
        inside = "" if self.culprit == annotation else f" (in `{annotation}`)"
        remedies = " ".join(self.remedies)
        return f"`{where}`: `{self.culprit}`{inside} {self.reason}. {remedies}"


class RefusedError(Exception):
    """A part of an annotation has no lifetime support."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.reason)


def refuse(culprit: str, reason: str, *remedies: str) -> NoReturn:
    """Refuse a part of an annotation."""
    raise RefusedError(Refusal(culprit, reason, remedies))
