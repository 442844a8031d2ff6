"""The containers whose class a twin can be given: what names them, what is in them."""

import collections
import collections.abc
import typing
from collections.abc import Mapping

__all__ = ["CLASSES", "MAPPINGS", "SEQUENCES", "is_unpacked"]

SEQUENCES: Mapping[object, str] = {
    list: "list",
    collections.deque: "deque",
    collections.abc.Sequence: "Sequence",
    collections.abc.MutableSequence: "Sequence",
}
"""The kind of a sequence, by what an annotation says."""

MAPPINGS: Mapping[object, str] = {
    dict: "dict",
    collections.OrderedDict: "OrderedDict",
    collections.defaultdict: "defaultdict",
    collections.abc.Mapping: "Mapping",
    collections.abc.MutableMapping: "Mapping",
}
"""The kind of a mapping, by what an annotation says."""

CLASSES: Mapping[str, tuple[type, ...]] = {
    "list": (list,),
    "tuple": (tuple,),
    "deque": (collections.deque,),
    "Sequence": (list, tuple, collections.deque),
    "dict": (dict,),
    "OrderedDict": (collections.OrderedDict,),
    "defaultdict": (collections.defaultdict,),
    "Mapping": (dict, collections.OrderedDict, collections.defaultdict),
}
"""The classes that a value may have, by kind."""


def is_unpacked(arg: object) -> bool:
    """Tell whether the item of a tuple is `*X`: a tuple inside."""
    unpacked = getattr(arg, "__unpacked__", False) is True
    return unpacked or typing.get_origin(arg) is typing.Unpack
