"""How the parts of one message get from the sender to the others."""

from collections.abc import Callable
from typing import Any

import attrs
import torch
import torch.distributed as dist
from torch import Tensor

from tensorpack.errors import RankError

__all__ = ["Group", "Route", "broadcast_route", "recv_route", "send_route"]


@attrs.frozen
class Group:
    """Who takes part, and where the bytes travel.

    Attributes:
        members: carries the leaves.
        headers: carries the headers.
        device: of the leaves while they travel.
        header_device: of the headers.
    """

    members: dist.ProcessGroup
    headers: dist.ProcessGroup
    device: torch.device
    header_device: torch.device

    @classmethod
    def of(
        cls,
        call: str,
        group: dist.ProcessGroup | None,
        metadata_group: dist.ProcessGroup | None,
    ) -> "Group":
        """Look up the group's devices.

        Raises:
            RankError: there is no process group, or this rank is not in it.
        """
        if not (dist.is_available() and dist.is_initialized()):
            raise RankError(
                call=call,
                problem="there is no process group",
                remedy="Call `torch.distributed.init_process_group` first.",
            )
        members: Any = dist.group.WORLD if group is None else group
        headers: Any = members if metadata_group is None else metadata_group
        for each in (members, headers):
            if dist.get_rank(each) < 0:
                raise RankError(
                    call=call,
                    problem="this rank is not in the group",
                    remedy="Call it on the ranks of the group only.",
                )
        kinds, header_kinds = _device_kinds(members), _device_kinds(headers)
        return cls(
            members,
            headers,
            _device("cuda" if "cuda" in kinds and _has_accelerator() else "cpu"),
            _device("cpu" if "cpu" in header_kinds else "cuda"),
        )

    @property
    def rank(self) -> int:
        """The global rank of this process."""
        return dist.get_rank()

    def ranks(self) -> list[int]:
        """Return the global ranks of the members, in the order of the group."""
        return dist.get_process_group_ranks(self.members)


def _device_kinds(group: dist.ProcessGroup) -> set[str]:
    """Return the kinds of device that a group has a backend for."""
    config = dist.get_backend_config(group)
    rows = (row.split(":", 1) for row in str(config).split(","))
    return {kind for kind, *backend in rows if backend and backend != ["gloo"]} | {
        "cpu" for kind in str(config).split(",") if "gloo" in kind or "mpi" in kind
    }


def _has_accelerator() -> bool:
    return torch.accelerator.is_available()


def _device(kind: str) -> torch.device:
    """Return the current device of a kind."""
    if kind == "cpu":
        return torch.device("cpu")
    return torch.device(kind, torch.accelerator.current_device_index())


@attrs.frozen
class Route:
    """Moves tensors from the sender to the receivers, in order.

    Attributes:
        call: what the user has called.
        source: the global rank that sends.
        header: moves the bytes of a header, on the header's device.
        data: moves leaves, on the group's device.
    """

    call: str
    source: int
    header: Callable[[Tensor], object]
    data: Callable[[Tensor], object]


def broadcast_route(group: Group, src: int) -> Route:
    """Return the route from one rank to all others."""
    return Route(
        "broadcast",
        src,
        lambda x: dist.broadcast(x, src, group=group.headers),
        lambda x: dist.broadcast(x, src, group=group.members),
    )


def send_route(group: Group, dst: int) -> Route:
    """Return the route to one rank."""
    return Route(
        "send",
        group.rank,
        lambda x: dist.send(x, dst, group=group.headers),
        lambda x: dist.send(x, dst, group=group.members),
    )


def recv_route(group: Group, src: int) -> Route:
    """Return the route from one rank."""
    return Route(
        "recv",
        src,
        lambda x: dist.recv(x, src, group=group.headers),
        lambda x: dist.recv(x, src, group=group.members),
    )
