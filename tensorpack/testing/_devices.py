"""The devices of the recorded machine: there is one, and `"cuda"` means it."""

from typing import Any

import torch

__all__ = ["CUDA", "NAME", "check_index", "indexed"]

CUDA = 1
"""torch's number for the device type of CUDA streams."""

NAME = torch.device("cuda", 0)


def indexed(device: Any) -> Any:
    """Return a CUDA device with its index, and anything else as it is."""
    if type(device) is int:
        return torch.device("cuda", device)
    if device == "cuda" if isinstance(device, str) else False:
        return NAME
    if isinstance(device, torch.device) and str(device) == "cuda":
        return NAME
    return device


def check_index(device: Any) -> int:
    """Return the index of a device that is asked for.

    Raises:
        RuntimeError: the machine has no such device.
    """
    found = torch.device(indexed("cuda" if device is None else device))
    if found.index:
        msg = "CUDA error: invalid device ordinal"
        raise RuntimeError(msg)
    return 0
