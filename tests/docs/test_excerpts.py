"""The guide's excerpts from examples/ are what those programs, which tests run, say now.

An excerpt is a ```py block whose first line names the file: "# examples/hf_trainer.py".
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXCERPT = re.compile(r"^```py\n# (\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCE = re.compile(r"^```py$", re.MULTILINE)


def excerpts():
    for page in sorted((ROOT / "docs").rglob("*.md")):
        for number, found in enumerate(EXCERPT.finditer(page.read_text(encoding="utf-8"))):
            yield pytest.param(*found.groups(), id=f"{page.stem}-{number}")


@pytest.mark.parametrize(("path", "code"), list(excerpts()))
def test_an_excerpt_is_what_the_program_says(path, code):
    assert code in (ROOT / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: path.stem)
def test_no_excerpt_is_without_its_source(page):
    text = page.read_text(encoding="utf-8")
    assert len(FENCE.findall(text)) == len(EXCERPT.findall(text))
