"""The Python code of the README pages runs, in order, and prints what the pages show."""

import contextlib
import io
import re
from pathlib import Path

import pytest
import reasons

pytest.importorskip("torch", reason=reasons.TORCH)
pytest.importorskip("transformers", reason=reasons.TRANSFORMERS)

ROOT = Path(__file__).resolve().parents[2]


def blocks(page):
    """The Python blocks of a page, each with its output: the block of text right after it, or an empty string."""
    text = (ROOT / page).read_text()
    return re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "python/README.md"])
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, names = blocks(page), {}
    assert found, f"{page} has no examples"
    for code, shown in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        if shown:
            assert printed.getvalue() == shown
