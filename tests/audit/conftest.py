"""What the tests of the audit share: an audit of texts."""

import textwrap
from pathlib import Path

import pytest
from audit.texts import HEAD, Audited

from tensorpack._audit.audit import Findings, audit


@pytest.fixture
def audited(tmp_path: Path) -> Audited:
    """Return a function that audits the text of a module, or texts by file name."""

    def run(text: str | dict[str, str]) -> Findings:
        if isinstance(text, str):
            text = {"module.py": HEAD + textwrap.dedent(text)}
        for name, content in text.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(content))
        return audit([tmp_path], processes=1)

    return run
