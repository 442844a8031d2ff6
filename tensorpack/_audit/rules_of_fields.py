"""The rules about fields that a whole-object method leaves out."""

from tensorpack._audit.rule import Rule

__all__ = ["RULES"]

RULES = (
    Rule(
        "TP101",
        "record_stream leaves out a field",
        """
The caching allocator hands a block out again as soon as Python drops it, unless the
stream that reads it is recorded. A tensor that `record_stream` forgets is overwritten
while kernels still read it. Record it, next to the others.
""",
        """
@dataclass
class Batch:
    ids: Tensor
    mask: Tensor

    def record_stream(self, stream):
        self.ids.record_stream(stream)
""",
        "self.ids.record_stream(stream)",
        "self.ids.record_stream(stream)\n        self.mask.record_stream(stream)",
    ),
    Rule(
        "TP102",
        "one method handles a field, its sibling does not",
        """
Two methods of a class that should reach the same tensors do not: what moves by one
stays behind by the other. Let both go over one list of fields.
""",
        """
@dataclass
class Batch:
    ids: Tensor
    mask: Tensor

    def to(self, device):
        self.ids = self.ids.to(device)
        self.mask = self.mask.to(device)
        return self

    def cuda(self):
        self.ids = self.ids.cuda()
        return self
""",
        "self.ids = self.ids.cuda()",
        "self.ids = self.ids.cuda()\n        self.mask = self.mask.cuda()",
    ),
    Rule(
        "TP103",
        "no method moves a field",
        """
A field whose annotation says that it holds tensors stays on its old device. If that
is meant, say so next to the field (`# stays on CPU`), else move it.
""",
        """
@dataclass
class Batch:
    ids: Tensor
    mask: Tensor

    def to(self, device):
        self.ids = self.ids.to(device)
        return self
""",
        "self.ids = self.ids.to(device)",
        "self.ids = self.ids.to(device)\n        self.mask = self.mask.to(device)",
    ),
    Rule(
        "TP104",
        "clone shares a field with the original",
        """
A clone that hands on a tensor itself is written to together with the original.
""",
        """
@dataclass
class State:
    position: Tensor
    velocity: Tensor

    def clone(self):
        return State(position=self.position.clone(), velocity=self.velocity)
""",
        "velocity=self.velocity",
        "velocity=self.velocity.clone()",
    ),
    Rule(
        "TP105",
        "clone or copy_ drops a field",
        """
The new object has the default instead of the value, or the old buffer keeps its old
values: a graph that is replayed reads those of an earlier step.
""",
        """
@dataclass
class State:
    position: Tensor
    velocity: Tensor

    def copy_(self, other):
        self.position.copy_(other.position)
""",
        "self.position.copy_(other.position)",
        "self.position.copy_(other.position)\n"
        "        self.velocity.copy_(other.velocity)",
    ),
    Rule(
        "TP106",
        "a method rebuilds its object and loses a field",
        """
A new object of the class takes most fields from the old one and not all: those that
are left out fall back to their defaults. `dataclasses.replace` carries the rest.
""",
        """
@dataclass
class Batch:
    ids: Tensor
    lengths: Tensor
    padding: int = 0

    def to(self, device):
        return Batch(ids=self.ids.to(device), lengths=self.lengths.to(device))
""",
        "lengths=self.lengths.to(device)",
        "lengths=self.lengths.to(device), padding=self.padding",
    ),
    Rule(
        "TP107",
        "a function rebuilds an object and loses a field",
        """
The same as TP106 in a function: slices, filters, merges. What most other functions
that rebuild the class hand on, this one drops.
""",
        """
@dataclass
class Batch:
    ids: Tensor
    lengths: Tensor
    mask: Tensor | None = None

def select(batch: Batch, rows):
    return Batch(ids=batch.ids[rows], lengths=batch.lengths[rows])
""",
        "lengths=batch.lengths[rows]",
        "lengths=batch.lengths[rows], mask=batch.mask[rows]",
    ),
    Rule(
        "TP108",
        "a diamond whose method does not call super()",
        """
Of two bases that each handle their own fields, the first does not call `super()`, so
the method of the second is never reached.
""",
        """
@dataclass
class Ids:
    ids: Tensor

    def record_stream(self, stream):
        self.ids.record_stream(stream)

@dataclass
class Mask:
    mask: Tensor

    def record_stream(self, stream):
        self.mask.record_stream(stream)

@dataclass
class Both(Ids, Mask):
    pass
""",
        "self.ids.record_stream(stream)",
        "self.ids.record_stream(stream)\n        super().record_stream(stream)",
    ),
    Rule(
        "TP109",
        "an inherited method does not know a subclass's field",
        """
The method of a base names its fields one by one; a subclass adds a field with tensors
and does not override the method.
""",
        """
@dataclass
class Base:
    ids: Tensor

    def record_stream(self, stream):
        self.ids.record_stream(stream)

@dataclass
class Derived(Base):
    mask: Tensor
""",
        "    mask: Tensor",
        "    mask: Tensor\n\n    def record_stream(self, stream):\n"
        "        super().record_stream(stream)\n"
        "        self.mask.record_stream(stream)",
    ),
    Rule(
        "TP110",
        "a type test passes over a field",
        """
A loop over all fields handles only some types, and has no `else`. Lists, dictionaries
and nested objects with tensors inside are passed over. A field of type `Any` may hold
one: its confidence is low.
""",
        """
@dataclass
class Batch:
    ids: Tensor
    parts: list[Tensor]

    def record_stream(self, stream):
        for value in vars(self).values():
            if isinstance(value, Tensor):
                value.record_stream(stream)
""",
        "                value.record_stream(stream)",
        "                value.record_stream(stream)\n"
        "            elif isinstance(value, list):\n"
        "                for each in value:\n"
        "                    each.record_stream(stream)",
    ),
)
