"""What the tests of the audit import."""

from collections.abc import Callable

from tensorpack._audit.audit import Findings

__all__ = ["HEAD", "Audited"]

Audited = Callable[[str | dict[str, str]], Findings]

HEAD = """
import torch
from dataclasses import dataclass, field, fields, replace
from typing import Any, NamedTuple
from torch import Tensor
"""
