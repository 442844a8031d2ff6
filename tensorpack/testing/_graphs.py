"""CUDA graphs of the recorded machine: calls that are kept, and made again."""

# Note [recorded graphs]
# A real capture runs nothing. Here the captured operators run once, since their results
# must have shapes, but what they write to is put back, and nothing of them is in the
# log: a stream was given no work yet. A replay runs them again on the same memory, and
# the log has them on the stream that is current then. A graph keeps all tensors of its
# calls, as a real one keeps its pool.

import itertools
from typing import Any, Protocol

from tensorpack._leaves.streams import StreamId

__all__ = ["RecordedGraph", "graph_pool_handle"]

_pools = itertools.count(1)


class _Call(Protocol):
    """What a graph asks of a call."""

    def again(self) -> None: ...


class _World(Protocol):
    """What a graph asks of its world."""

    graphs: dict[StreamId, Any]

    def current(self) -> StreamId: ...


def graph_pool_handle() -> tuple[int, int]:
    """Return the handle of a new pool."""
    return (0, next(_pools))


class RecordedGraph:
    """A graph of the recorded machine; takes the place of `torch.cuda.CUDAGraph`."""

    world: _World  # set in a subclass, one for each world

    def __init__(self, keep_graph: bool = False) -> None:
        self._keeps = keep_graph
        self._calls: list[_Call] = []
        self._pool = (0, 0)

    def capture_begin(self, pool: Any = None, *_: object, **__: object) -> None:
        """Begin to capture what the current stream is given."""
        stream = self.world.current()
        if stream in self.world.graphs:
            msg = "CUDA error: operation not permitted when stream is capturing"
            raise RuntimeError(msg)
        self._pool = graph_pool_handle() if pool is None else pool
        self.world.graphs[stream] = self

    def capture_end(self) -> None:
        """End the capture, on all streams that have joined it."""
        graphs = self.world.graphs
        for stream in [s for s, graph in graphs.items() if graph is self]:
            del graphs[stream]

    def add(self, call: _Call) -> None:
        """Keep a call that is being captured."""
        self._calls.append(call)

    def replay(self) -> None:
        """Make all calls again, on the current stream."""
        for call in self._calls:
            call.again()

    def pool(self) -> Any:
        """Return the handle of the graph's memory pool."""
        return self._pool

    def reset(self) -> None:
        """Forget the graph, and let its memory go."""
        self._calls.clear()

    def instantiate(self) -> None:
        """Do nothing: there is no executable form."""

    def enable_debug_mode(self) -> None:
        """Do nothing."""

    def debug_dump(self, debug_path: str) -> None:
        """Do nothing."""

    def register_generator_state(self, generator: Any) -> None:
        """Do nothing: a replay draws new numbers in any case."""
