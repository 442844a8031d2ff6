"""What generated code says of values that are not what their annotation says."""

from collections.abc import Mapping, Sequence
from typing import Any, Never

from torch import Tensor

from tensorpack._walk import mismatch
from tensorpack._walk.host_values import is_host_value
from tensorpack._walk.values import a_class, is_leaf_class, is_payload
from tensorpack.errors import LeafError

__all__ = ["Checks"]


class Checks:
    """Raises for a value in an object, and names its place.

    Attributes:
        value: the object.
        keyed: whether (key, leaf) is collected instead of the leaf alone.
    """

    __slots__ = "keyed", "value"

    def __init__(self, value: Any, *, keyed: bool = False) -> None:
        self.value = value
        self.keyed = keyed

    @property
    def root(self) -> str:
        """The name of the object's class if it is a payload, else ""."""
        return type(self.value).__qualname__ if is_payload(self.value) else ""

    def names(self, value: dict[object, object], key: str) -> None:
        """Raise for a leaf that is the key of a mapping."""
        for name in value:
            if not is_host_value(name):
                self._raise(name, key, *mismatch.key_of_mapping())

    def _unsupported(self, value: object, key: str) -> None:
        """Raise for a value of unknown class."""
        around = None if "." in key or is_payload(self.value) else self.value
        if isinstance(around, dict) and not any(value is x for x in around.values()):
            around = [value]  # no entry of its own
        self._raise(value, key, *mismatch.no_support(value, around))

    def keep(self, value: object, key: str, types: tuple[type, ...]) -> None:
        """Check a value that no arm of a union with leaves has claimed."""
        if type(value) not in types and not is_host_value(value):
            self._raise(value, key, *mismatch.no_arm(value))

    def struct(self, value: object, key: str) -> None:
        """Check a value of another class than the host struct that is annotated."""
        if isinstance(value, Tensor):
            self._raise(value, key, *mismatch.stray(value))
        if not is_host_value(value):
            self._raise(value, key, *mismatch.no_host_struct(value))

    def stays(self, value: object, key: str) -> None:
        """Raise for a leaf or a payload where a host value is declared."""
        if is_leaf_class(type(value)) or is_payload(value):
            self._raise(value, key, *mismatch.stray(value))

    def host_only(self, value: object, key: str) -> None:
        """Raise for a tensor on a device where the value must stay on the host."""
        if isinstance(value, Tensor) and value.device.type not in ("cpu", "meta"):
            self._raise(value, key, *mismatch.host_only(value))

    def wrong(self, value: object, key: str, wanted: str) -> None:
        """Raise for a value that is no container of the annotated class."""
        self._raise(value, key, *mismatch.wrong(value, wanted))

    def length(self, value: Sequence[object], key: str, length: int) -> None:
        """Raise for a tuple of another length than annotated."""
        self._raise(value, key, *mismatch.length(value, length))

    def unknown(
        self, value: Mapping[str, object], key: str, keys: frozenset[str]
    ) -> None:
        """Raise for keys that a typed dictionary does not declare."""
        names = [name for name in value if name not in keys]
        self._raise(value, key, *mismatch.unknown_keys(names))

    def extra(self, value: Any, stores: frozenset[str], at: str) -> None:
        """Raise for attributes of an instance that are no fields."""
        name = next(name for name in vars(value) if name not in stores)
        said = mismatch.no_field(type(value), name)
        self._raise(vars(value)[name], f"{at}{name}", *said)

    def _address(self, key: str) -> str:
        """Put the name of the class before a key."""
        return f"{self.root}.{key}" if self.root else key

    def _raise(self, value: object, key: str, problem: str, remedy: str) -> Never:
        fields = {"cls": self.root, "key": key, "found": a_class(type(value))}
        raise LeafError(**fields, problem=problem, remedy=remedy)
