"""Fifty packed transfers and their use, for a memory checker of the device.

compute-sanitizer --tool memcheck python tests/bench/fifty_transfers.py
"""

import torch

from tensorpack import CopyStream


def main() -> None:
    """Transfer leaves of many shapes, read and write each, and compare."""
    forward = torch.cuda.Stream()
    with CopyStream("cuda") as copies:
        print(copies)
        for step in range(1, 51):
            source = [
                torch.full((step,), step),
                torch.full((3, step), 2.0).t(),
                torch.ones(step) > 0,
                torch.empty(0),
                torch.full((step * 5000,), 3.0),
                torch.full((1 << 18,), 4.0).pin_memory(),
            ]
            found = copies.start(source).take(forward)
            with torch.cuda.stream(forward):
                kept = [leaf.clone() for leaf in found]
                for leaf in found:
                    leaf.zero_()
                torch.add(torch.zeros(8, device="cuda"), 1, out=found[3])
            forward.synchronize()
            assert all(map(torch.equal, source, (leaf.cpu() for leaf in kept)))
    print("50 transfers are right")


if __name__ == "__main__":
    main()
