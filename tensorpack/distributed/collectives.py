"""Broadcast, send and receive: what a tensor-parallel or pipelined engine calls."""

from typing import Any, TypeVar

import torch
import torch.distributed as dist

from tensorpack.distributed.channel import receiving, sending
from tensorpack.distributed.message import receive_message, send_message
from tensorpack.distributed.route import (
    Group,
    broadcast_route,
    recv_route,
    send_route,
)

__all__ = ["broadcast", "recv", "send"]

T = TypeVar("T")


def broadcast(
    value: T | None,
    src: int = 0,
    *,
    group: dist.ProcessGroup | None = None,
    metadata_group: dist.ProcessGroup | None = None,
    device: torch.device | str | int | None = None,
) -> T:
    """Give every rank of a group the value of one.

    A step is one header and one packed buffer, whatever the number of fields; a layout
    that the ranks have seen is named by a number. Leaves of 256 KB and more travel in a
    collective each.

    Args:
        value: the payload, tensor, container or mapping on rank `src`; elsewhere it is
            ignored.
        src: the global rank that has the value.
        group: the ranks that take part; all of them by default.
        metadata_group: carries the headers. With an NCCL group, pass a gloo group of
            the same ranks: then no rank synchronizes with its device to read a header.
        device: where the leaves arrive; by default the group's device: the current
            CUDA device of an NCCL group, the host of a gloo group.

    Returns:
        The value, on every rank, `src` included. Host fields are pickled, as
        `torch.distributed.broadcast_object_list` does: take part only with ranks of
        your own job. `Borrowed` and `Resident` fields belong to one rank and arrive as
        their default; `Derived` fields and cached properties start anew.

    Raises:
        RankError: there is no such group; the source could not send (on every rank); a
            class differs between ranks (on the ranks where it does).
        LeafError: on the source, a leaf that cannot travel; the others get a
            `RankError` that says so.

    Streams:
        Leaves are queued on the current stream, which also waits for the collective.
        The host blocks for the header only.
    """
    own = Group.of("broadcast", group, metadata_group)
    route = broadcast_route(own, src)
    if own.rank == src:
        end = sending(own.members, "all")
        return send_message(value, own, route, end, device)  # type: ignore[return-value]  # the source has a value
    from_src = receiving(own.members, ("all", src))
    found: T = receive_message(own, route, from_src, device)
    return found


def send(
    value: object,
    dst: int,
    *,
    group: dist.ProcessGroup | None = None,
    metadata_group: dist.ProcessGroup | None = None,
) -> None:
    """Send a value to one rank, which calls `recv`.

    Args:
        value: a payload, tensor, container or mapping.
        dst: the global rank that receives it.
        group: the group that carries the leaves.
        metadata_group: carries the headers, as in `broadcast`.

    Raises:
        RankError: there is no such group.
        LeafError: a leaf cannot travel; the receiver gets a `RankError` that says so.

    Streams:
        As `broadcast`.
    """
    own = Group.of("send", group, metadata_group)
    send_message(value, own, send_route(own, dst), sending(own.members, dst), None)


def recv(
    src: int,
    *,
    group: dist.ProcessGroup | None = None,
    metadata_group: dist.ProcessGroup | None = None,
    device: torch.device | str | int | None = None,
) -> Any:
    """Receive the value that one rank sends.

    Args:
        src: the global rank that calls `send`.
        group: the group that carries the leaves.
        metadata_group: carries the headers, as in `broadcast`.
        device: where the leaves arrive, as in `broadcast`.

    Returns:
        The value.

    Raises:
        RankError: there is no such group; the sender could not send; a class differs
            between the two ranks.

    Streams:
        As `broadcast`.
    """
    own = Group.of("recv", group, metadata_group)
    end = receiving(own.members, src)
    return receive_message(own, recv_route(own, src), end, device)
