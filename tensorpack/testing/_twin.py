"""A copy of an object on the device, made without asking the object's class."""

import copy
from collections.abc import Callable, Collection
from typing import Any, TypeVar

import torch
from torch import Tensor

from tensorpack._plan.cached import cached_properties
from tensorpack._plan.makers import setter_of
from tensorpack._rules.markers import Marker
from tensorpack._walk.values import slot_value
from tensorpack.testing._log import is_under
from tensorpack.testing._oracle import Found, Search, attributes
from tensorpack.testing._world import World, active

__all__ = ["device_twin", "replaced"]

T = TypeVar("T")


def device_twin(payload: T, /, *, ignore: Collection[str] = ()) -> T:
    """Return a copy whose every tensor is on the device, on a machine that needs none.

    The tensors are found by the oracle and put in place without any method of the
    class, so a leaf that a hand-written `to_device` forgets is on the device here.
    Tensors under `HostOnly` fields stay, and those that an adapter's `host` lists. What
    leads to no tensor is the same object. The tensors of the copy say `is_cuda`, have
    their numbers, and want no gradient.

    Args:
        payload: an object of any class.
        ignore: keys to leave on the host, with everything under them.

    >>> from tensorpack.testing import recorded_streams
    >>> with recorded_streams() as log:
    ...     forward = torch.Stream("cuda")
    ...     twin = device_twin({"ids": torch.ones(2), "mask": [torch.ones(1)]})
    ...     twin["ids"].record_stream(forward)
    ...     log.missing(twin, forward)
    ["['mask'][0]"]
    """
    world = active() or World(real=False)

    def claim(found: Found) -> Tensor | None:
        there = found.tensor.is_cuda or found.tensor.is_meta
        stays = found.on_host or found.marks.may(Marker.HOST_ONLY)
        ignored = is_under(found.key, ignore)
        return None if there or stays or ignored else on_device(world, found.tensor)

    twin = replaced(payload, claim)
    list(world.log.owned(twin))  # tells the log the keys
    return twin


def on_device(world: World, tensor: Tensor) -> Tensor:
    """Put a copy of a tensor on the device of a world."""
    with torch.no_grad():
        if world.real:
            return tensor.detach().to("cuda")
        if type(tensor) is Tensor or isinstance(tensor, torch.nn.Parameter):
            return world.claim(tensor.detach().clone(), torch.device("cuda", 0))
        with world.inside():
            return tensor.detach().to("cuda:0")


def replaced(value: T, replace: Callable[[Found], Tensor | None]) -> T:
    """Copy an object with other tensors in the place of some of its own.

    Args:
        value: an object of any class.
        replace: gives the other tensor, or None where the tensor stays.
    """
    search = Search(value)
    memo: dict[int, Any] = {}
    old: list[Tensor] = []
    for found in search.found:
        if id(found.tensor) in memo:
            continue
        new = replace(found)
        memo[id(found.tensor)] = found.tensor if new is None else new
        if new is not None:
            old.append(found.tensor)
    leading = search.leading_to(old)
    for key, met in search.seen.items():
        if key not in leading and key not in memo:
            memo[key] = met
    by_hand = [
        met
        for key, met in search.seen.items()
        if key not in memo and _copies_oddly(type(met))
    ]
    for met in by_hand:
        memo[id(met)] = object.__new__(type(met))
    for met in by_hand:
        for name, item in attributes(met):
            setter = setter_of(type(met))
            setter(memo[id(met)], name.removeprefix("."), copy.deepcopy(item, memo))
    twin = copy.deepcopy(value, memo)
    for met in list(search.seen.values()):
        _copy_cached(met, memo)
    return twin


def _copies_oddly(cls: type) -> bool:
    """Return whether a class may not be copied by `copy.deepcopy` as others are.

    It has a `__deepcopy__`, which may return the same object, or a `__getattr__`, which
    may ask for an attribute that a copy does not have yet.
    """
    new: object = cls.__new__
    ordinary = new is object.__new__ and not issubclass(cls, torch.nn.Module)
    odd = hasattr(cls, "__deepcopy__") or hasattr(cls, "__getattr__")
    return ordinary and odd and cls.__flags__ & _MADE_IN_PYTHON != 0


_MADE_IN_PYTHON = 1 << 9


def _copy_cached(met: object, memo: dict[int, Any]) -> None:
    """Copy what cached properties keep in slots: attrs leaves that out of a copy."""
    twin = memo.get(id(met), met)
    if twin is met or type(twin) is not type(met):
        return
    for cached in cached_properties(type(met)):
        value = slot_value(cached.slot, met)
        if value is not None:
            setter_of(type(met))(twin, cached.name, copy.deepcopy(value, memo))
