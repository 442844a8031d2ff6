"""What declared axes give: sizes, select, split, cat, pad and static memory.

In: payloads whose annotations say which dim runs along which axis. Out: new payloads,
from the same plan that moves and records them.
Imports `errors`, `_rules`, `_leaves`, `_plan` and `_walk`.
"""

from tensorpack.axes.concatenation import cat
from tensorpack.axes.fitting import copy_
from tensorpack.axes.padding import pad
from tensorpack.axes.selection import select, split
from tensorpack.axes.static import empty_like
from tensorpack.axes.survey import sizes

__all__ = ["cat", "copy_", "empty_like", "pad", "select", "sizes", "split"]
