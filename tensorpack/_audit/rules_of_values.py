"""The rules about how values, streams and copies are treated."""

from tensorpack._audit.rule import Rule

__all__ = ["RULES"]

RULES = (
    Rule(
        "TP111",
        "elements are left out of the new list",
        """
A list is built anew, and elements that fail a test are not put in: the new list is
shorter than the old one, and its elements belong to other rows.
""",
        """
@dataclass
class Track:
    frames: list[Tensor]

    def to(self, device):
        moved = []
        for frame in self.frames:
            if hasattr(frame, "to"):
                moved.append(frame.to(device))
        return Track(frames=moved)
""",
        '            if hasattr(frame, "to"):\n'
        "                moved.append(frame.to(device))",
        "            moved.append(frame.to(device))",
    ),
    Rule(
        "TP112",
        "errors of a move or a record are swallowed",
        """
`try: ... except Exception: pass` around a move or a record hides every value that
cannot be handled, and every bug in those that can.
""",
        """
@dataclass
class Batch:
    ids: Tensor

    def record_stream(self, stream):
        try:
            self.ids.record_stream(stream)
        except Exception:
            pass
""",
        "            pass",
        "            raise",
    ),
    Rule(
        "TP113",
        "a walker leaves unknown values unrecorded in silence",
        """
A function that records whatever it is given tests types one by one and has no `else`:
a new class with tensors inside is left out, and nothing says so.
""",
        """
def record_stream(value, stream):
    if isinstance(value, Tensor):
        value.record_stream(stream)
    elif isinstance(value, dict):
        for each in value.values():
            record_stream(each, stream)
""",
        "            record_stream(each, stream)",
        "            record_stream(each, stream)\n    else:\n"
        "        raise TypeError(type(value))",
    ),
    Rule(
        "TP114",
        "a cache survives a move",
        """
A cache that was computed from the fields is handed to the moved object as it is and
still refers to the old device. Reset it: the new object computes its own.
""",
        """
class Jagged:
    def __init__(self, values: Tensor, cache: dict[str, Tensor] | None = None):
        self.values = values
        self.cache = cache

    def to(self, device):
        return Jagged(self.values.to(device), cache=self.cache)
""",
        "cache=self.cache)",
        "cache=None)",
    ),
    Rule(
        "TP115",
        "the result is thrown away, or the class is read",
        """
`tensor.to(...)`, `detach()` and their kin give a new tensor and leave the old one as
it is. `getattr(Class, name)` reads the default of the field, not the value of the
object.
""",
        """
@dataclass
class Batch:
    ids: Tensor

    def detach(self):
        self.ids.detach()
        return self
""",
        "        self.ids.detach()",
        "        self.ids = self.ids.detach()",
    ),
    Rule(
        "TP116",
        "the source is changed together with the new object",
        """
`vars(x)` and `x.__dict__` are the dictionary of the object itself: a loop that writes
the moved values into it moves the source too. Copy it first.
""",
        """
@dataclass
class State:
    ids: Tensor

    def to(self, device):
        state = vars(self)
        for name, value in state.items():
            state[name] = value.to(device)
        return State(**state)
""",
        "state = vars(self)",
        "state = dict(vars(self))",
    ),
    Rule(
        "TP117",
        "a tensor is recorded on the stream that made it",
        """
The allocator already knows the stream on which a block was allocated; recording that
one does nothing. Record the stream that reads the tensor.
""",
        """
def fetch(host, copy_stream, forward_stream):
    with torch.cuda.stream(copy_stream):
        batch = host.to("cuda", non_blocking=True)
        batch.record_stream(copy_stream)
    return batch
""",
        "batch.record_stream(copy_stream)",
        "batch.record_stream(forward_stream)",
    ),
    Rule(
        "TP118",
        "an asynchronous copy to the host that nothing waits for",
        """
`to("cpu", non_blocking=True)` returns before the copy is done. Reading the result
without a synchronization reads what was in the memory before.
""",
        """
def read(logits):
    values = logits.to("cpu", non_blocking=True)
    return values.tolist()
""",
        "    return values",
        "    torch.cuda.synchronize()\n    return values",
    ),
    Rule(
        "TP119",
        "a side stream hands tensors out with an event and no record",
        """
An event orders the two streams; it does not tell the allocator that another stream
reads the block. Once Python drops the tensor, the side stream may write to its
memory.
""",
        """
def start(host, side_stream):
    with torch.cuda.stream(side_stream):
        batch = host.to("cuda", non_blocking=True)
    ready = side_stream.record_event()
    return batch, ready
""",
        "    return batch, ready",
        "    batch.record_stream(torch.cuda.current_stream())\n    return batch, ready",
    ),
    Rule(
        "TP120",
        "a merge keeps a field only if both objects have it",
        """
`if a.x is not None and b.x is not None:` without an `else` drops the value of one
side, or keeps it without the rows of the other.
""",
        """
def merge(one: "Batch", two: "Batch"):
    mask = None
    if one.mask is not None and two.mask is not None:
        mask = torch.cat([one.mask, two.mask])
    return mask
""",
        "        mask = torch.cat([one.mask, two.mask])",
        "        mask = torch.cat([one.mask, two.mask])\n"
        "    elif one.mask is not two.mask:\n"
        '        raise ValueError("only one side has a mask")',
    ),
    Rule(
        "TP121",
        "a size leaves out a field",
        """
A method that adds up bytes does not count a field that holds tensors: buffers that
are planned by it are too small.
""",
        """
@dataclass
class Batch:
    ids: Tensor
    mask: Tensor

    def nbytes(self):
        return self.ids.numel() * self.ids.element_size()
""",
        "self.ids.numel() * self.ids.element_size()",
        "sum(each.nbytes for each in (self.ids, self.mask))",
    ),
)
