"""Objects that stand twice among leaves: each is acted on once.

# Note [leaves that stand twice]
# An object that stands in two places of a payload stands twice in its list of leaves,
# so it has more references than one that stands once. To read the numbers of references
# takes half of the time of putting all ids into a set, and less with cold caches. Other
# references are no harm: then the ids are looked at as well. Only what an adapter has
# made for the list, and lists twice, is taken for two. Tracing cannot read the numbers.
"""

from collections.abc import Callable, Sequence
from sys import getrefcount
from typing import Any

from tensorpack._leaves.tracing import TRACES_ALL, let_trace_as

__all__ = ["each_once", "stand_twice"]


def _references_of_one() -> int:
    """Count the references of an object in a list of leaves and in one other place."""
    place = [object()]
    leaves = [place[0]]
    return max(map(getrefcount, leaves))


_ONE_PLACE = _references_of_one()


def stand_twice(leaves: Sequence[Any]) -> bool:
    """Tell whether an object stands twice among leaves."""
    return (
        len(leaves) > 1
        and max(map(getrefcount, leaves)) > _ONE_PLACE
        and len(set(map(id, leaves))) < len(leaves)
    )


def each_once(
    leaves: Sequence[Any], act: Callable[[Sequence[Any]], Sequence[Any]]
) -> list[Any]:
    """Act on the leaves; a leaf that comes again gets the same result."""
    if len(set(map(id, leaves))) == len(leaves):
        return list(act(leaves))
    once = {id(leaf): leaf for leaf in leaves}
    done = dict(zip(once, act(list(once.values())), strict=True))
    return [done[id(leaf)] for leaf in leaves]


def _each_compared(
    leaves: Sequence[Any], act: Callable[[Sequence[Any]], Sequence[Any]]
) -> list[Any]:
    """Stand for `each_once` where `id` cannot be traced."""
    done: list[tuple[Any, Any]] = []
    new: list[Any] = []
    for leaf in leaves:
        again = [twin for old, twin in done if old is leaf]
        twin = again[0] if again else act([leaf])[0]
        done.append((leaf, twin))
        new.append(twin)
    return new


if not TRACES_ALL:
    let_trace_as(each_once, _each_compared)
