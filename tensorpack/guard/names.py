"""The names of streams in reports."""

from tensorpack.guard.order import StreamKey
from tensorpack.guard.places import Place

__all__ = ["Names"]


class Names:
    """Names streams: as the program does where that is known, else by their number."""

    def __init__(self) -> None:
        self._numbers: dict[StreamKey, int] = {}
        self._given: dict[StreamKey, str] = {}
        self._made: dict[StreamKey, Place] = {}

    def give(self, stream: StreamKey, name: str) -> None:
        """Give a stream a name."""
        self._given[stream] = name

    def made(self, stream: StreamKey, place: Place) -> None:
        """Note where a stream was made: the program has a name for it there."""
        self._made[stream] = place

    def __call__(self, stream: StreamKey) -> str:
        """Return what a stream is called in a sentence."""
        _, device, number = stream
        if not number:
            return "the default stream" + (f" of cuda:{device}" if device else "")
        count = self._numbers.setdefault(stream, len(self._numbers) + 1)
        name = self._given.get(stream)
        if name is None and stream in self._made:
            name = self._made[stream].target()
        return f"stream {count}" + (f" `{name}`" if name else "")
