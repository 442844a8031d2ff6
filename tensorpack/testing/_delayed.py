"""Work of held streams: its numbers come when nothing holds the stream up any more.

# Note [delayed work]
An operator behind a closed gate is run at once on copies, for the shapes of what it
gives; that is filled with zeros. When the gates are open it runs again, on the memory
as it is then, in the order in which the work was queued. What depends on numbers that
are not there yet (`item`, `nonzero`, a mask as an index) makes the host wait, and so
raises: see `held`.
"""

from collections.abc import Callable
from typing import Any

import attrs
import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from tensorpack.testing._clocks import Gate, Order

__all__ = ["Delayed"]


@attrs.frozen
class _Work:
    """An operator that is still to run, and what holds it up."""

    run: Callable[[], None]
    gates: frozenset[Gate]


class Delayed:
    """The work of held streams, the oldest first."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._works: list[_Work] = []
        order.opened.append(self._go_on)

    def _go_on(self) -> None:
        """Run what nothing holds up any more, in order."""
        rest = []
        with _disable_current_modes():
            for work in self._works:
                if all(gate.open for gate in work.gates):
                    work.run()
                else:
                    rest.append(work)
        self._works = rest

    def put_off(self, run: Callable[[], None], gates: frozenset[Gate]) -> None:
        """Run what gives nothing when the gates are open; at once if there are none."""
        if gates:
            self._works.append(_Work(run, gates))
            return
        with _disable_current_modes():
            run()

    def run(
        self,
        func: Any,
        args: Any,
        kwargs: Any,
        gates: frozenset[Gate],
        *,
        at_once: Callable[[Tensor], bool],
    ) -> Any:
        """Run an operator on copies now, and on its arguments when the gates open.

        Args:
            func: the operator.
            args: its arguments, on the host.
            kwargs: the same, by keyword.
            gates: what holds it up.
            at_once: whether the numbers of an argument are read now all the same.
        """
        copies: dict[int, Tensor] = {}

        def copied(x: Any) -> Any:
            if not isinstance(x, Tensor):
                return x
            if id(x) not in copies:
                copies[id(x)] = x.clone()
            return copies[id(x)]

        generator = torch.get_rng_state()
        out = func(*tree_map(copied, args), **tree_map(copied, kwargs))
        torch.set_rng_state(generator)
        given = {id(copies[id(x)]): x for x in _tensors((args, kwargs))}
        args, kwargs = tree_map(
            lambda x: x.clone() if isinstance(x, Tensor) and at_once(x) else x,
            (args, kwargs),
        )
        made = [x for x in _tensors(out) if id(x) not in given]
        for x in made:
            x.zero_()
        places = [x.detach() for x in made]  # one of them may get another shape

        def later() -> None:
            found = _tensors(func(*args, **kwargs))
            new = [
                x for x in found if not any(x is y for y in _tensors((args, kwargs)))
            ]
            for target, value in zip(places, new, strict=True):
                target.copy_(value)

        self._works.append(_Work(later, gates))
        return tree_map(lambda x: given.get(id(x), x), out)


def _tensors(tree: Any) -> list[Tensor]:
    return [x for x in tree_leaves(tree) if isinstance(x, Tensor)]
