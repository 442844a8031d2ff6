"""Random payloads with axes, held against plain torch on dictionaries.

The oracle knows no payload: an object is a dictionary from names to cells, and a cell
is a tensor or a list together with the axis of each of its dims.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor

from tensorpack import Axis, CopyStream, HostOnly, Size, payload
from tensorpack.axes import cat, copy_, empty_like, pad, select, sizes, split

AXES = ("requests", "tokens", "blocks")
DTYPES = (torch.int64, torch.int32, torch.float32, torch.bool, torch.bfloat16)
PADS: Mapping[torch.dtype, Any] = {torch.bool: True, torch.float32: 0.5}

Cell = tuple[Any, tuple[str | None, ...]]
"""A value, and the axis of each of its dims."""
Cells = dict[str, Cell]


def pad_for(dtype: torch.dtype) -> Any:
    """Return what fills new rows of a dtype."""
    return PADS.get(dtype, 7)


def marks(dims: Sequence[str | None], dtype: torch.dtype) -> list[Axis]:
    """Return the marks of a tensor."""
    pad_ = pad_for(dtype)
    return [Axis(a, d, pad=pad_) for d, a in enumerate(dims) if a is not None]


@st.composite
def tensor_cells(draw: st.DrawFn, counts: Mapping[str, int]) -> tuple[Cell, Any]:
    """Draw a tensor cell and its annotation."""
    axes = draw(st.permutations(AXES))[: draw(st.integers(0, 3))]
    fixed = [None] * draw(st.integers(0, 2))
    dims = tuple(draw(st.permutations([*axes, *fixed])))
    dtype = draw(st.sampled_from(DTYPES))
    shape = [counts[a] if a is not None else draw(st.integers(1, 2)) for a in dims]
    numbers = torch.arange(math.prod(shape)).remainder(100).reshape(shape)
    value = numbers.remainder(2).bool() if dtype is torch.bool else numbers.to(dtype)
    if len(shape) > 1 and draw(st.booleans()):
        value = value.transpose(0, 1).contiguous().transpose(0, 1)
    annotation: Any = Tensor
    for mark in marks(dims, dtype):
        annotation = Annotated[annotation, mark]
    if draw(st.booleans()):
        annotation = annotation | None
    if draw(st.integers(0, 5)) == 0:
        return (None, dims), annotation | None
    return (value, dims), annotation


@st.composite
def host_cells(draw: st.DrawFn, counts: Mapping[str, int]) -> tuple[Cell, Any]:
    """Draw a cell that stays on the host, and its annotation."""
    axis = draw(st.sampled_from(AXES))
    match draw(st.integers(0, 3)):
        case 0:
            names = [f"{axis}{i}" for i in range(counts[axis])]
            return (names, (axis,)), Annotated[list[str], Axis(axis, pad="-")]
        case 1:
            value = torch.arange(counts[axis])
            return (value, (axis,)), Annotated[HostOnly[Tensor], Axis(axis, pad=7)]
        case 2:
            return (counts[axis], (axis,)), Annotated[int, Size(axis)]
        case _:
            return ("same", ()), str


@st.composite
def objects(
    draw: st.DrawFn, *, static: bool = False
) -> tuple[Any, Cells, dict[str, int]]:
    """Draw a payload, its cells and the sizes of the axes."""
    counts = {axis: draw(st.integers(0, 4)) for axis in AXES}
    cells: Cells = {}

    def one(depth: int, before: str) -> Any:
        annotations: dict[str, Any] = {}
        values: dict[str, Any] = {}
        for number in range(draw(st.integers(1, 4))):
            name = f"f{number}"
            key = f"{before}{name}"
            kind = draw(st.integers(0, 6))
            if kind == 0 and depth < 2:
                inner = one(depth + 1, f"{key}.")
                annotations[name] = type(inner)
                values[name] = inner
            elif kind == 1:
                parts = [draw(tensor_cells(counts)) for _ in range(2)]
                same = parts[0][1]
                annotations[name] = list[same]
                values[name] = [parts[0][0][0], parts[0][0][0]]
                cells[f"{key}[0]"] = cells[f"{key}[1]"] = parts[0][0]
            else:
                drawn = host_cells if kind == 2 else tensor_cells
                cells[key], annotations[name] = draw(drawn(counts))
                values[name] = cells[key][0]
        members = {"__annotations__": annotations, "__module__": __name__}
        cls: Any = payload(type("Random", (), members))
        return cls(**values)

    value = one(0, "")
    if static:  # an axis that nothing has cannot be named
        counts = dict(sizes(value))
    return value, cells, counts


def flat(value: Any, before: str = "") -> dict[str, Any]:
    """List the fields of a payload by their keys, for the comparison with cells."""
    found: dict[str, Any] = {}
    for name in type(value).__annotations__:
        field = getattr(value, name)
        key = f"{before}{name}"
        if hasattr(type(field), "__tensorpack_plan__"):
            found |= flat(field, f"{key}.")
        elif isinstance(field, list) and all(not isinstance(x, str) for x in field):
            found |= {f"{key}[{i}]": item for i, item in enumerate(field)}
        else:
            found[key] = field
    return {k: v for k, v in found.items() if not (isinstance(v, list) and v == [])}


def assert_same(expected: Mapping[str, Any], actual: Any) -> None:
    """Hold cells against a payload."""
    wanted = {
        k: v for k, v in expected.items() if not (isinstance(v, list) and v == [])
    }
    found = flat(actual)
    assert wanted.keys() == found.keys()
    for key, value in wanted.items():
        if isinstance(value, Tensor):
            assert value.dtype == found[key].dtype, key
            assert value.shape == found[key].shape, key
            assert torch.equal(value, found[key]), key
        else:
            assert value == found[key], key


def values_of(cells: Cells) -> dict[str, Any]:
    """Return the cells without their axes."""
    return {key: value for key, (value, _) in cells.items()}


def taken(cell: Cell, axis: str, items: Sequence[int]) -> Any:
    """Take items of a cell, one by one."""
    value, dims = cell
    if value is None or axis not in dims:
        return value
    if isinstance(value, int):
        return len(items)
    if isinstance(value, list):
        return [value[i] for i in items]
    dim = dims.index(axis)
    rows = [value.narrow(dim, i, 1) for i in items]
    return torch.cat(rows, dim) if rows else value.narrow(dim, 0, 0)


def longer(cell: Cell, axis: str, size: int) -> Any:
    """Put rows of pad at the end of a cell."""
    value, dims = cell
    if value is None or axis not in dims:
        return value
    if isinstance(value, int):
        return size
    if isinstance(value, list):
        return value + ["-"] * (size - len(value))
    dim = dims.index(axis)
    shape = [*value.shape]
    shape[dim] = size
    new = torch.full(shape, pad_for(value.dtype), dtype=value.dtype)
    new.narrow(dim, 0, value.shape[dim]).copy_(value)
    return new


def items_of(data: st.DataObject, size: int) -> list[int]:
    """Draw positions on an axis."""
    if size == 0:
        return []
    return data.draw(st.lists(st.integers(0, size - 1), max_size=5))


def an_axis(data: st.DataObject, value: Any) -> tuple[str, int] | None:
    """Draw one of an object's axes, if it has any."""
    there = sizes(value)
    return data.draw(st.sampled_from(sorted(there.items()))) if there else None


@given(objects(), st.data())
def test_select_takes_the_items_of_every_field(drawn: Any, data: st.DataObject) -> None:
    """Positions, in any order and again, are taken from each field with the axis."""
    value, cells, _ = drawn
    found = an_axis(data, value)
    if found is None:
        return
    axis, size = found
    items = items_of(data, size)

    expected = {key: taken(cell, axis, items) for key, cell in cells.items()}
    assert_same(expected, select(value, **{axis: items}))
    index = torch.tensor(items, dtype=torch.int64)
    assert_same(expected, select(value, **{axis: index}))


@given(objects(), st.data())
def test_slices_and_masks_are_positions(drawn: Any, data: st.DataObject) -> None:
    """A slice and a mask take what the positions they stand for take."""
    value, cells, _ = drawn
    found = an_axis(data, value)
    if found is None:
        return
    axis, size = found
    mask = data.draw(st.lists(st.booleans(), min_size=size, max_size=size))
    items = [i for i, keep in enumerate(mask) if keep]
    cut = slice(data.draw(st.integers(0, 5)), data.draw(st.integers(0, 5)))

    expected = {key: taken(cell, axis, items) for key, cell in cells.items()}
    assert_same(expected, select(value, **{axis: torch.tensor(mask, dtype=torch.bool)}))
    items = [*range(size)][cut]
    expected = {key: taken(cell, axis, items) for key, cell in cells.items()}
    assert_same(expected, select(value, **{axis: cut}))


@given(objects(), st.data())
def test_selections_compose(drawn: Any, data: st.DataObject) -> None:
    """To select from a selection is to select once."""
    value, _, _ = drawn
    found = an_axis(data, value)
    if found is None:
        return
    axis, size = found
    first = items_of(data, size)
    second = items_of(data, len(first))

    once = select(value, **{axis: [first[i] for i in second]})
    twice = select(select(value, **{axis: first}), **{axis: second})
    assert_same(flat(once), twice)


@given(objects(), st.data())
def test_cat_of_split_is_the_whole(drawn: Any, data: st.DataObject) -> None:
    """What was split and put together again is what it was."""
    value, cells, _ = drawn
    found = an_axis(data, value)
    if found is None:
        return
    axis, size = found
    cuts = sorted(data.draw(st.lists(st.integers(0, size), max_size=3)))
    parts = [b - a for a, b in itertools.pairwise([0, *cuts, size])]

    assert_same(values_of(cells), cat(split(value, axis, parts), axis))


@given(objects(), st.data())
def test_pad_then_select_is_the_identity(drawn: Any, data: st.DataObject) -> None:
    """Rows of pad are at the end, and go away again."""
    value, cells, _ = drawn
    found = an_axis(data, value)
    if found is None:
        return
    axis, size = found
    wide = pad(value, **{axis: size + data.draw(st.integers(0, 3))})

    assert_same(values_of(cells), select(wide, **{axis: slice(0, size)}))


@given(objects(), st.data())
def test_pad_fills_every_field(drawn: Any, data: st.DataObject) -> None:
    """Each field with the axis gets rows of its pad."""
    value, cells, _ = drawn
    found = an_axis(data, value)
    if found is None:
        return
    axis, size = found
    more = size + data.draw(st.integers(0, 3))

    expected = {key: longer(cell, axis, more) for key, cell in cells.items()}
    assert_same(expected, pad(value, **{axis: more}))


@settings(max_examples=60)
@given(objects(static=True), st.data())
def test_static_memory_holds_what_pad_would_make(
    drawn: Any, data: st.DataObject
) -> None:
    """Copies into static memory give what `pad` gives, each time."""
    value, cells, counts = drawn
    room = {axis: size + 4 for axis, size in counts.items()}
    static = empty_like(value, **room)
    copies = CopyStream("cpu")

    for _ in range(2):
        more = {a: n + data.draw(st.integers(0, 4)) for a, n in counts.items()}
        wide = copies.start(value, into=static, sizes=more).wait()
        assert_same(flat(pad(value, **more)), wide)
    assert_same(values_of(cells), copy_(static, value))
