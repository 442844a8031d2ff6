"""The rows of the type table: what a class can be, in the order of the questions."""

import enum
from collections.abc import Callable, Mapping
from typing import TypeVar

from tensorpack._rules.nodes import NodeOf

__all__ = ["Row", "first_row"]

Q = TypeVar("Q")
C = TypeVar("C")


class Row(enum.Enum):
    """A row of the table; both readers have a function for each, and no other order.

    The walk asks for plain host classes first too, so an adapter for `int` is not used.
    """

    PLAIN_HOST = "a host type with no room for anything else"
    TENSOR = "a tensor"
    PAYLOAD = "a payload"
    UNDECORATED = "derived from a payload, but not one"
    PROTOCOL = "the protocol that payloads have"
    ADAPTER = "a type with an adapter"
    SELF_MOVING = "a type that moves and records itself"
    NAMED_TUPLE = "a named tuple"
    TYPED_DICT = "a typed dictionary"
    HOST = "a host type"
    HOST_STRUCT = "a struct of host types"


def first_row(
    rows: Mapping[Row, Callable[[Q], NodeOf[C] | None]], asked: Q
) -> NodeOf[C] | None:
    """Return what the first row that applies gives; None if none does.

    Args:
        rows: a function for each row: it gives a node if the row applies, else None.
        asked: what the functions take.

    Raises:
        RefusedError: a row that applies refuses the class.
    """
    for row in Row:
        found = rows[row](asked)
        if found is not None:
            return found
    return None
