"""The payloads that the tests of axes share."""

from typing import Annotated, Any

import torch
from torch import Tensor

from tensorpack import Axis, Index, Offsets, Payload, Size, evolve, payload


@payload
class Decode(Payload):
    """A decode step: requests, their tokens in runs, and a table of blocks."""

    input_ids: Annotated[Tensor, Axis("tokens", pad=0, lengths="seq_lens")]
    seq_lens: Annotated[Tensor, Axis("requests", pad=0)]
    starts: Annotated[Tensor, Offsets("requests")]
    last: Annotated[Tensor, Axis("requests", pad=0), Index("tokens")]
    table: Annotated[Tensor, Axis("requests", pad=0), Axis("blocks", dim=1, pad=-1)]
    names: Annotated[list[str], Axis("requests", pad="")]
    count: Annotated[int, Size("requests")]
    rope: Tensor
    longest: int = 0

    def __payload_resized__(self) -> "Decode":
        """Compute what depends on the lengths, on the host alone."""
        if not self.seq_lens.is_cpu:
            return self
        return evolve(self, longest=max(self.seq_lens.tolist(), default=0))


ROPE = torch.ones(2)


def decode(*lengths: int, blocks: int = 2) -> Decode:
    """Make a step of requests of some lengths; tokens are numbered."""
    lens = torch.tensor(lengths)
    ends = lens.cumsum(0)
    rows = len(lengths)
    return Decode(
        input_ids=torch.arange(int(lens.sum())) + 100,
        seq_lens=lens,
        starts=torch.cat((torch.zeros(1, dtype=torch.int64), ends)),
        last=ends - 1,
        table=torch.arange(rows * blocks).view(rows, blocks),
        names=[f"r{i}" for i in range(rows)],
        count=rows,
        rope=ROPE,
        longest=max(lengths, default=0),
    )


def listed(value: Any) -> dict[str, Any]:
    """Return the fields of a payload, tensors as lists."""
    fields = {n: getattr(value, n) for n in type(value).__annotations__}
    return {n: x.tolist() if isinstance(x, Tensor) else x for n, x in fields.items()}
