"""Programs with a planted bug, and right ones, for a device or recorded streams.

Each is a whole small program in the words of `torch.cuda`. In a wrong one, the line
whose use of the memory is in danger ends with `# in danger`.
"""

import inspect
import threading
from collections.abc import Callable, Iterator

import attrs
import torch
from torch import Tensor

from tensorpack import CopyStream, Payload, payload, prefetch

N = 1 << 12
SIZE = (N,)


def host(value: float = 1.0) -> Tensor:
    """Make a pinned source."""
    return torch.full(SIZE, value).pin_memory()


def take_again(stream: torch.cuda.Stream) -> None:
    """Allocate what may lie where something was freed, and fill it."""
    with torch.cuda.stream(stream):
        torch.full(SIZE, 7.0, device="cuda").add_(1)


def copied(stream: torch.cuda.Stream) -> tuple[Tensor, torch.cuda.Event]:
    """Copy something to the device on a stream."""
    source = host()
    with torch.cuda.stream(stream):
        there = source.to("cuda", non_blocking=True)
        return there, stream.record_event()


def line_in_danger(program: Callable[[], object]) -> int:
    """Return the line of a program that is marked."""
    lines, first = inspect.getsourcelines(program)
    return next(first + i for i, x in enumerate(lines) if x.endswith("# in danger\n"))


# Wrong ones.


def event_wait_without_record() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    x, ready = copied(copies)
    forward.wait_event(ready)
    with torch.cuda.stream(forward):
        x.sum()  # in danger
    del x
    take_again(copies)


def wrong_stream_recorded() -> None:
    copies, forward, other = (torch.cuda.Stream() for _ in range(3))
    x, ready = copied(copies)
    forward.wait_event(ready)
    x.record_stream(other)
    with torch.cuda.stream(forward):
        x.mul(2)  # in danger
    del x
    take_again(copies)


@attrs.define
class Inner:
    mask: Tensor
    scale: Tensor


@attrs.define
class Outer:
    ids: Tensor
    inner: Inner

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        self.ids.record_stream(stream)
        self.inner.mask.record_stream(stream)


def nested_field_forgotten() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(copies):
        there = [host(i).to("cuda", non_blocking=True) for i in range(3)]
        batch = Outer(there[0], Inner(there[1], there[2]))
    forward.wait_stream(copies)
    batch.record_stream(forward)
    with torch.cuda.stream(forward):
        batch.ids.sum()
        batch.inner.mask.sum()
        batch.inner.scale.exp()  # in danger
    del batch, there
    take_again(copies)


def alias_freed() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    x, ready = copied(copies)
    view = x.view(2, -1)[1]
    forward.wait_event(ready)
    with torch.cuda.stream(forward):
        kept = x.clone()
        view.exp()  # in danger
    kept.record_stream(forward)
    del x, view
    take_again(copies)


def copy_stream_recorded() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    x, ready = copied(copies)
    forward.wait_event(ready)
    x.record_stream(copies)
    with torch.cuda.stream(forward):
        x.cumsum(0)  # in danger
    del x
    take_again(copies)


def dropped_before_the_join() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    x, ready = copied(copies)
    forward.wait_event(ready)
    held = [x]
    with torch.cuda.stream(forward):
        x.sin()  # in danger
    del x
    held.clear()
    take_again(copies)
    copies.wait_stream(forward)


def result_read_early() -> None:
    forward = torch.cuda.Stream()
    with torch.cuda.stream(forward):
        x = torch.ones(SIZE, device="cuda")
        there = x.to("cpu", non_blocking=True)
        forward.record_event()
    there.sum()  # in danger
    torch.cuda.synchronize()


def pinned_source_overwritten() -> None:
    copies = torch.cuda.Stream()
    staging = host()
    with torch.cuda.stream(copies):
        staging.to("cuda", non_blocking=True)
    staging.fill_(2)  # in danger
    torch.cuda.synchronize()


def join_by_another_stream() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    x, ready = copied(copies)
    forward.wait_event(ready)
    with torch.cuda.stream(forward):
        x.cos()  # in danger
        done = forward.record_event()
    torch.cuda.current_stream().wait_event(done)
    del x
    take_again(copies)


class Base:
    def __init__(self, tensors: list[Tensor]) -> None:
        self.ids = tensors[0]

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        self.ids.record_stream(stream)


class Left(Base):
    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__(tensors)
        self.left = tensors[1]

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        self.left.record_stream(stream)
        Base.record_stream(self, stream)


class Right(Base):
    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__(tensors)
        self.right = tensors[2]

    def record_stream(self, stream: torch.cuda.Stream) -> None:
        self.right.record_stream(stream)
        super().record_stream(stream)


class Diamond(Left, Right):
    """Its left base calls `Base` by name, so the right one is passed over."""


def diamond_skips_a_record() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(copies):
        batch = Diamond([host(i).to("cuda", non_blocking=True) for i in range(3)])
    forward.wait_stream(copies)
    batch.record_stream(forward)
    with torch.cuda.stream(forward):
        (batch.ids + batch.left).sum()
        batch.right.tanh()  # in danger
    del batch
    take_again(copies)


@attrs.frozen
class Wrong:
    """A program with a bug, and what is to be said of it."""

    run: Callable[[], None]
    kind: str
    operation: str


WRONG = {
    wrong.run.__name__: wrong
    for wrong in (
        Wrong(event_wait_without_record, "lifetime", "aten.sum"),
        Wrong(wrong_stream_recorded, "lifetime", "aten.mul"),
        Wrong(nested_field_forgotten, "lifetime", "aten.exp"),
        Wrong(alias_freed, "lifetime", "aten.exp"),
        Wrong(copy_stream_recorded, "lifetime", "aten.cumsum"),
        Wrong(dropped_before_the_join, "lifetime", "aten.sin"),
        Wrong(result_read_early, "host read", "aten.sum"),
        Wrong(pinned_source_overwritten, "host write", "aten.fill_"),
        Wrong(join_by_another_stream, "lifetime", "aten.cos"),
        Wrong(diamond_skips_a_record, "lifetime", "aten.tanh"),
    )
}

# Right ones.

STEPS = 4


def recorded() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(STEPS):
        x, ready = copied(copies)
        forward.wait_event(ready)
        x.record_stream(forward)
        with torch.cuda.stream(forward):
            x.sum()


def joined_by_events() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(STEPS):
        x, ready = copied(copies)
        forward.wait_event(ready)
        with torch.cuda.stream(forward):
            x.sum()
        copies.wait_event(forward.record_event())
        del x


def freed_then_joined() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(STEPS):
        x, ready = copied(copies)
        forward.wait_event(ready)
        with torch.cuda.stream(forward):
            x.sum()
            done = forward.record_event()
        del x
        copies.wait_event(done)
        take_again(copies)


def joined_through_a_third_stream() -> None:
    copies, forward, other = (torch.cuda.Stream() for _ in range(3))
    for _ in range(STEPS):
        x, ready = copied(copies)
        forward.wait_event(ready)
        with torch.cuda.stream(forward):
            x.sum()
        other.wait_stream(forward)
        copies.wait_stream(other)
        del x


def held_until_synchronized() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    held = []
    for _ in range(STEPS):
        x, ready = copied(copies)
        forward.wait_event(ready)
        with torch.cuda.stream(forward):
            x.sum()
            held.append((x, forward.record_event()))
        del x
        if len(held) > 2:
            _, done = held[0]
            done.synchronize()
            held.pop(0)
    torch.cuda.synchronize()


def batches_kept_two_steps() -> None:
    # As an overlapped scheduler does it (SGLang, `batch_record_buf`): a list of two
    # keeps each batch while the forward stream may read it, and the result of a step
    # is waited for before the step after the next one is built.
    schedule, forward = torch.cuda.current_stream(), torch.cuda.Stream()
    kept: list[Tensor | None] = [None, None]
    results: list[tuple[Tensor, torch.cuda.Event]] = []
    for step in range(STEPS):
        batch = torch.full(SIZE, float(step), device="cuda")
        kept[step % 2] = batch
        forward.wait_stream(schedule)
        with torch.cuda.stream(forward):
            result = torch.empty((), pin_memory=True)
            result.copy_((batch * 2).mean(), non_blocking=True)
            results.append((result, forward.record_event()))
        if len(results) == 2:
            result, done = results.pop(0)
            done.synchronize()
            assert 2.0 * (step - 1) == result.item()
    torch.cuda.synchronize()


def held_until_queried() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    held: list[tuple[Tensor, torch.cuda.Event]] = []
    for _ in range(STEPS):
        x, ready = copied(copies)
        forward.wait_event(ready)
        with torch.cuda.stream(forward):
            x.sum()
            held.append((x, forward.record_event()))
        del x
        held = [(x, done) for x, done in held if not done.query()]
    torch.cuda.synchronize()


def one_stream() -> None:
    for _ in range(STEPS):
        x = host().to("cuda", non_blocking=True)
        y = x.view(2, -1)[1] * 2
        del x
        y.add_(1)


def device_synchronized() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    for _ in range(STEPS):
        x, ready = copied(copies)
        forward.wait_event(ready)
        with torch.cuda.stream(forward):
            x.sum()
        torch.cuda.synchronize()
        del x
        take_again(copies)


@payload
class Batch(Payload):
    ids: Tensor
    mask: Tensor
    scale: Tensor


def batch(value: int) -> Batch:
    return Batch(torch.arange(9) + value, torch.ones(5), torch.full((3,), 1.0))


def packed() -> None:
    copies, forward = CopyStream("cuda"), torch.cuda.Stream()
    for step in range(STEPS):
        found = copies.start(batch(step)).take(forward)
        with torch.cuda.stream(forward):
            found.ids.sum()
            found.scale.add_(1)


def prefetched() -> None:
    for found in prefetch([batch(step) for step in range(STEPS)], "cuda"):
        found.ids.sum()


def fetched() -> None:
    copies, forward = CopyStream("cuda"), torch.cuda.Stream()
    for step in range(STEPS):
        found = copies.start(batch(step)).take(forward)
        with torch.cuda.stream(forward):
            out = found.ids * 2
        fetch = copies.fetch({"out": out}, after=forward)
        del out, found
        assert 9 == len(fetch.result()["out"])


def gathered_on_a_side_stream() -> None:
    main, side = torch.cuda.current_stream(), torch.cuda.Stream()
    shards = [torch.full((N // 4,), float(i), device="cuda") for i in range(4)]
    held = []
    for _ in range(STEPS):
        side.wait_stream(main)
        with torch.cuda.stream(side):
            whole = torch.empty(SIZE, device="cuda")
            for part, shard in zip(whole.chunk(4), shards, strict=True):
                part.copy_(shard)
            ready = side.record_event()
        main.wait_event(ready)
        whole.sum()
        held.append(whole)
        del whole
        if len(held) == 2:
            side.wait_stream(main)
            held.clear()
    side.wait_stream(main)


def static_buffers() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(forward):
        static = torch.zeros(SIZE, device="cuda")
        done = forward.record_event()
    sources = [host(step) for step in range(STEPS)]
    for source in sources:
        copies.wait_event(done)
        with torch.cuda.stream(copies):
            static.copy_(source, non_blocking=True)
            ready = copies.record_event()
        forward.wait_event(ready)
        with torch.cuda.stream(forward):
            static.sum()
            done = forward.record_event()
    copies.wait_event(done)
    torch.cuda.synchronize()


def two_buffers_behind_events() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(copies):
        buffers = [torch.empty(SIZE, device="cuda") for _ in range(2)]
    done: list[torch.cuda.Event | None] = [None, None]
    for step in range(2 * STEPS):
        buffer, last = buffers[step % 2], done[step % 2]
        if last is not None:
            copies.wait_event(last)
        with torch.cuda.stream(copies):
            buffer.copy_(host(step), non_blocking=True)
        forward.wait_stream(copies)
        with torch.cuda.stream(forward):
            buffer.sum()
            done[step % 2] = forward.record_event()
    copies.wait_stream(forward)


def columns_of_one_buffer() -> None:
    one, two = torch.cuda.Stream(), torch.cuda.Stream()
    whole = torch.zeros(16, 8, device="cuda")
    for stream in (one, two):
        stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(one):
        whole[:, :4].add_(1)
    with torch.cuda.stream(two):
        whole[:, 4:].add_(2)
    for stream in (one, two):
        torch.cuda.current_stream().wait_stream(stream)
    whole.sum()


def parts_of_one_block() -> None:
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    cache = torch.zeros(4, N, device="cuda")
    copies.wait_stream(torch.cuda.current_stream())
    forward.wait_stream(torch.cuda.current_stream())
    for step in range(STEPS):
        with torch.cuda.stream(copies):
            cache[step % 2].copy_(host(step), non_blocking=True)
        with torch.cuda.stream(forward):
            cache[2 + step % 2].mul_(2)
    for stream in (copies, forward):
        torch.cuda.current_stream().wait_stream(stream)


def result_read_in_time() -> None:
    forward = torch.cuda.Stream()
    for _ in range(STEPS):
        with torch.cuda.stream(forward):
            there = torch.ones(SIZE, device="cuda").to("cpu", non_blocking=True)
            done = forward.record_event()
        done.synchronize()
        assert N == int(there.sum())


def pinned_ring() -> None:
    copies = torch.cuda.Stream()
    ring = [host() for _ in range(2)]
    done: list[torch.cuda.Event | None] = [None, None]
    for step in range(2 * STEPS):
        last = done[step % 2]
        if last is not None:
            last.synchronize()
        ring[step % 2].fill_(step)
        with torch.cuda.stream(copies):
            ring[step % 2].to("cuda", non_blocking=True).sum()
            done[step % 2] = copies.record_event()
    torch.cuda.synchronize()


def pinned_sources_dropped() -> None:
    copies = torch.cuda.Stream()
    for step in range(STEPS):
        with torch.cuda.stream(copies):
            host(step).to("cuda", non_blocking=True).sum()


def two_threads() -> None:
    def work() -> None:
        for _ in range(STEPS):
            recorded()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()


def host_results() -> None:
    forward = torch.cuda.Stream()
    for step in range(STEPS):
        with torch.cuda.stream(forward):
            x = torch.full(SIZE, float(step), device="cuda")
            assert step == x.mean().item()
            assert N == len(x.cpu())


def loader_with_pinning() -> None:
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.ones(16, 4)), batch_size=4
    )
    copies, forward = torch.cuda.Stream(), torch.cuda.Stream()
    for (rows,) in loader:
        with torch.cuda.stream(copies):
            there = rows.pin_memory().to("cuda", non_blocking=True)
        forward.wait_stream(copies)
        there.record_stream(forward)
        with torch.cuda.stream(forward):
            there.sum()


RIGHT: dict[str, Callable[[], None]] = {
    run.__name__: run
    for run in (
        recorded,
        joined_by_events,
        freed_then_joined,
        joined_through_a_third_stream,
        held_until_synchronized,
        batches_kept_two_steps,
        held_until_queried,
        one_stream,
        device_synchronized,
        packed,
        prefetched,
        fetched,
        gathered_on_a_side_stream,
        static_buffers,
        two_buffers_behind_events,
        columns_of_one_buffer,
        parts_of_one_block,
        result_read_in_time,
        pinned_ring,
        pinned_sources_dropped,
        two_threads,
        host_results,
        loader_with_pinning,
    )
}


def names() -> Iterator[str]:
    """Iterate the names of all programs."""
    yield from WRONG
    yield from RIGHT


if __name__ == "__main__":
    import sys

    for name in sys.argv[1:]:
        program = WRONG[name].run if name in WRONG else RIGHT[name]
        program()
