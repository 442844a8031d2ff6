"""Payloads between ranks: one header and one packed buffer, over `torch.distributed`.

In: a payload on the rank that has it. Out: an equal one on every rank of the group.
The order of leaves, and what stays, come from the same walk as every move.
Imports `errors`, `_rules`, `_leaves`, `_plan`, `_walk`, `axes` and `transfer`'s layout.
"""

from tensorpack.distributed.collectives import broadcast, recv, send

__all__ = ["broadcast", "recv", "send"]
