"""One call of a function while it is followed: its names, its guards, its module."""

import ast
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tensorpack._audit.bodies import Bodies
from tensorpack._audit.classes import ClassDef
from tensorpack._audit.functions import Function
from tensorpack._audit.index import Index
from tensorpack._audit.modules import Module
from tensorpack._audit.trace import (
    UNKNOWN,
    Each,
    Event,
    Guard,
    Kind,
    Part,
    Routine,
    Trace,
    Value,
)

__all__ = ["Frame", "World"]

Runner = Callable[["Frame", list[ast.stmt]], bool]


@dataclass(frozen=True, slots=True)
class World:
    """What does not change while methods are followed."""

    index: Index
    bodies: Bodies


@dataclass(slots=True)
class Frame:
    """One call.

    Attributes:
        world: names and bodies.
        trace: what is found.
        function: that is followed.
        owner: the class whose body has it.
        module: where its names are looked up.
        run: follows statements; it is given, since calls and statements need
            each other.
        names: local names.
        guards: tests that hold here.
        swallowed: what is caught around here, and dropped.
        branches: how many conditions are around here.
        result: what it returns.
        stack: functions that are being followed.
        rest: the name of its `**kwargs`.
        thrown: the call whose result is not used.
        limit: how many calls inside of calls are followed.
    """

    world: World
    trace: Trace
    function: Function
    owner: ClassDef | None
    module: Module
    run: Runner
    names: dict[str, Value] = field(default_factory=dict)
    guards: list[Guard] = field(default_factory=list)
    swallowed: str = ""
    branches: int = 0
    result: Value = UNKNOWN
    stack: tuple[Function, ...] = ()
    rest: str = ""
    thrown: ast.AST | None = None
    limit: int = 7

    def emit(
        self,
        kind: str,
        node: ast.AST,
        subjects: Iterable[Part | Each | None] = (None,),
        name: str = "",
        box: int = 0,
    ) -> None:
        """Note an event for each subject."""
        line = getattr(node, "lineno", self.function.line)
        for subject in subjects:
            self.trace.events.append(
                Event(
                    kind,
                    line,
                    self.function.path,
                    subject,
                    name,
                    tuple(self.guards),
                    self.swallowed,
                    box,
                )
            )

    def assign(self, name: str, value: Value) -> None:
        """Bind a name; inside of a condition the old value stays possible."""
        if self.branches and name in self.names:
            value |= self.names[name]
        self.names[name] = value

    def look_up(self, name: str) -> Value:
        """Return the value of a name."""
        if name in self.names:
            return self.names[name]
        symbol = self.world.index.resolve(name, self.module)
        if isinstance(symbol.found, ClassDef):
            return frozenset({Kind(symbol.found)})
        if isinstance(symbol.found, Function):
            return frozenset({Routine(symbol.found)})
        return UNKNOWN
