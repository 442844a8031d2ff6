"""Many steps of random sizes, drops and errors: right values, flat memory."""

import random

import pytest
import torch

from tensorpack import CopyStream, LeafError

pytestmark = pytest.mark.cuda


def test_ten_thousand_random_steps_stay_right_and_flat() -> None:
    """Checksums hold all along, nothing stays in flight, memory does not grow."""
    rng = random.Random(7)
    forward = torch.cuda.Stream()
    sums = []
    middle = 0
    with CopyStream("cuda", max_in_flight=6) as copies:
        for step in range(10_000):
            sizes = [
                rng.choice((1, 7, 64, 1000, 70_000)) for _ in range(rng.randint(1, 8))
            ]
            source = [torch.full((n,), step % 1000 + i) for i, n in enumerate(sizes)]
            expected = sum(n * (step % 1000 + i) for i, n in enumerate(sizes))
            kind = rng.random()
            if kind < 0.02:
                with pytest.raises(LeafError):
                    copies.start([*source, object()])
                continue
            handoff = copies.start(source)
            if kind < 0.05:
                del handoff
                continue
            found = handoff.take(forward)
            with torch.cuda.stream(forward):
                sums.append((torch.stack([t.sum() for t in found]).sum(), expected))
            del found
            if len(sums) == 500:
                assert all(int(total) == wanted for total, wanted in sums)
                sums.clear()
            if step == 5000:
                torch.cuda.synchronize()
                middle = torch.cuda.memory_reserved()
        torch.cuda.synchronize()
        assert all(int(total) == wanted for total, wanted in sums)
        copies.start(source).take(forward)
        torch.cuda.synchronize()
        copies.reap()

        assert torch.cuda.memory_reserved() <= middle * 1.2
        assert 0 == copies.retained
        assert copies.in_flight <= 2
