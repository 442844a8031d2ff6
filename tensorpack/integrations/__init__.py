"""Ready-made support for types of other libraries, and for torch's pytrees.

In: torchrec's jagged tensors, TensorDict, PackedSequence, `torch.utils._pytree`.
Out: registered adapters and pytree nodes.
Imports `errors`, `_rules`, `_leaves`, `_plan` and `_walk`.
"""
