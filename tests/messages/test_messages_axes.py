"""Every message about batch axes in full."""

from collections.abc import Callable
from typing import Annotated, Any

import pytest
import torch
from axes.batches import Decode, decode
from torch import Tensor

from tensorpack import (
    Axis,
    AxisError,
    DefinitionError,
    Dynamic,
    HostOnly,
    Index,
    LifetimeError,
    Offsets,
    Payload,
    Size,
    evolve,
    map_tensors,
    payload,
)
from tensorpack.axes import cat, copy_, empty_like, pad, select, sizes, split
from tensorpack.testing import recorded_streams

Reads = Callable[[], object]


@payload
class Inner(Payload):
    ids: Tensor


def defined(annotation: Any) -> Reads:
    """Return what makes a class with a field of an annotation."""
    members = {"__annotations__": {"x": annotation, "k": int}, "__module__": __name__}
    return lambda: payload(type("Batch", (), members))


MARKS: list[tuple[Reads, str]] = [
    (
        defined(Annotated[int, Axis("rows")]),
        (
            "`Batch.x`: `int` is one value, so 'rows' cannot run along it. Put the "
            "axis on a tensor, an array or a list. Or write `Size('rows')` if it is "
            "the size of the axis."
        ),
    ),
    (
        defined(Annotated[str, Axis("rows")]),
        (
            "`Batch.x`: `str` is one value, so 'rows' cannot run along it. Put the "
            "axis on a tensor, an array or a list."
        ),
    ),
    (
        defined(Annotated[dict[str, Tensor], Axis("rows")]),
        (
            "`Batch.x`: `dict[str, Tensor]` is a mapping, which has no order for "
            "'rows' to run along. Put the axis on its values: `dict[str, "
            "Annotated[Tensor, ...]]`."
        ),
    ),
    (
        defined(Annotated[tuple[Tensor, Tensor], Axis("rows")]),
        (
            "`Batch.x`: `tuple[Tensor, Tensor]` has a fixed number of parts, so "
            "'rows' cannot run along it. Write `list[...]` or `tuple[X, ...]`, or "
            "put the axis on its parts."
        ),
    ),
    (
        defined(Annotated[Tensor, Axis("rows"), Axis("columns")]),
        (
            "`Batch.x`: `Tensor` has two axes on dim 0, 'rows' and 'columns'. Give "
            "each dim one axis."
        ),
    ),
    (
        defined(Annotated[Tensor, Axis("rows"), Axis("rows", dim=1)]),
        (
            "`Batch.x`: `Tensor` has the axis 'rows' twice, so nothing says which of "
            "them to resize. Give one of them another name."
        ),
    ),
    (
        defined(Annotated[list[Tensor], Axis("rows", dim=1)]),
        (
            "`Batch.x`: `list[Tensor]` is a list, which has no dim 1. Put the axis "
            "on what is inside: `list[Annotated[Tensor, ...]]`."
        ),
    ),
    (
        defined(Annotated[Inner, Axis("rows")]),
        (
            "`Batch.x`: `Inner` is a payload, which brings axes of its own. Put the "
            "axis on its fields."
        ),
    ),
    (
        defined(Annotated[Dynamic[Any], Axis("rows")]),
        (
            "`Batch.x`: `Dynamic[Any]` is walked at run time, so its dims are not "
            "known. Write the type of the value."
        ),
    ),
    (
        defined(Annotated[torch.nn.utils.rnn.PackedSequence, Axis("rows")]),
        (
            "`Batch.x`: `PackedSequence` has dims that only its class knows. Take "
            "the mark out, and resize the value in `__payload_resized__`."
        ),
    ),
    (
        defined(Annotated[Tensor, Size("rows")]),
        (
            "`Batch.x`: `Tensor` is not a host integer, so it cannot be the size of "
            "'rows'. Write `Annotated[int, Size('rows')]`."
        ),
    ),
    (
        defined(Annotated[Tensor, Axis("tokens", lengths="lens")]),
        (
            "`Batch.x`: `Tensor` has its lengths in `lens`, which is not a field. "
            "Name a field of the class that holds the lengths of the runs."
        ),
    ),
    (
        defined(Annotated[Tensor, Axis("tokens", lengths="k")]),
        (
            "`Batch.x`: `Tensor` has its lengths in `k`, which runs along no axis. "
            "Give `k` its axis: `Annotated[..., Axis('requests')]`."
        ),
    ),
    (
        defined(
            Annotated[list[str], Axis("rows")] | Annotated[tuple[str, ...], Axis("a")]
        ),
        (
            "`Batch.x`: `list[str] | tuple[str, ...]` has arms of one kind with "
            "different axes. Put the axes on the whole union, or write two fields."
        ),
    ),
    (
        lambda: Axis([]),  # type: ignore[arg-type]  # on purpose
        '`Axis`: [] is not the name of an axis. Write a text: `Axis("requests")`.',
    ),
    (
        lambda: Axis("rows", dim=-1),
        "`Axis`: the dim of 'rows' is -1. Count from the front, starting at 0.",
    ),
    (
        lambda: Axis("rows", pad=[]),
        (
            "`Axis`: the pad of 'rows' is a `list`, which has no hash. Pad with a "
            "number or a text, or in `__payload_resized__`."
        ),
    ),
]


@pytest.mark.parametrize(("act", "text"), MARKS, ids=range(len(MARKS)))
def test_mark_that_cannot_be_is_refused(act: Reads, text: str) -> None:
    """The definition says what is wrong, before any batch is made."""
    with pytest.raises((LifetimeError, DefinitionError)) as caught:
        act()

    assert text == str(caught.value)


@payload
class Host(Payload):
    ids: Annotated[Tensor, Axis("rows")]
    kept: Annotated[HostOnly[Any], Axis("rows")] = None
    parts: list[Tensor] | None = None
    starts: Annotated[Tensor | None, Offsets("rows")] = None
    last: Annotated[Tensor | None, Index("rows")] = None
    images: Annotated[list[Tensor] | None, Axis("rows", pad=0)] = None


def host(count: int = 2, **rest: Any) -> Host:
    """Make a payload of some rows."""
    return Host(torch.arange(count), **rest)


def on_device(call: Callable[[Decode], object]) -> object:
    """Call with a step on the device."""
    with recorded_streams():
        return call(decode(2, 3).to_device("cuda"))


def seven(_: Tensor) -> Any:
    """Return what is not a tensor."""
    return 7


def device_index(kind: torch.dtype) -> Tensor:
    """Make an index on the device."""
    return torch.ones(2, device="cuda").to(kind)


def with_recorded(call: Reads) -> Reads:
    """Return what calls on recorded streams."""

    def act() -> object:
        with recorded_streams():
            return call()

    return act


USES: list[tuple[Reads, str]] = [
    (
        lambda: select(decode(1), rows=[0]),
        "`Decode`: has no axis `rows`. Its axes are `tokens`, `requests`, `blocks`.",
    ),
    (
        lambda: sizes(evolve(decode(2, 3), names=["a"])),
        (
            "`Decode.names`: has 1 item on the axis `requests`, and `seq_lens` has "
            "2. Give both one size."
        ),
    ),
    (
        lambda: sizes(evolve(decode(2, 3), table=torch.zeros(2))),
        (
            "`Decode.table`: has 1 dim, and `blocks` is its dim 1. Give it that dim, "
            "or mend the `dim` of its `Axis`."
        ),
    ),
    (
        lambda: sizes(host(kept=7)),
        (
            "`Host.kept`: is an `int`, which cannot run along `rows`. Let it be a "
            "tensor, an array or a list."
        ),
    ),
    (
        lambda: sizes(host(starts=torch.zeros(0))),
        (
            "`Host.starts`: is empty, and offsets have one entry more than `rows` has "
            "items. Let it start with 0."
        ),
    ),
    (
        lambda: select(decode(2, 3), requests=1),
        (
            "`Decode`: `requests=1` is one position, and the axis stays. Write "
            "`requests=[...]`, or a slice."
        ),
    ),
    (
        lambda: select(decode(2, 3), requests=[2]),
        (
            "`Decode`: `requests=` has the position 2, and the axis has 2 items. Pass "
            "positions on the axis."
        ),
    ),
    (
        lambda: select(decode(2, 3), requests=["r0"]),
        (
            "`Decode`: `requests=` has 'r0', which is not a position. Pass integers, a "
            "mask or a slice."
        ),
    ),
    (
        lambda: select(decode(2, 3), requests=torch.zeros(1, 1).long()),
        "`Decode`: `requests=` has 2 dims. Pass positions in one dim.",
    ),
    (
        lambda: select(decode(2, 3), requests=[True]),
        (
            "`Decode`: the mask for `requests` has 1 items, and the axis has 2. Pass a "
            "mask of the size of the axis, or positions."
        ),
    ),
    (
        with_recorded(lambda: select(host(), rows=device_index(torch.bool))),
        (
            "`Host`: `rows=` is a mask on the device, whose items the host could count "
            "only by blocking. Pass a mask on the host, or positions."
        ),
    ),
    (
        with_recorded(lambda: select(host(), rows=device_index(torch.int64))),
        (
            "`Host.ids`: is on the host, and the positions on `rows` are on the "
            "device, so the host would have to wait for them. Pass a list or a host "
            "tensor."
        ),
    ),
    (
        lambda: select(decode(2, 3), tokens=[0]),
        (
            "`Decode`: `tokens` lies in runs of `requests`, whose lengths would no "
            "longer fit. Name `requests`: the `tokens` of each follow."
        ),
    ),
    (
        lambda: on_device(lambda step: select(step, requests=[0])),
        (
            "`Decode.input_ids`: lies in runs whose lengths, `seq_lens`, are on the "
            "device, and the host would have to wait for them. Call `select` before "
            'the move, keep the lengths in a host field, or pass `lengths={"tokens": '
            "...}`."
        ),
    ),
    (
        lambda: on_device(
            lambda step: select(step, requests=[0], lengths={"tokens": [2, 3]})
        ),
        (
            "`Decode.last`: holds positions on `tokens` on the device, where nothing "
            "tells whether each is still there. Select before the move, or keep the "
            "positions in a host field and make them in `__payload_prepare__`."
        ),
    ),
    (
        lambda: select(decode(2, 3), requests=[0], lengths={"tokens": [2, 4]}),
        (
            "`Decode.input_ids`: has 5 items in 2 runs, and the lengths in "
            "`seq_lens` are 2 with the sum 6. Make the lengths fit."
        ),
    ),
    (
        lambda: select(host(last=torch.tensor([1])), rows=[0]),
        (
            "`Host.last`: points at position 1 of `rows`, which is not among those "
            "selected. Select it too, or leave the rows out that point at it."
        ),
    ),
    (
        lambda: split(decode(2, 3), "requests", [1]),
        (
            "`Decode`: `requests` has 2 items, and cannot be split into [1]. Pass "
            "sizes whose sum is the size of the axis."
        ),
    ),
    (
        lambda: pad(host(), rows=3),
        (
            "`Host.ids`: has no `pad`, and new rows on `rows` need a value. Write "
            '`Axis("rows", pad=0)`, with the value that fits.'
        ),
    ),
    (
        lambda: pad(decode(2, 3), requests=1),
        (
            "`Decode`: `requests` has 2 items, and 1 were asked for. Pass at least "
            "2, or `select`."
        ),
    ),
    (
        lambda: pad(decode(2, 3), requests=3.0),  # type: ignore[arg-type]  # on purpose
        "`Decode`: the size of `requests` is 3.0. Pass a whole number of items.",
    ),
    (
        lambda: cat([], "requests"),
        "`cat` got no payloads. Pass at least one of them.",
    ),
    (
        lambda: cat([decode(1), host()], "requests"),
        (
            "`Decode`: has a `Decode` and a `Host`. Put together only objects of one "
            "class."
        ),
    ),
    (
        lambda: cat([decode(1), evolve(decode(1), rope=torch.ones(2))], "requests"),
        (
            "`Decode.rope`: is not the same in all, and does not run along "
            "`requests`. Give it an `Axis`, or say what it becomes: "
            '`combine={"rope": lambda values: values[0]}`.'
        ),
    ),
    (
        lambda: cat([decode(1), decode(1)], "requests", combine={"roep": max}),
        (
            "`Decode`: `combine=` names `roep`, which is not a field. Name fields by "
            "their keys, such as `sampling.top_k`."
        ),
    ),
    (
        lambda: cat([decode(1), decode(1, blocks=3)], "requests"),
        (
            "`Decode.table`: has 2 and 3 on dim 1. Call `pad(x, blocks=...)` first, "
            "with one size for all."
        ),
    ),
    (
        lambda: cat([host(), Host(torch.ones(1))], "rows"),
        (
            "`Host.ids`: is torch.int64 in one and torch.float32 in another. Give "
            "both one dtype."
        ),
    ),
    (
        lambda: cat([host(starts=torch.arange(3)), host()], "rows"),
        (
            "`Host.starts`: is None in some and not in others, and its axis has no "
            "`pad`. Set it in all, or in none. Or write `pad=` into its `Axis`."
        ),
    ),
    (
        lambda: cat([host(images=[torch.ones(1)] * 2), host()], "rows"),
        (
            "`Host.images`: is None in some, and a list in others. Set it in all, or "
            "in none."
        ),
    ),
    (
        lambda: cat([host(parts=[torch.ones(1)]), host(parts=[])], "rows"),
        (
            "`Host.parts`: has lists of 1 and 0 items, and no axis runs along them. "
            "Put an axis on the list, or pass `combine=` for it."
        ),
    ),
    (
        lambda: copy_(empty_like(decode(1)), decode(2)),
        (
            "`Decode.input_ids`: needs 2 items on `tokens`, and its static has room "
            "for 1. Make the static with `tokens=2` or more."
        ),
    ),
    (
        lambda: copy_(decode(1), map_tensors(torch.Tensor.float, decode(1))),
        (
            "`Decode.input_ids`: has the dtype torch.float32, and its static has "
            "torch.int64. Give both one dtype."
        ),
    ),
    (
        lambda: map_tensors(seven, decode(1)),
        (
            "`input_ids`: the function gave an `int`, and only a tensor fits there. "
            "Return a tensor."
        ),
    ),
]


@pytest.mark.parametrize(("act", "text"), USES, ids=range(len(USES)))
def test_operation_that_cannot_be_says_why(act: Reads, text: str) -> None:
    """The error names the field, what is there, and the way out."""
    with pytest.raises((AxisError, TypeError)) as caught:
        act()

    assert text == str(caught.value)
