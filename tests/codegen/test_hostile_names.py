"""Names are not code: whatever a class calls itself, its text says what was meant."""

import ast
import builtins
import dataclasses
import keyword
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import attrs
import pytest
import torch
from torch import Tensor

from tensorpack import (
    DefinitionError,
    Derived,
    Dynamic,
    LifetimeAdapter,
    payload,
    tensors,
)
from tensorpack._codegen.leaves import write, write_keyed
from tensorpack._rules.markers import PLAN
from tensorpack._walk.build import HELPERS

TEXTS = [
    'x"); boom(); ("',
    "x'); boom(); ('",
    "x\n    boom()\n",
    "x\rboom()",
    "x\\",
    '"""\nboom()\n"""',
    "'''",
    "{boom()}",
    "{x!r:{boom()}}",
    "%(boom)s",
    "#",
    "\u2028boom()",
    "\u202eboom",
    "",
    " ",
    "a b",
    "1x",
    "x;boom()",
    "x=boom()",
    "lambda: boom()",
    "\N{SNAKE}",
    "\N{LATIN SMALL LIGATURE FI}eld",
    "__debug__",
    "__builtins__",
    "__class__",
    "class",
    "None",
    "boom",
]
WORDS = sorted(
    {
        *keyword.kwlist,
        *keyword.softkwlist,
        *vars(builtins),
        *HELPERS,
        *["self", "walk", "at", "add", "build", "take", "new", "stores", "leaves"],
        *["rebuild", "cls", "x", "x1", "i1", "k", "keys", "Tensor", "OrderedDict"],
        *["defaultdict", "deque", "default_x", "Names", "torch", "object_"],
    }
)
ALLOWED = (
    ast.Module,
    ast.FunctionDef,
    ast.arguments,
    ast.arg,
    ast.Return,
    ast.Assign,
    ast.NamedExpr,
    ast.Expr,
    ast.Call,
    ast.keyword,
    ast.Attribute,
    ast.Name,
    ast.Subscript,
    ast.Constant,
    ast.JoinedStr,
    ast.FormattedValue,
    ast.BinOp,
    ast.Add,
    ast.UnaryOp,
    ast.Not,
    ast.Compare,
    ast.Is,
    ast.IsNot,
    ast.In,
    ast.NotIn,
    ast.NotEq,
    ast.If,
    ast.IfExp,
    ast.For,
    ast.Pass,
    ast.Tuple,
    ast.List,
    ast.Dict,
    ast.ListComp,
    ast.DictComp,
    ast.comprehension,
    ast.Load,
    ast.Store,
)
"""What generated text may be made of: nothing is imported, defined, deleted, raised."""


@pytest.fixture(autouse=True)
def _boom(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `boom` be a builtin that ends the test."""

    def boom() -> None:
        pytest.fail("a name was run as code")

    monkeypatch.setattr(builtins, "boom", boom, raising=False)


def check_text(cls: Any) -> None:
    """Assert that a class's text has identifiers and constants, and knows them all."""
    plan = vars(cls)[PLAN]
    for source in (write(plan), write_keyed(plan)):
        tree = ast.parse(source.text)
        known = {*HELPERS, *source.globals, *({*vars(builtins)} - {"boom"})}
        for node in ast.walk(tree):
            assert isinstance(node, ALLOWED), ast.dump(node)
            if isinstance(node, ast.Constant):
                assert node.value is None or isinstance(node.value, (str, int))
            if isinstance(node, ast.FormattedValue):
                assert isinstance(node.value, ast.Name)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                known.add(node.id)
            if isinstance(node, ast.arg):
                known.add(node.arg)
        for node in ast.walk(tree):
            if isinstance(node, ast.Name):
                assert node.id in known, node.id


def check_travels(value: Any) -> None:
    """Assert that a payload's leaves are listed, and move."""
    before = list(tensors(value))
    after = list(tensors(value.to_device("meta")))

    assert before
    assert [key for key, _ in before] == [key for key, _ in after]
    assert all(leaf.is_meta for _, leaf in after)


def renamed(cls: Any, *, name: str = "", module: str = "") -> Any:
    """Give a class another name, as its owner could."""
    if name:
        cls.__name__ = cls.__qualname__ = name
    if module:
        cls.__module__ = module
    return cls


@pytest.mark.parametrize("text", [*TEXTS, *WORDS])
def test_class_name(text: str) -> None:
    """A class may be called anything, and so may the classes in its fields."""

    class Pair(NamedTuple):
        left: Tensor

    class Handle:
        def __init__(self, keys: Tensor) -> None:
            self.keys = keys

    class HandleAdapter(LifetimeAdapter[Handle]):
        def leaves(self, value: Handle) -> Sequence[Tensor]:
            return [value.keys]

        def rebuild(self, value: Handle, leaves: Sequence[Tensor]) -> Handle:
            return Handle(leaves[0])

    @attrs.define
    class Batch:
        x: Tensor
        pairs: dict[str, Pair | Tensor]
        handles: list[Handle | Tensor]
        cache: Derived[Tensor | None] = None

    for cls in (Pair, Handle, Batch):
        renamed(cls, name=text or "empty")
    cls = payload(Batch)
    one = torch.ones(1)

    check_text(cls)
    check_travels(cls(one, {"a": Pair(one)}, [Handle(one), one], one))


@pytest.mark.parametrize("text", [*TEXTS, "null\0byte", "\ud800 surrogate"])
def test_module_and_qualified_name(text: str) -> None:
    """Where a class says it stands becomes the name of a file, and nothing else.

    `compile` takes no null byte in it, and no half of a character.
    """
    cls: Any = attrs.make_class("Batch", {"x": attrs.field(type=Tensor)})
    cls.__module__ = cls.__qualname__ = text or "empty"
    payload(cls)

    check_text(cls)
    check_travels(cls(torch.ones(1)))


def made_by_attrs(name: str) -> Any:
    """Make an attrs class with one field."""
    return attrs.make_class("Batch", {name: attrs.field(type=Tensor)})


def made_by_dataclasses(name: str) -> Any:
    """Make a dataclass with one field."""
    return dataclasses.make_dataclass("Batch", [(name, Tensor)])


def made_by_hand(name: str) -> Any:
    """Make a class with one annotation, for `@payload` alone."""
    return type("Batch", (), {"__annotations__": {name: Tensor}})


@pytest.mark.parametrize("text", [*TEXTS, *WORDS])
@pytest.mark.parametrize("make", [made_by_attrs, made_by_dataclasses, made_by_hand])
def test_field_name(make: Callable[[str], Any], text: str) -> None:
    """A field whose name means itself is handled; any other is refused.

    What neither attrs nor `dataclasses` makes a class of never comes to us.
    """
    try:
        made = make(text)
        cls = payload(made)
    except DefinitionError as error:
        assert not text.isidentifier() or text in str(error)  # noqa: PT017  # either is right
        return
    except (SyntaxError, TypeError, ValueError, NameError):
        return

    check_text(cls)
    check_travels(cls(torch.ones(1)))


def test_field_name_that_text_reads_otherwise_is_refused() -> None:
    """Python's parser would read another name, so the field would be missed."""
    cls = made_by_hand("x")
    cls.__annotations__ = {"\N{LATIN SMALL LIGATURE FI}eld": Tensor}

    with pytest.raises((DefinitionError, SyntaxError)):
        payload(cls)


@pytest.mark.parametrize("name", ["__class__", "__dict__", "__doc__", "__init__"])
def test_field_name_of_pythons_own_is_refused(name: str) -> None:
    """Setting it would change what the object is."""
    cls: Any = dataclasses.make_dataclass("Batch", [("x", Tensor)])
    fields = dict(cls.__dataclass_fields__)
    fields[name] = fields["x"]
    changed = dataclasses.field()
    changed.name, changed.type = name, Tensor
    changed._field_type = fields["x"]._field_type
    cls.__dataclass_fields__[name] = changed

    with pytest.raises(DefinitionError, match=name):
        payload(cls)


@pytest.mark.parametrize("text", [*TEXTS, "null\0byte", "\ud800", "it's", 'say "x"'])
def test_key_of_a_typed_dictionary(text: str) -> None:
    """Its keys may be any text; they are quoted, never read."""
    members = {text: Tensor, f"{text}2": list[Tensor]}
    typed: Any = TypedDict("typed", members)

    @payload
    class Batch:
        one: typed
        many: list[typed]
        either: typed | Tensor | None = None

    one = torch.ones(1)
    value = {text: one, f"{text}2": [one]}

    check_text(Batch)
    check_travels(Batch(value, [value, {}], value))
    assert f"one[{text!r}]" == next(tensors(Batch(value, [])))[0]


@pytest.mark.parametrize("text", [*TEXTS, "null\0byte", "\ud800", "it's"])
def test_key_of_a_mapping(text: str) -> None:
    """A dictionary's keys are only known when it is walked, and only shown."""

    @payload
    class Batch:
        by_name: dict[str, list[Tensor]]
        open: Dynamic[dict[str, Any]]

    batch = Batch({text: [torch.ones(1)]}, {text: {text: torch.ones(1)}})

    check_text(Batch)
    check_travels(batch)
    assert [f"by_name[{text!r}][0]", f"open[{text!r}][{text!r}]"] == [
        key for key, _ in tensors(batch)
    ]


def test_same_class_gives_the_same_text() -> None:
    """The text has no addresses, no numbers of its own, and no order but the plan's."""

    def make() -> Any:
        class Pair(NamedTuple):
            left: Tensor
            right: "list[Tensor]"

        @payload
        class Batch:
            x: Tensor
            pairs: dict[str, Pair | Tensor | int]
            cache: Derived[Tensor | None] = None

        return Batch

    first, second = (vars(make())[PLAN] for _ in range(2))

    assert write(first).text == write(second).text
    assert write_keyed(first).text == write_keyed(second).text
