"""Runs the Python blocks of README and of the pages: `pytest docs`.

The blocks of a page share their names, as a reader would type them one after the other,
in an empty folder. A block of text below one that prints is what it printed, and is
compared; NEURONJAX_UPDATE_DOCS=1 writes it anew. What a page needs and does not show is
in a comment, `<!--- invisible-code-block: python`. README's blocks are fragments: each
runs alone, with the names of `readme_names.py`.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import textwrap
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from sybil import Document, Example, Lexeme, Region
from sybil.evaluators.python import PythonEvaluator
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

DOCS = Path(__file__).parent
ROOT = DOCS.parent
README = ROOT / "README.md"
PAGES = (README, *(p for p in sorted(DOCS.rglob("*.md")) if "made" not in p.parts))
UPDATE = bool(os.environ.get("NEURONJAX_UPDATE_DOCS"))
#: README shows what is printed below the word, indented by four.
_PRINTS = re.compile(r"(?<=^prints\n\n)(?:    .*\n|\n(?=    ))+", re.MULTILINE)


class Output:
    """What the blocks of a page printed since it was last looked at."""

    def __init__(self) -> None:
        self.text = io.StringIO()
        self.edits: list[tuple[int, int, str]] = []

    def taken(self) -> str:
        """The text, once."""
        text = self.text.getvalue()
        self.text.seek(0)
        self.text.truncate()
        return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"

    def check(self, example: Example) -> str | None:
        """Compares a block of text; one below a block that prints nothing is prose."""
        printed, shown = self.taken(), example.parsed
        if not printed.strip() or _dedented(printed) == _dedented(shown):
            return None
        if UPDATE:
            self.edits.append((example.region.start, example.region.end, printed))
            return None
        return f"printed\n{printed}\nbut the page shows\n{shown}"

    def printed(self, document: Document) -> Iterable[Region]:
        """README's outputs."""
        for found in _PRINTS.finditer(document.text):
            lines = (line[4:] for line in found[0].splitlines(keepends=True))
            shown = "".join(line or "\n" for line in lines).rstrip() + "\n"
            parsed = Lexeme(shown, 0, 0)
            yield Region(found.start(), found.end(), parsed, self.check)

    def write(self, path: Path) -> bool:
        """Puts what was printed into the page; true if the page changed."""
        text = path.read_text(encoding="utf-8")
        for start, end, printed in reversed(self.edits):
            text = f"{text[:start]}```text\n{printed}```{text[end:]}"
        path.write_text(text, encoding="utf-8")
        return bool(self.edits)


def _dedented(text: str) -> str:
    """Without common indentation, which Sybil takes away from blocks."""
    return textwrap.dedent(text).strip("\n")


def _fragments() -> Any:
    """Runs a block of README alone."""
    names = runpy.run_path(str(DOCS / "readme_names.py"))
    given = {k: v for k, v in names.items() if not k.startswith("__")}
    run = PythonEvaluator()

    def evaluate(example: Example) -> None:
        example.namespace.clear()
        example.namespace.update(given)
        run(example)

    return evaluate


def _blocks(path: Path, output: Output) -> Iterator[Example]:
    python = PythonCodeBlockParser()
    parsers = [CodeBlockParser("text", output.check), SkipParser()]
    if path == README:
        python = CodeBlockParser("python", _fragments())
        parsers.append(output.printed)
    # Source lines in what is printed are then short and the same on every machine.
    document = Document(path.read_text(encoding="utf-8"), path.name)
    for parser in (python, *parsers):
        for region in parser(document):
            document.add(region)
    yield from document.examples()


@pytest.mark.parametrize("path", PAGES, ids=lambda p: str(p.relative_to(ROOT)))
def test_page(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block runs, and prints what the page says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    output = _run(path)
    # A longer output moves the lines below it, whose numbers a later block may print.
    if UPDATE and output.write(path):
        _run(path).write(path)


def _run(path: Path) -> Output:
    """Runs the blocks of a page in order."""
    output = Output()
    with contextlib.redirect_stdout(output.text):
        for example in _blocks(path, output):
            example.evaluate()
    return output
