"""What the arguments of several commands mean."""

import argparse

import torch

__all__ = ["open_device", "positive"]


def positive(text: str) -> int:
    """Read a number of steps or rounds."""
    if not text.isdecimal() or int(text) < 1:
        msg = f"`{text}` is not a whole number of at least 1"
        raise argparse.ArgumentTypeError(msg)
    return int(text)


def open_device(name: str) -> torch.device:
    """Give a device by its name, and prove that it is there and holds values.

    Raises:
        ValueError: it is not there, or keeps nothing.
    """
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).tolist()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        msg = f"--device {name}: {str(error).splitlines()[0]}"
        raise ValueError(msg) from error
    return device
