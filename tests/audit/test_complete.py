"""Complete methods of public code, written anew: none is accused, a neighbour is."""

import pytest
from audit.texts import Audited

COMPLETE = {
    "C1: a loop over fields with a recursive walker": (
        """
        @dataclass
        class Inner:
            weight: Tensor

            def to(self, device):
                return Inner(self.weight.to(device))

        def move(value, device):
            if isinstance(value, Tensor):
                return value.to(device)
            if isinstance(value, (list, tuple)):
                return type(value)(move(item, device) for item in value)
            if isinstance(value, dict):
                return {key: move(item, device) for key, item in value.items()}
            if hasattr(value, "to"):
                return value.to(device)
            return value

        @dataclass
        class Batch:
            ids: Tensor
            parts: list[Tensor]
            named: dict[str, list[Tensor]]
            inner: Inner | None = None
            count: int = 0

            def to(self, device):
                moved = {}
                for f in fields(self):
                    moved[f.name] = move(getattr(self, f.name), device)
                return Batch(**moved)
        """,
        "if isinstance(value, dict):",
        "if isinstance(value, set):",
        ("TP110", ("named",)),
    ),
    "C2: vars in place": (
        """
        @dataclass
        class Batch:
            ids: Tensor
            mask: Tensor

            def to(self, device):
                for name, value in vars(self).items():
                    vars(self)[name] = value.to(device)
                return self
        """,
        """for name, value in vars(self).items():
                    vars(self)[name] = value.to(device)""",
        "self.ids = self.ids.to(device)",
        ("TP103", ("mask",)),
    ),
    "C3: classes with one tensor": (
        """
        class One:
            def __init__(self, values: Tensor) -> None:
                self.values = values

            def to(self, device):
                return One(self.values.to(device))

        class Two:
            def __init__(self, weights: Tensor) -> None:
                self.weights = weights

            def to(self, device):
                self.weights = self.weights.to(device)
                return self

            def record_stream(self, stream):
                self.weights.record_stream(stream)
        """,
        "self.weights.record_stream(stream)",
        "pass",
        ("TP101", ("weights",)),
    ),
    "C4: a base whose map_tensors every method uses": (
        """
        @dataclass
        class Base:
            def map_tensors(self, fn):
                new = {}
                for f in fields(self):
                    value = getattr(self, f.name)
                    new[f.name] = fn(value) if isinstance(value, Tensor) else value
                return type(self)(**new)

            def to(self, device):
                return self.map_tensors(lambda value: value.to(device))

            def record_stream(self, stream):
                self.map_tensors(lambda value: value.record_stream(stream) or value)

            def clone(self):
                return self.map_tensors(lambda value: value.clone())

        @dataclass
        class Batch(Base):
            ids: Tensor
            mask: Tensor | None = None
            count: int = 0
        """,
        "mask: Tensor | None = None",
        "mask: list[Tensor] | None = None",
        ("TP110", ("mask",)),
    ),
    "C5: a table of names": (
        """
        @dataclass
        class Batch:
            ids: Tensor
            mask: Tensor
            count: int = 0

            _TENSORS = ("ids", "mask")

            def to(self, device):
                moved = {name: getattr(self, name).to(device) for name in self._TENSORS}
                return replace(self, **moved)

            def pin_memory(self):
                for name in self._TENSORS:
                    setattr(self, name, getattr(self, name).pin_memory())
                return self

            def record_stream(self, stream):
                for name in self._TENSORS:
                    getattr(self, name).record_stream(stream)

            def clone(self):
                own = {name: getattr(self, name).clone() for name in self._TENSORS}
                return replace(self, **own)
        """,
        '_TENSORS = ("ids", "mask")',
        '_TENSORS = ("ids",)',
        ("TP103", ("mask",)),
    ),
    "C6: tree_map": (
        """
        from torch.utils._pytree import tree_map

        @dataclass
        class Batch:
            ids: Tensor
            parts: dict[str, list[Tensor]]

            def to(self, device):
                return tree_map(lambda value: value.to(device), self)

            def record_stream(self, stream):
                tree_map(lambda value: value.record_stream(stream), vars(self))
        """,
        "tree_map(lambda value: value.record_stream(stream), vars(self))",
        "tree_map(lambda value: value.record_stream(stream), self.parts)",
        ("TP101", ("ids",)),
    ),
    "C7: a NamedTuple made from its own items": (
        """
        class Batch(NamedTuple):
            ids: Tensor
            mask: Tensor

            def to(self, device):
                return type(self)(*(value.to(device) for value in self))
        """,
        "*(value.to(device) for value in self)",
        "self.ids.to(device), self.mask",
        ("TP103", ("mask",)),
    ),
    "C8: a host field whose comment says so": (
        """
        @dataclass
        class Batch:
            ids: Tensor
            # Stays on CPU: the scheduler reads it.
            lengths: Tensor
            steps: Tensor

            def to(self, device):
                return Batch(
                    ids=self.ids.to(device),
                    lengths=self.lengths,
                    steps=self.steps,  # stays on CPU
                )
        """,
        "# Stays on CPU: the scheduler reads it.",
        "# One for each request.",
        ("TP103", ("lengths",)),
    ),
    "C9: dataclasses.replace carries the rest": (
        """
        @dataclass
        class Batch:
            ids: Tensor
            mask: Tensor
            name: str = ""
            count: int = 0

            def to(self, device):
                return replace(self, ids=self.ids.to(device), mask=self.mask.to(device))
        """,
        "replace(self, ids=self.ids.to(device), mask=self.mask.to(device))",
        "replace(self, ids=self.ids.to(device))",
        ("TP103", ("mask",)),
    ),
    "C10: a list of aliases that their owner records": (
        """
        @dataclass
        class Context:
            features: Tensor
            # Aliases, recorded by the module that owns them.
            early: list[Tensor] = field(default_factory=list)

            def record_stream(self, stream):
                self.features.record_stream(stream)
        """,
        "# Aliases, recorded by the module that owns them.",
        "# Freed after the first exchange.",
        ("TP101", ("early",)),
    ),
    "C11: twins that are left on the host": (
        """
        @dataclass
        class Batch:
            lengths: Tensor
            lengths_cpu: Tensor

            def to(self, device):
                return Batch(
                    lengths=self.lengths.to(device), lengths_cpu=self.lengths_cpu
                )

            def record_stream(self, stream):
                self.lengths.record_stream(stream)
        """,
        "lengths_cpu",
        "lengths_new",
        ("TP103", ("lengths_new",)),
    ),
    "C12: to and record_stream through _apply": (
        """
        class Batch:
            def __init__(self, ids: Tensor, parts: list[Tensor]) -> None:
                self.ids = ids
                self.parts = parts

            def _apply(self, fn):
                self.ids = fn(self.ids)
                self.parts = [fn(part) for part in self.parts]
                return self

            def to(self, device):
                return self._apply(lambda value: value.to(device))

            def record_stream(self, stream):
                def record(value):
                    value.record_stream(stream)
                    return value

                self._apply(record)
        """,
        "self.parts = [fn(part) for part in self.parts]",
        "self.parts = self.parts",
        ("TP103", ("parts",)),
    ),
    "C13: a tensor that is filled before it moves": (
        """
        @dataclass
        class Delta:
            host: list[int]
            indices: Tensor | None = None

            def fill(self):
                if self.indices is None:
                    self.indices = torch.as_tensor(self.host)

            def to(self, device):
                self.fill()
                moved = {}
                for f in fields(self):
                    value = getattr(self, f.name)
                    if isinstance(value, Tensor):
                        value = value.to(device)
                    moved[f.name] = value
                return Delta(**moved)
        """,
        "isinstance(value, Tensor)",
        "isinstance(value, str)",
        ("TP110", ("indices",)),
    ),
    "C14: branches by name that cover all": (
        """
        @dataclass
        class Vision:
            lengths: Tensor
            ranges: list[Tensor]
            embeddings: list[list[Tensor]]
            named: dict[str, Tensor]

            def to_device(self, device):
                moved = {}
                for f in fields(self):
                    name = f.name
                    value = getattr(self, name)
                    if value is None:
                        continue
                    if isinstance(value, Tensor):
                        value = value.to(device)
                    elif name == "ranges":
                        value = [each.to(device) for each in value]
                    elif name == "embeddings":
                        value = [[each.to(device) for each in one] for one in value]
                    elif name == "named":
                        value = {key: each.to(device) for key, each in value.items()}
                    moved[name] = value
                return Vision(**moved)
        """,
        'name == "ranges"',
        'name == "range"',
        ("TP110", ("ranges",)),
    ),
    "C15: a wrapper that forwards": (
        """
        class Wrapper:
            def __init__(self, inner: Tensor, name: str) -> None:
                self.inner = inner
                self.name = name

            def __getattr__(self, name):
                return getattr(self.inner, name)

            def to(self, device):
                return Wrapper(self.inner.to(device), self.name)
        """,
        "self.inner.to(device), self.name",
        "self.inner, self.name",
        ("TP103", ("inner",)),
    ),
    "C16: caches that a move resets": (
        """
        @dataclass
        class Jagged:
            values: Tensor
            _offsets: Tensor | None = None
            _parts: dict[str, Tensor] | None = None

            def to(self, device):
                return Jagged(values=self.values.to(device), _offsets=None, _parts=None)

            def record_stream(self, stream):
                self.values.record_stream(stream)
        """,
        "_offsets=None, _parts=None",
        "_offsets=self._offsets.to(device), _parts=None",
        ("TP101", ("_offsets",)),
    ),
    "C17: a loop over __slots__": (
        """
        class Batch:
            __slots__ = ("ids", "mask")

            def __init__(self, ids: Tensor, mask: Tensor) -> None:
                self.ids = ids
                self.mask = mask

            def to(self, device):
                for name in self.__slots__:
                    setattr(self, name, getattr(self, name).to(device))
                return self
        """,
        '__slots__ = ("ids", "mask")',
        '__slots__ = ("ids",)',
        ("TP103", ("mask",)),
    ),
    "C18: a frozen class and object.__setattr__": (
        """
        @dataclass(frozen=True)
        class Batch:
            ids: Tensor
            mask: Tensor | None = None
            count: int = 0

            def to(self, device):
                new = object.__new__(type(self))
                for f in fields(self):
                    value = getattr(self, f.name)
                    if isinstance(value, Tensor):
                        value = value.to(device)
                    object.__setattr__(new, f.name, value)
                return new
        """,
        "mask: Tensor | None = None",
        "mask: dict[str, Tensor] | None = None",
        ("TP110", ("mask",)),
    ),
}

each_shape = pytest.mark.parametrize("shape", COMPLETE)


@each_shape
def test_complete_method_is_not_accused(audited: Audited, shape: str) -> None:
    """A method that covers every field gives no report of any confidence."""
    text, *_ = COMPLETE[shape]

    assert [] == audited(text).reports


@each_shape
def test_its_neighbour_is_found(audited: Audited, shape: str) -> None:
    """The same class with one field less covered gives a report of that field."""
    text, old, new, expected = COMPLETE[shape]

    assert old in text
    found = audited(text.replace(old, new)).reports

    assert expected in [(report.rule, report.fields) for report in found]
