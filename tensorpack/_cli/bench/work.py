"""What is done between two transfers: it cools the caches, or keeps a stream busy."""

import json
from collections.abc import Callable

import torch

__all__ = ["WORK"]

Work = Callable[[], object]

_ROUNDS = 20
_REQUESTS = json.dumps([{"id": i, "text": str(i), "n": [i] * 4} for i in range(500)])


def _nothing(device: torch.device, consumer: torch.Stream | None) -> Work | None:  # noqa: ARG001  # one form for all
    return None


def _host_work(device: torch.device, consumer: torch.Stream | None) -> Work | None:  # noqa: ARG001  # the same
    """Read some requests, as a scheduler does."""
    return lambda: json.loads(_REQUESTS)


def _eager_work(device: torch.device, consumer: torch.Stream | None) -> Work | None:  # noqa: ARG001  # the same
    """Queue what a model run eagerly queues: dozens of small operations."""
    matrix = torch.randn(64, 64, device="cpu" if device.type == "meta" else device)

    def work() -> None:
        x = matrix
        for _ in range(_ROUNDS):
            x = torch.softmax(x @ x.t() + 1, -1)
            torch.nn.functional.layer_norm(x, x.shape[-1:])

    return work


def _busy_consumer(device: torch.device, consumer: torch.Stream | None) -> Work | None:
    """Keep the consumer some dozens of microseconds behind the host."""
    if consumer is None:
        return None
    weight = torch.randn(1024, 1024, device=device)

    def work() -> None:
        with consumer:
            torch.mm(weight, weight)

    return work


WORK = {
    "warm": _nothing,
    "busy consumer": _busy_consumer,
    "after host work": _host_work,
    "after eager work": _eager_work,
}
"""By mode, what makes the work before each life, of the device and the consumer."""
