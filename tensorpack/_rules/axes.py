"""What an annotation says of a batch: which dim runs along which axis.

The marks are read by the run-time validator and by the mypy plugin, so they know no
torch. A mark stands in `Annotated[...]` beside the type; see `attached`.
"""

import dataclasses
import re
from collections.abc import Iterator

from tensorpack.errors import DefinitionError

__all__ = [
    "Axis",
    "AxisMark",
    "DimMark",
    "Index",
    "Offsets",
    "ShapeAxis",
    "Size",
    "shape_axes",
]


def _check_name(mark: object, name: object) -> None:
    """Refuse a name that is not a text."""
    if not isinstance(name, str) or not name:
        raise DefinitionError(
            cls=type(mark).__name__,
            problem=f"{name!r} is not the name of an axis",
            remedy=f'Write a text: `{type(mark).__name__}("requests")`.',
        )


@dataclasses.dataclass(frozen=True)
class Axis:
    """One dim of a leaf, or a list as a whole, runs along an axis of the batch.

    Attributes:
        name: the axis; all leaves and lists of one name have one size.
        dim: which dim of the leaf, counted from 0 at the front; a list has only 0.
        pad: what fills new rows; None if the leaf cannot be padded.
        lengths: the field of the same class that holds the lengths of the runs, if
            the items lie in runs of varying length.

    Raises:
        DefinitionError: the name is not a text, `dim` is negative, or `pad` has no
            hash.

    >>> Axis("blocks", dim=1, pad=0)
    Axis('blocks', dim=1, pad=0)
    """

    name: str
    dim: int = 0
    _: dataclasses.KW_ONLY
    pad: object = None
    lengths: str | None = None

    def __post_init__(self) -> None:
        """Check what can be checked without the leaf."""
        _check_name(self, self.name)
        dim: object = self.dim
        if type(dim) is not int or dim < 0:
            raise DefinitionError(
                cls="Axis",
                problem=f"the dim of {self.name!r} is {self.dim!r}",
                remedy="Count from the front, starting at 0.",
            )
        try:
            hash(self.pad)
        except TypeError:
            raise DefinitionError(
                cls="Axis",
                problem=f"the pad of {self.name!r} is a "
                f"`{type(self.pad).__name__}`, which has no hash",
                remedy="Pad with a number or a text, or in `__payload_resized__`.",
            ) from None

    def __repr__(self) -> str:
        """Write the mark as the user does."""
        parts = [repr(self.name)]
        parts += [f"dim={self.dim}"] if self.dim else []
        parts += [f"pad={self.pad!r}"] if self.pad is not None else []
        parts += [f"lengths={self.lengths!r}"] if self.lengths is not None else []
        return f"Axis({', '.join(parts)})"


@dataclasses.dataclass(frozen=True)
class _Named:
    """A mark that says nothing but the name of an axis."""

    name: str

    def __post_init__(self) -> None:
        """Check the name."""
        _check_name(self, self.name)

    def __repr__(self) -> str:
        """Write the mark as the user does."""
        return f"{type(self).__name__}({self.name!r})"


@dataclasses.dataclass(frozen=True, repr=False)
class Offsets(_Named):
    """Cumulative lengths: one entry more than the axis has items, the first is 0.

    Attributes:
        name: the axis whose items the runs belong to.

    >>> Offsets("requests")
    Offsets('requests')
    """


@dataclasses.dataclass(frozen=True, repr=False)
class Index(_Named):
    """The values are positions on an axis, counted from 0.

    Attributes:
        name: the axis that the values point into.

    >>> Index("tokens")
    Index('tokens')
    """


@dataclasses.dataclass(frozen=True, repr=False)
class Size(_Named):
    """A host integer that is the size of an axis.

    Attributes:
        name: the axis.

    >>> Size("requests")
    Size('requests')
    """


@dataclasses.dataclass(frozen=True)
class ShapeAxis:
    """A name in a jaxtyping shape.

    Attributes:
        name: the axis.
        dim: which dim, counted from the front; from the back where it is negative,
            behind dims of any number.
        broadcast: whether a size of 1 stands for any size.
        pad: None, as a shape cannot say what fills new rows.
        lengths: None, as a shape cannot say either.
    """

    name: str
    dim: int
    broadcast: bool = False
    pad: None = None
    lengths: None = None

    def __repr__(self) -> str:
        """Name the axis and the dim."""
        return f"{self.name!r} at dim {self.dim}"


DimMark = Axis | Offsets | ShapeAxis
"""Says that a dim runs along an axis."""

AxisMark = DimMark | Index | Size
"""Says anything of an axis."""

_SHAPE_NAME = re.compile(r"(?:[^\W\d]\w*=)?(#?)([^\W\d]\w*)")


def shape_axes(shape: str) -> Iterator[ShapeAxis]:
    """Iterate the axes that a jaxtyping shape names.

    Fixed, anonymous and computed sizes are not axes, nor is what stands for dims of
    any number: the dims behind that are counted from the back.

    >>> list(shape_axes("requests *heads 4 blocks"))
    ['requests' at dim 0, 'blocks' at dim -1]
    """
    parts = shape.split()
    variadic = [
        i for i, p in enumerate(parts) if p == "..." or "*" in p.lstrip("#?_")[:1]
    ]
    for dim, part in enumerate(parts):
        found = _SHAPE_NAME.fullmatch(part)
        if found is None or found[2].startswith("_"):
            continue
        behind = bool(variadic) and dim > variadic[0]
        yield ShapeAxis(found[2], dim - len(parts) if behind else dim, found[1] == "#")
