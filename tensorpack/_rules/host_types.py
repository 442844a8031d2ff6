"""Host types by name: values that own no device memory and stay where they are."""

__all__ = ["BASES", "EXACT", "PLAIN", "full_names"]

PLAIN = frozenset(
    {
        *(
            f"builtins.{name}"
            for name in ("bool", "int", "float", "complex", "str", "bytes", "range")
        ),
        "types.NoneType",
        *(
            f"datetime.{name}"
            for name in ("datetime", "date", "time", "timedelta", "timezone")
        ),
        "uuid.UUID",
        *(
            f"torch.{name}"
            for name in ("dtype", "device", "Size", "layout", "memory_format")
        ),
    }
)
"""Classes whose values have no room for an object of another kind."""

EXACT = PLAIN | {"builtins.slice"}
"""Classes that are host types themselves; a class derived from one is not."""

BASES = frozenset(
    {
        "enum.Enum",
        "numpy.generic",
        "numpy.ndarray",
        "pathlib.PurePath",
        "pathlib._local.PurePath",
    }
)
"""Classes that are host types with all that derives from them."""


def full_names(name: str) -> tuple[str, ...]:
    """Return the names under which mypy may know a class: torch's are in its core."""
    module, _, own = name.rpartition(".")
    return (name, f"torch._C.{own}") if module == "torch" else (name,)
