"""Names across files, orders of bases, and what annotations carry."""

import pytest
from audit.texts import Audited

BASE = """
from dataclasses import dataclass
from torch import Tensor

@dataclass
class Base:
    ids: Tensor

    def record_stream(self, stream):
        self.ids.record_stream(stream)
"""
DERIVED = """
from dataclasses import dataclass
from torch import Tensor
{imported}

@dataclass
class Derived({base}):
    mask: Tensor
"""


@pytest.mark.parametrize(
    ("imported", "base"),
    [
        ("from pkg.base import Base", "Base"),
        ("from .base import Base", "Base"),
        ("from . import base", "base.Base"),
        ("from . import base as other", "other.Base"),
        ("from .base import Base as Other", "Other"),
        ("import pkg.base", "pkg.base.Base"),
        ("import pkg.base as b", "b.Base"),
        ("from pkg import Exported", "Exported"),
        ("from .base import *", "Base"),
        ("from .base import Base\nAlias = Base", "Alias"),
        ("from .base import Base\nif True:\n    pass", "Base"),
        ("try:\n    from .base import Base\nexcept ImportError:\n    pass", "Base"),
    ],
)
def test_base_is_found_by_every_kind_of_import(
    audited: Audited, imported: str, base: str
) -> None:
    """A subclass in another file is joined with its base, however it is imported."""
    found = audited(
        {
            "pkg/__init__.py": "from pkg.base import Base as Exported",
            "pkg/base.py": BASE,
            "pkg/derived.py": DERIVED.format(imported=imported, base=base),
        }
    )

    assert [("TP109", "Derived", ("mask",))] == [
        (report.rule, report.cls, report.fields) for report in found.reports
    ]


@pytest.mark.parametrize("imported", ["import pkg.base", "from pkg import base"])
def test_base_is_found_in_a_folder_without_init(
    audited: Audited, imported: str
) -> None:
    """A namespace package is searched as any other."""
    base = "pkg.base.Base" if imported.startswith("import") else "base.Base"

    found = audited(
        {
            "pkg/base.py": BASE,
            "pkg/derived.py": DERIVED.format(imported=imported, base=base),
        }
    )

    assert ["TP109"] == [report.rule for report in found.reports]


def test_imports_in_a_circle_end(audited: Audited) -> None:
    """Two modules that re-export each other's names give no endless search."""
    found = audited(
        {
            "pkg/one.py": "from pkg.two import Name",
            "pkg/two.py": "from pkg.one import Name\nclass Own(Name):\n    pass",
        }
    )

    assert [] == found.reports


def test_classes_that_derive_from_each_other_end(audited: Audited) -> None:
    """A circle of bases, which Python refuses, gives no endless search."""
    assert [] == audited("class A(B):\n    pass\nclass B(A):\n    pass").reports


def test_override_of_a_field_replaces_it(audited: Audited) -> None:
    """A field that a subclass declares anew has the subclass's type."""
    found = audited(
        """
        @dataclass
        class Base:
            ids: Tensor
            extra: Tensor

            def record_stream(self, stream):
                self.ids.record_stream(stream)
                self.extra.record_stream(stream)

        @dataclass
        class Derived(Base):
            extra: int = 0

            def record_stream(self, stream):
                self.ids.record_stream(stream)
        """
    )

    assert [] == found.reports


@pytest.mark.parametrize(
    ("annotation", "confidences"),
    [
        ("Tensor", ["high"]),
        ("Tensor | None", ["high"]),
        ("'Tensor'", ["high"]),
        ("torch.LongTensor", ["high"]),
        ("torch.nn.Parameter", ["high"]),
        ("Float[Tensor, 'batch seq']", ["high"]),
        ("list[Tensor]", ["high"]),
        ("dict[str, list[Tensor]]", ["high"]),
        ("Annotated[Tensor, 'rows']", ["high"]),
        ("Optional[Tuple[List[str], torch.Tensor]]", ["high"]),
        ("Alias", ["high"]),
        ("Inner", ["high"]),
        ("list[Inner] | None", ["high"]),
        ("Any", ["low"]),
        ("object", ["low"]),
        ("dict", ["low"]),
        ("dict[str, Any]", ["low"]),
        ("Unknown", ["low"]),
        ("int", []),
        ("str | None", []),
        ("list[int]", []),
        ("dict[Tensor, int]", []),
        ("torch.device", []),
        ("torch.dtype | None", []),
        ("np.ndarray", []),
        ("Host", []),
        ("Color", []),
        ("Callable[[Tensor], Tensor]", []),
        ("HostOnly[list[Tensor]]", []),
        ("ClassVar[Tensor]", []),
        ("torch.nn.Module", []),
        ("Model", []),
    ],
)
def test_annotation_tells_whether_a_field_carries_tensors(
    audited: Audited, annotation: str, confidences: list[str]
) -> None:
    """Tensors for certain are high, perhaps low, none is no report."""
    found = audited(
        f"""
        import enum
        import numpy as np
        from typing import Annotated, Callable, ClassVar, List, Optional, Tuple

        Alias = dict[str, Tensor]

        class Color(enum.Enum):
            RED = 1

        class Model(torch.nn.Module):
            pass

        @dataclass
        class Host:
            count: int

        @dataclass
        class Inner:
            weight: Tensor

        @dataclass
        class Batch:
            ids: Tensor
            field: {annotation} = None

            def record_stream(self, stream):
                self.ids.record_stream(stream)
        """
    )

    assert confidences == [report.confidence for report in found.reports]


@pytest.mark.parametrize(
    "header",
    [
        "@dataclass\nclass Batch:",
        "@attrs.define\nclass Batch:",
        "@attr.s(auto_attribs=True)\nclass Batch:",
        "@tensorclass\nclass Batch:",
        "class Batch(msgspec.Struct):",
        "class Batch(pydantic.BaseModel):",
        "class Batch(NamedTuple):",
    ],
)
def test_every_maker_of_fields_is_read(audited: Audited, header: str) -> None:
    """Fields of dataclasses, attrs, msgspec, pydantic and named tuples are read."""
    body = """
    ids: Tensor
    mask: Tensor

    def record_stream(self, stream):
        self.ids.record_stream(stream)
"""
    found = audited({"one.py": f"from typing import NamedTuple\n{header}{body}"})

    assert [("mask",)] == [report.fields for report in found.reports]


def test_attributes_of_plain_classes_are_fields(audited: Audited) -> None:
    """`self.x = x` in `__init__` makes a field of the parameter's type."""
    found = audited(
        """
        class Batch:
            def __init__(self, ids: Tensor, mask: Tensor, count: int) -> None:
                self.ids = ids
                self._mask = mask
                self.count = count

            def record_stream(self, stream):
                self.ids.record_stream(stream)
        """
    )

    assert [("_mask",)] == [report.fields for report in found.reports]


@pytest.mark.parametrize("base", ["torch.nn.Module", "Protocol", "enum.Enum"])
def test_modules_and_descriptions_are_not_judged(audited: Audited, base: str) -> None:
    """What moves by other means, or is only a description, gives no report."""
    found = audited(
        f"""
        import enum
        from typing import Protocol

        class Own({base}):
            ids: Tensor
            mask: Tensor

            def to(self, device):
                self.ids = self.ids.to(device)
                return self
        """
    )

    assert [] == found.reports
