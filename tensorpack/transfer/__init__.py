"""The transfer layer: `CopyStream`, its handoffs, packing and staging.

In: any value with lifetime support, on the host or the device. Out: a handoff whose
`wait` pays both debts, order and lifetime. Knows walks and leaves, never plans.
Imports `errors`, `_leaves`, `_walk`, `_codegen.compile` and `_functions`.
"""

from tensorpack.transfer.copy_stream import CopyStream, Counters, Fetch, Handoff

__all__ = ["CopyStream", "Counters", "Fetch", "Handoff"]
