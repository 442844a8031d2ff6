"""The header of a message: fixed size, so that every rank can take part in it."""

import ctypes
import enum
import struct

import attrs
import torch
from torch import Tensor

__all__ = ["HEADER", "Begun", "Header", "Kind"]

HEADER = 2048
"""Bytes of a header. What does not fit follows in a second message of known length."""

_FIXED = struct.Struct("<4sBIi8sQII")
_MAGIC = b"tpk1"


class Kind(enum.IntEnum):
    """What a message says."""

    VALUE = 1
    ERROR = 2
    """The sender could not send; the body says why."""


@attrs.frozen
class Header:
    """What a receiver must know before it can receive.

    Attributes:
        kind: what the message says.
        number: the layout's number; the sender counts.
        forget: the number of a layout that both forget now; -1 for none.
        digest: of the layout.
        nbytes: bytes of the packed buffer.
        layout: the layout's text; empty if the receiver knows the number.
        skeleton: the host part, or the text of an error.
    """

    kind: Kind
    number: int
    forget: int
    digest: bytes
    nbytes: int
    layout: bytes
    skeleton: bytes

    def encode(self) -> tuple[Tensor, Tensor | None]:
        """Write the header, and the rest if it does not fit."""
        body = self.layout + self.skeleton
        fixed = _FIXED.pack(
            _MAGIC,
            self.kind,
            self.number,
            self.forget,
            self.digest,
            self.nbytes,
            len(self.layout),
            len(self.skeleton),
        )
        whole = bytearray(HEADER)
        inline = body[: HEADER - len(fixed)]
        whole[: len(fixed)] = fixed
        whole[len(fixed) : len(fixed) + len(inline)] = inline
        rest = body[len(inline) :]
        first = torch.frombuffer(whole, dtype=torch.uint8)
        if not rest:
            return first, None
        return first, torch.frombuffer(bytearray(rest), dtype=torch.uint8)


@attrs.frozen
class Begun:
    """A header whose rest is still to come.

    Attributes:
        missing: bytes of the rest.
    """

    fields: tuple[bytes, int, int, int, bytes, int, int, int]
    body: bytes
    missing: int

    @classmethod
    def read(cls, first: Tensor) -> "Begun":
        """Read the fixed part.

        Raises:
            ValueError: these are not the bytes of a header.
        """
        raw = _bytes(first)
        fields = _FIXED.unpack_from(raw)
        if fields[0] != _MAGIC:
            msg = "these bytes are not the header of a payload"
            raise ValueError(msg)
        length = fields[6] + fields[7]
        body = raw[_FIXED.size : _FIXED.size + length]
        return cls(fields, body, length - len(body))

    def done(self, rest: Tensor | None) -> Header:
        """Return the whole header."""
        body = self.body + (_bytes(rest) if rest is not None else b"")
        _, kind, number, forget, digest, nbytes, cut, _ = self.fields
        return Header(
            Kind(kind), number, forget, digest, nbytes, body[:cut], body[cut:]
        )


def _bytes(host: Tensor) -> bytes:
    """Return the bytes of a contiguous host tensor; numpy may not be there."""
    return ctypes.string_at(host.data_ptr(), host.nbytes)
