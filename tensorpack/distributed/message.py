"""One message: written on the sender, read on every receiver.

# Note [who may refuse, and when]
A rank that raises before a collective leaves the others in it until their timeout. So
the sender looks at everything first, and where it cannot send it sends a header that
says why; and a receiver that cannot build what it gets still takes part in the message
to its end, and raises then.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import attrs
import torch
from torch import Tensor

from tensorpack._leaves.operations import moved
from tensorpack._walk.build import prepared, rebuild
from tensorpack.distributed.channel import Receiving, Sending
from tensorpack.distributed.header import HEADER, Begun, Header, Kind
from tensorpack.distributed.route import Group, Route
from tensorpack.distributed.skeleton import dump, load, numbered
from tensorpack.distributed.wire import WireLayout, unsendable
from tensorpack.errors import LeafError, RankError

__all__ = ["Message", "failure", "read", "receive_message", "send_message", "write"]

T = TypeVar("T")
Target = torch.device | str | int | None
"""Where leaves are to arrive; None for the device of the group."""


@attrs.frozen
class Message:
    """What a sender has ready before anybody is involved.

    Attributes:
        header: of the message.
        layout: of the leaves.
        value: what is sent, children prepared.
        once: its leaves, each object once.
        numbers: the number in `once` of each place's leaf, in plan order.
    """

    header: Header
    layout: WireLayout
    value: Any
    once: list[Tensor]
    numbers: list[int]

    def gathered(self, device: torch.device) -> Tensor:
        """Return the packed buffer, on the device where it travels.

        Streams:
            Queued on the current stream of `device`; the host does not block.
        """
        on_host = all(leaf.is_cpu for leaf in self.once)
        if on_host and device.type != "cpu":
            row = torch.empty(self.layout.nbytes, dtype=torch.uint8, pin_memory=True)
            self.layout.fill(self.once, row)
            return row.to(device, non_blocking=True)
        buffer = torch.empty(self.layout.nbytes, dtype=torch.uint8, device=device)
        self.layout.fill(self.once, buffer)
        return buffer

    def alone(self, device: torch.device) -> list[Tensor]:
        """Return the leaves that travel alone, dense and on the device."""
        found = []
        for index in self.layout.alone:
            leaf = self.once[index].to(device, non_blocking=True).resolve_conj()
            leaf = leaf.resolve_neg()
            stride = self.layout.places[index].stride
            if leaf.stride() != stride:
                dense = torch.empty_strided(
                    leaf.shape, stride, dtype=leaf.dtype, device=device
                )
                leaf = dense.copy_(leaf)
            found.append(leaf)
        return found


def write(value: Any, end: Sending) -> Message:
    """Make the message of a value, or raise before anybody is involved.

    Raises:
        LeafError: a leaf cannot travel between ranks.
    """
    value, found = prepared(value)
    once, numbers = numbered(found.leaves)
    for leaf in once:
        problem = unsendable(leaf)
        if problem is not None:
            cls, key = found.where(leaf)
            raise LeafError(
                cls=cls,
                key=key,
                found="this leaf",
                problem=problem,
                remedy="Send a dense plain tensor, such as `x.detach()`, or mark the "
                "field `HostOnly` or `Borrowed`.",
            )
    known = end.find(once)
    layout = known.layout
    skeleton = dump(value, known.holes, numbers)
    told, forget = end.promise(known)
    header = Header(
        Kind.VALUE,
        known.number,
        forget,
        layout.digest,
        layout.nbytes,
        b"" if told else layout.text,
        skeleton,
    )
    return Message(header, layout, value, once, numbers)


def failure(error: BaseException) -> Header:
    """Return the header that says why the sender could not send."""
    text = f"{type(error).__name__}: {error}"
    return Header(Kind.ERROR, 0, -1, bytes(8), 0, b"", text.encode())


def send_message(
    value: T, group: Group, route: Route, end: Sending, target: Target
) -> T:
    """Send a value; return what the receivers get.

    Raises:
        Exception: what kept the value from being sent; all receivers have been told.
    """
    try:
        message = write(value, end)
    except Exception as error:
        _send_header(failure(error), group, route)
        raise
    _send_header(message.header, group, route)
    buffer = message.gathered(group.device)
    if message.layout.nbytes:
        route.data(buffer)
    alone = message.alone(group.device)
    for leaf in alone:
        route.data(as_bytes(leaf))
    wanted = _resolved(target, group)
    came = message.layout.cut(buffer, alone)
    new = [
        old if old.device == wanted else leaf
        for old, leaf in zip(message.once, came, strict=True)
    ]
    new = moved(new, wanted, non_blocking=True)
    sent: T = rebuild(message.value, [new[number] for number in message.numbers])
    return sent


def receive_message(group: Group, route: Route, end: Receiving, target: Target) -> Any:
    """Receive a value.

    Raises:
        RankError: the sender could not send, or this rank cannot build what it got.
    """
    header = _receive_header(group, route)
    if header.kind is Kind.ERROR:
        raise refused(header, route)
    problem: RankError | None = None
    layout: WireLayout | None = None
    try:
        layout = end.layout(header.number, header.layout, header.digest, header.forget)
    except RankError as error:
        problem = error
    buffer = torch.empty(header.nbytes, dtype=torch.uint8, device=group.device)
    if header.nbytes:
        route.data(buffer)
    if layout is None:
        assert problem is not None  # noqa: S101  # one of the two is there
        raise problem
    alone = layout.empty_alone(group.device)
    for leaf in alone:
        route.data(as_bytes(leaf))
    return read(header, layout.cut(buffer, alone), group, target)


def read(header: Header, once: Sequence[Tensor], group: Group, target: Target) -> Any:
    """Build the value of a message whose leaves are here."""
    wanted = _resolved(target, group)
    return load(header.skeleton, moved(once, wanted, non_blocking=True))


def _resolved(target: Target, group: Group) -> torch.device:
    """Return a device with its index.

    It is asked when the message is over: a device that is not there must not keep a
    rank from taking part.
    """
    if target is None:
        return group.device
    found = torch.device(target)
    if found.type == "cpu" or ":" in str(found):
        return found
    return torch.device(found.type, torch.accelerator.current_device_index())


def refused(header: Header, route: Route) -> RankError:
    """Return the error of a sender that could not send."""
    problem = header.skeleton.decode().removesuffix(".")
    return RankError(call=route.call, rank=route.source, problem=problem)


def as_bytes(leaf: Tensor) -> Tensor:
    """Return a dense leaf as a row of bytes over the same memory."""
    return leaf.as_strided((leaf.numel(),), (1,)).view(torch.uint8)


def _send_header(header: Header, group: Group, route: Route) -> None:
    for part in header.encode():
        if part is not None:
            route.header(part.to(group.header_device))


def _receive_header(group: Group, route: Route) -> Header:
    """Receive a header, and the rest of it where it was too long."""
    first = torch.empty(HEADER, dtype=torch.uint8, device=group.header_device)
    route.header(first)
    begun = Begun.read(first.cpu())
    if not begun.missing:
        return begun.done(None)
    rest = torch.empty(begun.missing, dtype=torch.uint8, device=group.header_device)
    route.header(rest)
    return begun.done(rest.cpu())
