"""The Python that the pages show is run, in order, and prints what they say."""

import contextlib
import io
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

ROOT = Path(__file__).resolve().parents[2]


def blocks(page):
    """Python of a page; a block of text after it is what it prints."""
    text = (ROOT / page).read_text()
    return re.findall(r"```python\n(.*?)```(?:\n\n```text\n(.*?)```)?", text, re.DOTALL)


@pytest.mark.parametrize("page", ["README.md", "python/README.md"])
def test_examples_run(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found, names = blocks(page), {}
    assert found, "the page has examples"
    for code, shown in found:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, page, "exec"), names)
        if shown:
            assert printed.getvalue() == shown
