"""The guide's chapters run: their python blocks, top to bottom, in one namespace, in an empty folder.

An ```output block right after a python block must be exactly what that block prints. A chapter whose first line is
<!-- slow --> is marked slow.
"""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(r"^```(python|output)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:)([^)#\s]+)")


def chapters():
    for path in sorted((ROOT / "docs/guide").glob("*.md")):
        slow = path.read_text(encoding="utf-8").startswith("<!-- slow -->\n")
        yield pytest.param(path, id=path.stem, marks=[pytest.mark.slow] if slow else [])


@pytest.mark.parametrize("path", list(chapters()))
def test_a_chapter_runs_as_it_is_printed(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = path.read_text(encoding="utf-8")
    namespace = {"__name__": path.stem}
    printed = None
    for block in BLOCK.finditer(text):
        kind, code = block.groups()
        if kind == "python":
            line = text.count("\n", 0, block.start(2))
            exec(compile("\n" * line + code, path, "exec"), namespace)  # the empty lines make tracebacks name the chapter's own
            printed = capsys.readouterr().out
        else:
            assert printed is not None, f"{path}: an output block without a python block before it"
            assert printed == code
            printed = None


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.md")), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(path):
    for target in LINK.findall(FENCED.sub("", path.read_text(encoding="utf-8"))):
        assert (path.parent / target).exists(), f"{path}: {target}"
