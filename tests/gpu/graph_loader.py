"""Run torch_geometric's own prefetching loader, unchanged, under the guard.

    PYTHONPATH=. python tests/gpu/graph_loader.py

Its batches are allocated on the loader's stream and handed to the current one; this
prints what the guard has to say of that, or what is missing to run it.
"""

import sys

import torch

from tensorpack.guard import lifetime_guard


def main() -> int:
    """Run a few batches; return 1 if the guard has found something."""
    try:
        from torch_geometric.data import Data  # noqa: PLC0415  # is optional
        from torch_geometric.loader import (  # noqa: PLC0415  # is optional
            DataLoader,
            PrefetchLoader,
        )
    except ImportError as error:
        print(f"not run: {error}")
        return 2
    graphs = [
        Data(x=torch.randn(4096, 64), edge_index=torch.randint(4096, (2, 8192)))
        for _ in range(32)
    ]
    loader = PrefetchLoader(DataLoader(graphs, batch_size=4), torch.device("cuda"))
    with lifetime_guard(mode="collect") as report:
        for batch in loader:
            # The model: work of the current stream that reads every part.
            source, target = batch.edge_index
            torch.zeros_like(batch.x).index_add_(
                0, target, batch.x[source]
            ).relu().sum()
            del batch, source, target
    torch.cuda.synchronize()
    print(report or "nothing found")
    return 1 if len(report) else 0


if __name__ == "__main__":
    sys.exit(main())
