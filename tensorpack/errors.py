"""The errors of tensorpack: each names what is wrong, where, and the way out.

Every error is built from named fields and composes its own sentence, which is its
only positional argument. So it survives pickling, also when a `DataLoader` worker or
its pin thread rebuilds it as `type(error)(text)`; then the fields are empty and the
text is whole. Fields are text, not classes, so that an error about a class that is
local to a function can cross a process boundary.
"""

import dataclasses
from collections.abc import Iterable, Sequence

__all__ = [
    "AxisError",
    "CaptureError",
    "CycleError",
    "DefinitionError",
    "GuardError",
    "HandoffError",
    "HazardError",
    "LeafCountError",
    "LeafError",
    "LifetimeError",
    "RankError",
    "Refusal",
    "StreamError",
    "TensorpackError",
    "UndecoratedError",
]


class TensorpackError(Exception):
    """The base of all errors that tensorpack raises."""

    def __init__(self, text: str = "", /) -> None:
        super().__init__(text)


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Why one field of a class was refused.

    Attributes:
        field: the field's name.
        annotation: the annotation as the user wrote it.
        culprit: the part of the annotation without lifetime support.
        reason: why it has none, as a clause.
        remedies: what to write instead, one sentence each.
    """

    field: str
    annotation: str
    culprit: str
    reason: str
    remedies: tuple[str, ...]

    def sentence(self, cls: str) -> str:
        """Compose the line of this refusal for the class called `cls`."""
        whole = self.culprit in (self.annotation, self.field)
        inside = "" if whole else f" (in `{self.annotation}`)"
        remedies = " ".join(self.remedies)
        return (
            f"`{cls}.{self.field}`: `{self.culprit}`{inside} {self.reason}. {remedies}"
        )


class LifetimeError(TensorpackError, TypeError):
    """A class was refused: some of its fields have no lifetime support.

    Attributes:
        cls: name of the class.
        refusals: one `Refusal` for each bad field, in field order.
    """

    def __init__(
        self, text: str = "", /, *, cls: str = "", refusals: Sequence[Refusal] = ()
    ) -> None:
        self.cls = cls
        self.refusals: tuple[Refusal, ...] = tuple(refusals)
        super().__init__(text or "\n".join(r.sentence(cls) for r in self.refusals))


class DefinitionError(TensorpackError, TypeError):
    """`@payload` was used in a way that cannot work.

    Attributes:
        cls: name of the class.
        problem: what is there and why it cannot be.
        remedy: what to write instead.
    """

    def __init__(
        self, text: str = "", /, *, cls: str = "", problem: str = "", remedy: str = ""
    ) -> None:
        self.cls = cls
        self.problem = problem
        self.remedy = remedy
        super().__init__(text or f"`{cls}`: {problem}. {remedy}")


class UndecoratedError(TensorpackError, TypeError):
    """An instance of a payload's subclass that is no payload itself was used.

    Attributes:
        cls: name of the undecorated class.
        base: name of the nearest payload above it, or "" if there is none.
        lost: names of the fields that the base knows nothing of.
        remade: whether a decorator above `@payload` has made the class anew.
        key: address of the value, or "" for the object itself.
    """

    def __init__(
        self,
        text: str = "",
        /,
        *,
        cls: str = "",
        base: str = "",
        lost: Sequence[str] = (),
        remade: bool = False,
        key: str = "",
    ) -> None:
        self.cls = cls
        self.base = base
        self.lost: tuple[str, ...] = tuple(lost)
        self.remade = remade
        self.key = key
        super().__init__(text or self._sentence())

    def _sentence(self) -> str:
        where = f"`{self.key}`: " if self.key else ""
        if self.remade:
            return (
                f"{where}`{self.cls}` was made anew by a decorator above `@payload`, "
                "and the new class is no payload. Put `@payload` on top."
            )
        above = f" derives from the payload `{self.base}` but" if self.base else ""
        names = ", ".join(f"`{name}`" for name in self.lost)
        lost = ""
        if self.lost:
            one = len(self.lost) == 1
            lost = f" Its field{'' if one else 's'} {names} would be lost."
        return (
            f"{where}`{self.cls}`{above} is not decorated with `@payload`.{lost} "
            f"Decorate `{self.cls}` with `@payload`."
        )


class LeafError(TensorpackError, TypeError):
    """A value is not what its field's annotation says, so its lifetime is unknown.

    Attributes:
        cls: name of the class whose traversal met the value, or "".
        key: address of the value, such as `"meta['grid']"`.
        found: what is there.
        problem: why it cannot be, as a clause.
        remedy: what to write instead.
    """

    def __init__(
        self,
        text: str = "",
        /,
        *,
        cls: str = "",
        key: str = "",
        found: str = "",
        problem: str = "",
        remedy: str = "",
    ) -> None:
        self.cls = cls
        self.key = key
        self.found = found
        self.problem = problem
        self.remedy = remedy
        owner = f"{cls}." if cls and not key.startswith("[") else cls
        where = f"`{owner}{key}`: " if owner or key else ""
        super().__init__(text or f"{where}{found} {problem}. {remedy}")


class CycleError(TensorpackError, ValueError):
    """A payload or container holds itself.

    Attributes:
        cls: name of the class of the value that is met again.
        key: address at which it is met again.
    """

    def __init__(self, text: str = "", /, *, cls: str = "", key: str = "") -> None:
        self.cls = cls
        self.key = key
        super().__init__(
            text
            or f"`{key}`: this `{cls}` holds itself, so it has no end. "
            "Break the cycle, or mark the field that closes it `Borrowed`."
        )


class LeafCountError(TensorpackError, ValueError):
    """A twin was to be made from a list of leaves of the wrong length.

    Attributes:
        cls: name of the class.
        given: how many leaves were given.
        more: whether the object now asks for more than that, or for fewer.
    """

    def __init__(
        self, text: str = "", /, *, cls: str = "", given: int = 0, more: bool = False
    ) -> None:
        self.cls = cls
        self.given = given
        self.more = more
        asks = "more" if more else "fewer"
        super().__init__(
            text
            or f"`{cls}`: {given} leaves were given, and the object now has {asks}. "
            "It was changed while it was being moved. Hand over a payload that no "
            "other code changes."
        )


class AxisError(TensorpackError, ValueError):
    """What an operation on a batch axis needs is not there.

    Attributes:
        cls: name of the class whose traversal met the value, or "".
        key: address of the value, such as `"sampling.top_k"`, or "" for the whole.
        problem: what is there and why it cannot be, as a clause.
        remedy: what to do instead.
    """

    def __init__(
        self,
        text: str = "",
        /,
        *,
        cls: str = "",
        key: str = "",
        problem: str = "",
        remedy: str = "",
    ) -> None:
        self.cls = cls
        self.key = key
        self.problem = problem
        self.remedy = remedy
        owner = f"{cls}." if cls and key and not key.startswith("[") else cls
        where = f"`{owner}{key}`: " if owner or key else ""
        super().__init__(text or f"{where}{problem}. {remedy}")


class StreamError(TensorpackError, ValueError):
    """A stream cannot be used for what was asked.

    Attributes:
        problem: what is wrong with it.
        remedy: what to pass instead.
    """

    def __init__(
        self, text: str = "", /, *, problem: str = "", remedy: str = ""
    ) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(text or f"{problem}. {remedy}")


class CaptureError(TensorpackError, RuntimeError):
    """A transfer was asked for while a graph is being captured.

    Attributes:
        call: what was called.
        stream: which of the streams is capturing.
    """

    def __init__(self, text: str = "", /, *, call: str = "", stream: str = "") -> None:
        self.call = call
        self.stream = stream
        super().__init__(
            text
            or f"`{call}`: the {stream} stream is capturing a graph, and a replay "
            "would neither copy again nor keep the memory. Transfer before the "
            "capture: `start(x, into=static)` before each replay; what is on the "
            "device already, `axes.copy_(static, x)` copies inside the graph."
        )


class HandoffError(TensorpackError, RuntimeError):
    """A handoff or copy stream was used after its end.

    Attributes:
        call: what was called.
        problem: why it cannot be.
        remedy: what to do instead.
    """

    def __init__(
        self, text: str = "", /, *, call: str = "", problem: str = "", remedy: str = ""
    ) -> None:
        self.call = call
        self.problem = problem
        self.remedy = remedy
        super().__init__(text or f"`{call}`: {problem}. {remedy}")


class RankError(TensorpackError, RuntimeError):
    """A payload could not travel between ranks; every rank of the call raises.

    Attributes:
        call: what was called, or "".
        rank: the rank on which it went wrong; -1 if that is this one.
        problem: what is wrong.
        remedy: what to do instead.
    """

    def __init__(
        self,
        text: str = "",
        /,
        *,
        call: str = "",
        rank: int = -1,
        problem: str = "",
        remedy: str = "",
    ) -> None:
        self.call = call
        self.rank = rank
        self.problem = problem
        self.remedy = remedy
        where = f"`{call}`: " if call else ""
        who = f"rank {rank} could not send: " if rank >= 0 else ""
        super().__init__(text or f"{where}{who}{problem}. {remedy}".rstrip())


def its_fields(names: Iterable[str]) -> str:
    """Say which fields a class has."""
    listed = ", ".join(f"`{name}`" for name in names)
    return f"Its fields are {listed}." if listed else "It has no fields."


class GuardError(TensorpackError, RuntimeError):
    """A guard cannot watch.

    Attributes:
        problem: why.
        remedy: what to do instead.
    """

    def __init__(
        self, text: str = "", /, *, problem: str = "", remedy: str = ""
    ) -> None:
        self.problem = problem
        self.remedy = remedy
        super().__init__(text or f"`lifetime_guard`: {problem}. {remedy}")


class HazardError(TensorpackError, RuntimeError):
    """A guard has found memory that is used without order, or freed too early.

    Attributes:
        hazards: the report of each.
    """

    def __init__(self, text: str = "", /, *, hazards: Sequence[str] = ()) -> None:
        self.hazards: tuple[str, ...] = tuple(hazards)
        super().__init__(text or "\n\n".join(hazards))
