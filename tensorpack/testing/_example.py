"""Examples of classes: an instance made from its annotations, with every leaf in it."""

import inspect
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import attrs

from tensorpack._leaves.adapters import SupportsLifetime, is_tensor_type
from tensorpack._plan.makers import (
    Member,
    declared_keys,
    is_named_tuple,
    is_typed_dict,
    members_of,
    setter_of,
)
from tensorpack._plan.namespace import (
    Context,
    Namespace,
    Placeholder,
    Unresolved,
)
from tensorpack._plan.spelling import spell
from tensorpack._rules.markers import Marker
from tensorpack.testing._arguments import (
    Argument,
    arguments_of,
    called,
    check_given,
    concrete,
    lacks,
    written_by,
)
from tensorpack.testing._example_values import (
    MAKERS,
    CannotError,
    Values,
    another,
    container_kind,
)
from tensorpack.testing._oracle import Search

__all__ = ["example", "examples"]

T = TypeVar("T")


def example(cls: type[T], /, **values: object) -> T:
    """Make an instance from a class's annotations, with every leaf in it.

    Optional fields are filled, containers have an item, unions take the arm that holds
    a tensor, an abstract class gives an instance of a subclass. Tensors are small,
    on the host, and have numbers of their own each. `__init__` runs.

    Args:
        cls: a payload, an attrs class, dataclass, msgspec struct or named tuple, or any
            class whose `__init__` has annotations.
        **values: values by field name, for what annotations cannot tell.

    Raises:
        TypeError: a field without a default has an annotation that no example can be
            made for, or `__init__` does not take the examples.

    >>> import torch
    >>> from tensorpack import payload
    >>> @payload
    ... class Batch:
    ...     ids: torch.Tensor
    ...     images: list[torch.Tensor] | None = None
    >>> example(Batch)
    Batch(ids=float32[2, 3] cpu, images=[float32[2, 3] cpu])
    """
    made: T = Maker().instance(cls, cls, Context(Namespace.of(cls, {}), cls), values)
    return made


def examples(cls: type[T], values: dict[str, Any], unfilled: list[str]) -> Iterator[T]:
    """Iterate examples that hold each arm of each union once, and two of all items.

    Args:
        cls: as for `example`.
        values: values by field name.
        unfilled: takes a sentence for each field that no example holds anything in.
    """
    number, most = 0, 1
    while number < most:
        maker = Maker(arm=number, items=2)
        ctx = Context(Namespace.of(cls, {}), cls)
        yield maker.instance(cls, cls, ctx, values)
        unfilled.extend(maker.unfilled)
        number, most = number + 1, max(most, maker.arms)


class Maker:
    """Makes values from annotations.

    Attributes:
        values: makes tensors and host values.
        arms: the most arms with tensors that a union had.
        unfilled: a sentence for each field that was left empty.
    """

    def __init__(self, *, arm: int = 0, items: int = 1) -> None:
        """Create a maker.

        Args:
            arm: which of the arms that hold tensors a union takes; the last if it has
                fewer.
            items: how many items a container is given.
        """
        self.values = Values()
        self.arms = 1
        self.unfilled: list[str] = []
        self._arm = arm
        self._count = items
        self._open: list[object] = []
        self._unmade: list[str] = []
        """Why arms of unions have no example, of the fields that are being filled."""

    def instance(
        self, cls: Any, tp: object, ctx: Context, given: dict[str, Any]
    ) -> Any:
        """Make an instance of a class.

        Args:
            cls: the class.
            tp: the class as it was named, perhaps with parameters.
            ctx: where `tp` was written.
            given: values by field name.
        """
        cls = concrete(cls)
        fields = list(arguments_of(cls))
        check_given(cls, fields, given)
        self._open.append(cls)
        try:
            values = self._values(cls, tp, ctx, fields, given)
        finally:
            self._open.pop()
        arguments = {
            f.argument: values[f.name]
            for f in fields
            if f.argument is not None and f.name in values
        }
        made = called(cls, arguments)
        for f in fields:
            # What `__init__` has left empty: a leaf that is computed later, say.
            if f.argument is None and f.name in values and lacks(made, f.name):
                setter_of(cls)(made, f.name, values[f.name])
        return made

    def _values(
        self,
        cls: Any,
        tp: object,
        ctx: Context,
        fields: list[Argument],
        given: dict[str, Any],
    ) -> dict[str, Any]:
        """Make the values of all fields that need or can have one."""
        made: dict[str, Any] = {}
        problems: list[str] = []
        written = written_by(cls, tp, ctx, fields)
        for f in fields:
            if f.name in given:
                made[f.name] = given[f.name]
                continue
            annotation, where = written[f.name]
            before = len(self._unmade)
            try:
                made[f.name] = self.make(annotation, where)
            except CannotError as error:
                if not f.optional and f.argument is not None:
                    problems.append(
                        f"`{cls.__qualname__}.{f.name}`: {error}. Pass a value: "
                        f"`example({cls.__name__}, {f.name}=...)`."
                    )
                elif not isinstance(error, EndlessError):
                    self._leave(cls, f.name, str(error))
            else:
                if says_nothing(annotation, where.namespace):
                    what = f"`{spell(annotation)}` does not say what it holds"
                    self._leave(cls, f.name, what)
                for problem in dict.fromkeys(self._unmade[before:]):
                    self._leave(cls, f.name, problem)
            del self._unmade[before:]
        if problems:
            raise TypeError("\n".join(problems))
        return made

    def _leave(self, cls: type, name: str, problem: str) -> None:
        """Note that a field is left empty, or as its default is."""
        self.unfilled.append(
            f"`{cls.__qualname__}.{name}`: {problem}. Pass a value: "
            f"`assert_covers({cls.__name__}, {name}=...)`."
        )

    def make(self, annotation: object, ctx: Context, *, dynamic: bool = False) -> Any:
        """Make a value of a type.

        Args:
            annotation: the type as it was written.
            ctx: where it was written.
            dynamic: whether a type that says nothing means a tensor.
        """
        tp: Any = ctx.namespace.evaluate(annotation)
        if isinstance(tp, (Unresolved, Placeholder)) or tp is inspect.Parameter.empty:
            is_missing = tp is inspect.Parameter.empty
            msg = f"the type `{spell(annotation)}` is not known"
            raise CannotError("it has no annotation" if is_missing else msg)
        if tp is None or tp is type(None):
            return None
        if tp is Any or tp is object or tp is SupportsLifetime:
            return self.values.tensor() if dynamic or tp is SupportsLifetime else None
        origin = typing.get_origin(tp)
        alias = type(origin or tp).__name__ == "TypeAliasType"
        named = alias or isinstance(annotation, (str, typing.ForwardRef))
        if not named or isinstance(tp, type):
            return self._of_form(tp, origin, ctx, dynamic)
        if tp in self._open:  # an alias that contains itself
            if type(None) in typing.get_args(tp):
                return None
            msg = f"`{spell(annotation)}` contains itself"
            raise EndlessError(msg)
        self._open.append(tp)
        try:
            return self._of_form(tp, origin, ctx, dynamic)
        finally:
            self._open.pop()

    def _of_form(self, tp: Any, origin: Any, ctx: Context, dynamic: bool) -> Any:
        """Make a value of a special form."""
        args = typing.get_args(tp)
        if origin is typing.Annotated:
            return self._annotated(args[0], args[1:], ctx)
        if type(origin or tp).__name__ == "TypeAliasType":
            alias = origin or tp
            pairs = zip(alias.__type_params__, args, strict=False)
            bound = {**ctx.bound, **{p: (a, ctx) for p, a in pairs}}
            return self.make(alias.__value__, attrs.evolve(ctx, bound=bound))
        if isinstance(tp, typing.TypeVar):
            return self._variable(tp, ctx)
        if isinstance(tp, typing.NewType):
            return self.make(tp.__supertype__, ctx)
        if tp is typing.Self:
            return self._class(ctx.own, ctx.own, ctx)
        if origin in (typing.Union, types.UnionType):
            return self._union(args, ctx, dynamic)
        if origin is typing.Literal:
            return args[0]
        if args and origin in (typing.Final, typing.Required, typing.NotRequired):
            return self.make(args[0], ctx)
        kind = container_kind(origin or tp)
        if kind is not None:
            return self._container(kind, args, ctx, dynamic)
        if Callable in (tp, origin):
            return repr
        if isinstance(origin or tp, type):
            return self._class(origin or tp, tp, ctx)
        msg = f"no example can be made of `{spell(tp)}`"
        raise CannotError(msg)

    def _annotated(self, inner: Any, metadata: Any, ctx: Context) -> Any:
        """Make a value of a marked type; one that stays may be None."""
        borrowed = Marker.BORROWED in metadata
        stays = borrowed or Marker.HOST_ONLY in metadata
        if stays and type(None) in typing.get_args(ctx.namespace.evaluate(inner)):
            return None
        before = len(self._unmade)
        try:
            return self.make(inner, ctx, dynamic=borrowed or Marker.DYNAMIC in metadata)
        except CannotError:
            if stays:
                return None
            raise
        finally:
            if stays:
                del self._unmade[before:]

    def _variable(self, tp: Any, ctx: Context) -> Any:
        """Make a value of what a type variable is bound to."""
        if tp in ctx.bound:
            argument, where = ctx.bound[tp]
            return self.make(argument, where)
        if tp.__bound__ is not None:
            return self.make(tp.__bound__, ctx)
        if tp.__constraints__:
            return self.make(tp.__constraints__[0], ctx)
        return self.values.tensor()

    def _union(self, arms: tuple[Any, ...], ctx: Context, dynamic: bool) -> Any:
        """Make a value of an arm that holds a tensor, or else of the first."""
        made: list[Any] = []
        full: list[Any] = []
        problem: CannotError | None = None
        for arm in arms:
            try:
                value = self.make(arm, ctx, dynamic=dynamic)
            except CannotError as error:
                problem = error
                if not isinstance(error, EndlessError):
                    self._unmade.append(str(error))
                continue
            (full if Search(value).found else made).append(value)
            if full and self._count == 1:
                break
        self.arms = max(self.arms, len(full))
        if full:
            return full[min(self._arm, len(full) - 1)]
        if not made and problem is not None:
            raise problem
        return next((value for value in made if value is not None), None)

    def _container(
        self, kind: str, args: tuple[Any, ...], ctx: Context, dynamic: bool
    ) -> Any:
        """Make a container with an item of each type."""
        if kind in MAKERS.mappings:
            key, value = args or (str, Any)
            made = self._items(value, ctx, dynamic)
            keys = [first := self.make(key, ctx), another(first)]
            return MAKERS.mappings[kind](dict(zip(keys, made, strict=False)))
        if kind == "tuple" and args and args[-1] is not Ellipsis:
            return tuple(self.make(arg, ctx, dynamic=dynamic) for arg in args)
        item = args[0] if args else Any
        return MAKERS.sequences[kind](self._items(item, ctx, dynamic))

    def _items(self, item: Any, ctx: Context, dynamic: bool) -> list[Any]:
        """Make the items of a container; none where they contain its owner."""
        try:
            return [self.make(item, ctx, dynamic=dynamic) for _ in range(self._count)]
        except EndlessError:
            return []

    def _class(self, cls: Any, tp: Any, ctx: Context) -> Any:
        """Make an instance of a class."""
        array = getattr(cls, "array_type", None)
        if array is not None and cls.__module__.startswith("jaxtyping"):
            return self.values.jaxtyped(cls)
        if is_tensor_type(cls):
            return self.values.tensor(cls)
        if is_typed_dict(cls):
            return self._members(cls, tp, declared_keys(cls), ctx)
        made = self.values.known(cls)
        if made is not None:
            return made
        if is_named_tuple(cls):
            notes = typing.get_type_hints(cls, include_extras=True)
            return cls(**self._members(cls, tp, notes, ctx))
        if self._open.count(cls):
            msg = f"`{cls.__name__}` contains itself"
            raise EndlessError(msg)
        try:
            return self.instance(cls, tp, ctx, {})
        except EndlessError:
            raise
        except (CannotError, TypeError, ValueError, RuntimeError) as error:
            msg = f"no example can be made of `{cls.__name__}`"
            raise CannotError(msg) from error

    def _members(
        self, cls: Any, tp: object, declared: dict[str, object], ctx: Context
    ) -> dict[str, Any]:
        """Make the members of a named tuple or typed dictionary."""
        if cls in self._open:
            msg = f"`{cls.__name__}` contains itself"
            raise EndlessError(msg)
        made: dict[str, Any] = {}
        self._open.append(cls)
        try:
            for member in members_of(cls, tp, declared, ctx):
                try:
                    made[member.name] = self.make(member.annotation, member.ctx)
                except EndlessError:
                    if not _may_lack(cls, member):
                        raise
        finally:
            self._open.pop()
        return made


class EndlessError(CannotError):
    """A class contains itself: here the example has to end."""


def _may_lack(cls: Any, member: Member) -> bool:
    """Return whether a typed dictionary may be without a key."""
    tp = member.ctx.namespace.evaluate(member.annotation)
    optional = member.name in getattr(cls, "__optional_keys__", ())
    return optional or typing.get_origin(tp) is typing.NotRequired


def says_nothing(annotation: object, names: Namespace) -> bool:
    """Return whether a type says so little that its example may hold no tensor."""
    tp: Any = names.evaluate(annotation)
    if typing.get_origin(tp) in (typing.Union, types.UnionType):
        return any(says_nothing(arm, names) for arm in typing.get_args(tp))
    return tp is Any or tp is object or container_kind(tp) is not None
