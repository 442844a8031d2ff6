"""Shapes of bugs of public code, written anew: each is found, its cure is not."""

import pytest
from audit.texts import Audited

BUGS = {
    "A1: the record forgets a tuple that the move handles": (
        "TP101",
        ("inverse",),
        """
        @dataclass
        class Jagged:
            values: Tensor
            lengths: Tensor
            inverse: tuple[list[str], Tensor] | None = None

            def to(self, device):
                inverse = self.inverse
                if inverse is not None:
                    inverse = (inverse[0], inverse[1].to(device))
                return Jagged(
                    values=self.values.to(device),
                    lengths=self.lengths.to(device),
                    inverse=inverse,
                )

            def record_stream(self, stream):
                self.values.record_stream(stream)
                self.lengths.record_stream(stream)
        """,
        "self.lengths.record_stream(stream)",
        """self.lengths.record_stream(stream)
                if self.inverse is not None:
                    self.inverse[1].record_stream(stream)""",
    ),
    "A2: a cache survives the move that another mover resets": (
        "TP114",
        ("_parts",),
        """
        class Part:
            def __init__(self, values: Tensor) -> None:
                self.values = values

            def to(self, device):
                return Part(self.values.to(device))

        class Jagged:
            def __init__(
                self, values: Tensor, parts: dict[str, Part] | None = None
            ) -> None:
                self._values = values
                self._parts: dict[str, Part] | None = parts

            def to(self, device):
                return Jagged(values=self._values.to(device), parts=self._parts)

            def pin_memory(self):
                return Jagged(values=self._values.pin_memory(), parts=None)
        """,
        "values=self._values.to(device), parts=self._parts",
        "values=self._values.to(device), parts=None",
    ),
    "A3: a diamond whose first base does not call super": (
        "TP108",
        ("block_size",),
        """
        @dataclass
        class Pool:
            ids: Tensor | None = None

            def record_stream(self, stream):
                if self.ids is not None:
                    self.ids.record_stream(stream)

        @dataclass
        class Rows:
            block_size: Tensor | None = None

            def record_stream(self, stream):
                if self.block_size is not None:
                    self.block_size.record_stream(stream)

        @dataclass
        class PoolOfRows(Pool, Rows):
            def record_stream(self, stream):
                super().record_stream(stream)
        """,
        """self.ids.record_stream(stream)
""",
        """self.ids.record_stream(stream)
                super().record_stream(stream)
""",
    ),
    "A4: an override calls super and forgets its own list": (
        "TP101",
        ("contexts",),
        """
        @dataclass
        class Context:
            lengths: Tensor

            def record_stream(self, stream):
                self.lengths.record_stream(stream)

        @dataclass
        class Base:
            ids: Tensor

            def record_stream(self, stream):
                self.ids.record_stream(stream)

        @dataclass
        class Derived(Base):
            remapped: Tensor | None = None
            contexts: list[Context] = field(default_factory=list)

            def record_stream(self, stream):
                super().record_stream(stream)
                if self.remapped is not None:
                    self.remapped.record_stream(stream)
        """,
        "self.remapped.record_stream(stream)",
        """self.remapped.record_stream(stream)
                for context in self.contexts:
                    context.record_stream(stream)""",
    ),
    "A5: a subclass adds a tensor to a base that names its fields": (
        "TP109",
        ("scores",),
        """
        @dataclass
        class Base:
            ids: Tensor
            mask: Tensor

            def to(self, device):
                for name in ("ids", "mask"):
                    setattr(self, name, getattr(self, name).to(device))
                return self

        @dataclass
        class Derived(Base):
            scores: Tensor | None = None
        """,
        'for name in ("ids", "mask"):',
        "for name in [f.name for f in fields(self)]:",
    ),
    "A6: a loop over __dict__ tests one class and has no else": (
        "TP110",
        ("sibling",),
        """
        class Movable:
            def to(self, device):
                raise NotImplementedError

        @dataclass
        class Sibling:
            values: Tensor

            def record_stream(self, stream):
                self.values.record_stream(stream)

        @dataclass
        class Own(Movable):
            ids: Tensor

            def record_stream(self, stream):
                self.ids.record_stream(stream)

        @dataclass
        class Batch(Movable):
            own: Own
            sibling: Sibling

            def record_stream(self, stream):
                for value in self.__dict__.values():
                    if isinstance(value, Movable):
                        value.record_stream(stream)
        """,
        "isinstance(value, Movable)",
        "isinstance(value, (Movable, Sibling))",
    ),
    "A7: a loop tests for tensors, a field is Any": (
        "TP110",
        ("logprobs",),
        """
        @dataclass
        class Extra:
            ids: Tensor
            logprobs: Any = None

            def record_stream(self, stream):
                for f in fields(self):
                    value = getattr(self, f.name)
                    if isinstance(value, Tensor) and value.is_cuda:
                        value.record_stream(stream)
        """,
        "if isinstance(value, Tensor) and value.is_cuda:",
        "if value is not None:",
    ),
    "A8: two movers of a class test their values in different ways": (
        "TP102",
        (),
        """
        class Element:
            def items(self):
                return self.__dict__.items()

            def to(self, device):
                new = self.new()
                for key, value in self.items():
                    if hasattr(value, "to"):
                        new.set(key, value.to(device))
                return new

            def cpu(self):
                new = self.new()
                for key, value in self.items():
                    if isinstance(value, (Tensor, Element)):
                        new.set(key, value.cpu())
                return new

            def new(self):
                return type(self)()
        """,
        "isinstance(value, (Tensor, Element))",
        'hasattr(value, "cpu")',
    ),
    "A9: clone copies six of nine fields": (
        "TP105",
        ("g", "h", "i"),
        """
        @dataclass
        class State:
            a: Tensor
            b: Tensor
            c: Tensor
            d: Tensor | None = None
            e: Tensor | None = None
            f: int = 0
            g: Tensor | None = None
            h: float = 1.0
            i: Tensor | None = None

            def clone(self):
                return State(
                    a=self.a.clone(),
                    b=self.b.clone(),
                    c=self.c.clone(),
                    d=self.d.clone() if self.d is not None else None,
                    e=self.e.clone() if self.e is not None else None,
                    f=self.f,
                )
        """,
        "f=self.f,",
        """f=self.f,
                    g=self.g.clone(),
                    h=self.h,
                    i=self.i.clone(),""",
    ),
    "A10: copy_ for a graph knows fewer tensors than its sibling": (
        "TP105",
        ("jerk",),
        """
        @dataclass
        class Joint:
            position: Tensor
            velocity: Tensor
            jerk: Tensor | None = None

            def copy_(self, other):
                self.position.copy_(other.position)
                self.velocity.copy_(other.velocity)
                return self

            def copy_reference(self, other):
                self.position = other.position
                self.velocity = other.velocity
                self.jerk = other.jerk
                return self
        """,
        "self.velocity.copy_(other.velocity)",
        """self.velocity.copy_(other.velocity)
                self.jerk.copy_(other.jerk)""",
    ),
    "A11: clone shares one tensor and clones the others": (
        "TP104",
        ("heading",),
        """
        @dataclass
        class Goal:
            pose: Tensor
            heading: Tensor
            speed: Tensor

            def clone(self):
                return Goal(
                    pose=self.pose.clone(),
                    heading=self.heading,
                    speed=self.speed.clone(),
                )
        """,
        "heading=self.heading",
        "heading=self.heading.clone()",
    ),
    "A12: a rebuild by keywords loses fields": (
        "TP106",
        ("mask", "scale"),
        """
        @dataclass
        class Packed:
            ids: Tensor
            lengths: Tensor
            offsets: Tensor
            positions: Tensor
            labels: Tensor
            mask: Tensor | None = None
            scale: float = 1.0

            def unpadded(self):
                keep = self.lengths > 0
                return Packed(
                    ids=self.ids[keep],
                    lengths=self.lengths[keep],
                    offsets=self.offsets[keep],
                    positions=self.positions[keep],
                    labels=self.labels[keep],
                )
        """,
        "labels=self.labels[keep],",
        "labels=self.labels[keep], mask=self.mask[keep], scale=self.scale,",
    ),
    "A13: a function slices an object and a boolean falls back": (
        "TP107",
        ("states", "is_chunk"),
        """
        @dataclass
        class Inputs:
            ids: Tensor
            lengths: Tensor
            offsets: Tensor
            states: Tensor | None = None
            is_chunk: bool = False

        def micro_batch(inputs: Inputs, start, end):
            return Inputs(
                ids=inputs.ids[start:end],
                lengths=inputs.lengths[start:end],
                offsets=inputs.offsets[start:end],
            )
        """,
        "offsets=inputs.offsets[start:end],",
        """offsets=inputs.offsets[start:end],
                states=inputs.states[start:end],
                is_chunk=inputs.is_chunk,""",
    ),
    "A14: a move through the constructor resets an integer": (
        "TP106",
        ("padding",),
        """
        @dataclass
        class Jagged:
            values: Tensor
            lengths: Tensor
            padding: int = 0

            def to(self, device):
                return Jagged(
                    values=self.values.to(device), lengths=self.lengths.to(device)
                )
        """,
        "lengths=self.lengths.to(device)",
        "lengths=self.lengths.to(device), padding=self.padding",
    ),
    "A15: errors around a record are swallowed": (
        "TP112",
        (),
        """
        @dataclass
        class Batch:
            ids: Tensor
            extra: Any = None

            def record_stream(self, stream):
                for value in vars(self).values():
                    try:
                        value.record_stream(stream)
                    except Exception:
                        pass
        """,
        "pass",
        "raise",
    ),
    "A16: elements without the method are left out of the new list": (
        "TP111",
        (),
        """
        class Track:
            def to(self, device):
                new = self.new()
                for key, values in self.items():
                    moved = []
                    for value in values:
                        if hasattr(value, "to"):
                            value = value.to(device)
                            moved.append(value)
                    new.set_data({key: moved})
                return new
        """,
        """value = value.to(device)
                            moved.append(value)""",
        """value = value.to(device)
                        moved.append(value)""",
    ),
    "A17: detach reads the class and throws its result away": (
        "TP115",
        (),
        """
        @dataclass
        class Jagged:
            values: Tensor = None
            lengths: Tensor = None

            def detach(self):
                for f in fields(Jagged):
                    value = getattr(Jagged, f.name)
                    if value is not None:
                        value.detach()
        """,
        """value = getattr(Jagged, f.name)
                    if value is not None:
                        value.detach()""",
        "setattr(self, f.name, getattr(self, f.name).detach())",
    ),
    "A18: the dictionary that is changed is the one of the source": (
        "TP116",
        (),
        """
        @dataclass
        class State:
            ids: Tensor
            mask: Tensor

            def to(self, device):
                state = vars(self)
                for name, value in state.items():
                    state[name] = value.to(device)
                new = object.__new__(type(self))
                new.__dict__.update(state)
                return new
        """,
        "state = vars(self)",
        "state = dict(vars(self))",
    ),
}

each_bug = pytest.mark.parametrize("shape", BUGS)


@each_bug
def test_bug_is_found(audited: Audited, shape: str) -> None:
    """Each shape gives one report, of its rule and its fields."""
    rule, names, bad, *_ = BUGS[shape]

    found = audited(bad).reports

    assert [(rule, names)] == [
        (report.rule, tuple(name for name in report.fields if name in names))
        for report in found
    ]


@each_bug
def test_cure_is_not_accused(audited: Audited, shape: str) -> None:
    """The same class with the one line mended gives no report."""
    _, _, bad, old, new = BUGS[shape]

    assert bad.count(old) > 0
    assert [] == audited(bad.replace(old, new)).reports


@each_bug
def test_confidence_says_how_sure_it_is(audited: Audited, shape: str) -> None:
    """What holds tensors for certain is high; `Any` is low: it may hold none."""
    (report,) = audited(BUGS[shape][2]).reports

    assert ("low" if shape.startswith("A7") else "high") == report.confidence
