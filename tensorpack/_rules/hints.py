"""Fields whose names say that they live on the host, while their types travel."""

import re
from typing import TypeVar

from tensorpack._rules.nodes import NodeOf, TensorNode, UnionNode

__all__ = ["host_hint"]

C = TypeVar("C")

_ON_HOST = re.compile(r"(?:.*_)?(?:cpu|host)|(?:cpu|host)_.*")


def host_hint(cls: str, field: str, node: NodeOf[C]) -> str | None:
    """Return what to tell about a leaf that its name keeps on the host; else None.

    >>> host_hint("Batch", "lens_cpu", TensorNode())
    '`Batch.lens_cpu`: moves to the device; `HostOnly[Tensor]` keeps it on the host.'
    >>> host_hint("Batch", "lens", TensorNode())
    """
    arms = node.arms if isinstance(node, UnionNode) else (node,)
    if not any(isinstance(arm, TensorNode) for arm in arms):
        return None
    if _ON_HOST.fullmatch(field) is None:
        return None
    way = "`HostOnly[Tensor]` keeps it on the host"
    return f"`{cls}.{field}`: moves to the device; {way}."
