"""The functions from which a program's ops come, and which of their lines changed.

A golden stores these functions, so that a later run can distinguish an edit of the
user's source from another JAX that makes another program of the same source. A block is
the innermost function that contains a line or, outside of functions, the statement.
"""

from __future__ import annotations

import ast
import difflib
import functools
import linecache
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple


class SourceBlock(NamedTuple):
    """The lines of a function or of a statement."""

    first: int  # its first line, from 1
    text: str  # its lines without their common indentation

    @property
    def lines(self) -> dict[int, str]:
        return dict(enumerate(self.text.splitlines(), self.first))

    def statement(self, line: int) -> range:
        """Return the lines of the statement that contains `line`."""
        first, last = _innermost(_spans(self.text)[1], line - self.first + 1)
        return range(first + self.first - 1, last + self.first)


@dataclass(frozen=True)
class SourceLines:
    """Blocks of source by the name of the file, without folders, as in locations."""

    files: Mapping[str, tuple[SourceBlock, ...]]

    @classmethod
    def of(cls, places: Iterable[tuple[str, int]]) -> SourceLines:
        """Return the blocks, as they are on disk now, that contain `places`: files with
        their folders, and lines from 1."""
        asked = set(places)
        for file in {file for file, _ in asked}:
            linecache.checkcache(file)  # the file may have been edited since its import
        blocks: dict[str, set[SourceBlock]] = {}
        for file, line in asked:
            block = _block(linecache.getlines(file), line)
            if block is not None:
                blocks.setdefault(file.rpartition("/")[2], set()).add(block)
        return cls({file: _outermost(blocks[file]) for file in sorted(blocks)})

    def lines(self, file: str) -> list[tuple[int, str]]:
        """Return the numbered lines of code of a file's blocks, ascending. If several
        files have this name, the lines of all are returned."""
        return sorted({line for b in self.files.get(file, ()) for line in _code(b)})

    def statement(self, source: str) -> set[str]:
        """Return the lines, as `file:line`, of the statement with the line `source`."""
        file, _, line = source.rpartition(":")
        number = int(line) if line.isdigit() else 0
        blocks = [b for b in self.files.get(file, ()) if number in b.lines]
        return {f"{file}:{n}" for b in blocks for n in b.statement(number)}


@dataclass(frozen=True)
class EditedLines:
    """The lines, by `file:line`, that differ between two versions of the source."""

    before: Mapping[str, str]
    after: Mapping[str, str]

    @classmethod
    def between(cls, before: SourceLines, after: SourceLines) -> EditedLines:
        """Compare line by line; ignore comments, blank lines and line numbers."""
        removed: dict[str, str] = {}
        added: dict[str, str] = {}
        for file in sorted({*before.files, *after.files}):
            left, right = before.lines(file), after.lines(file)
            matcher = difflib.SequenceMatcher(
                None, [t for _, t in left], [t for _, t in right], autojunk=False
            )
            for tag, i, j, k, m in matcher.get_opcodes():
                if tag != "equal":
                    removed |= {f"{file}:{n}": text for n, text in left[i:j]}
                    added |= {f"{file}:{n}": text for n, text in right[k:m]}
        return cls(removed, added)

    def __bool__(self) -> bool:
        return bool(self.before or self.after)


def _outermost(blocks: Iterable[SourceBlock]) -> tuple[SourceBlock, ...]:
    """Return the blocks that are not inside others. Versions of JAX differ in which of
    two nested functions they name for an op of a loop."""
    result: list[SourceBlock] = []
    for block in sorted(blocks, key=lambda b: (b.first, -len(b.lines))):
        if not result or max(block.lines) > max(result[-1].lines):
            result.append(block)
    return tuple(result)


def _code(block: SourceBlock) -> Iterator[tuple[int, str]]:
    for number, line in block.lines.items():
        if line.strip() and not line.lstrip().startswith("#"):
            yield number, line.rstrip()


_Span = tuple[int, int]  # the first and the last line
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _block(lines: list[str], line: int) -> SourceBlock | None:
    if not 0 < line <= len(lines):
        return None
    text = "".join(lines)
    function = _innermost(_spans(text)[0], line)
    outside = function == (line, line)
    first, last = _innermost(_spans(text)[1], line) if outside else function
    return SourceBlock(first, textwrap.dedent("".join(lines[first - 1 : last])))


def _innermost(spans: Iterable[_Span], line: int) -> _Span:
    containing = [span for span in spans if span[0] <= line <= span[1]]
    return min(containing, key=lambda span: span[1] - span[0], default=(line, line))


@functools.lru_cache(maxsize=64)
def _spans(text: str) -> tuple[list[_Span], list[_Span]]:
    """Return the spans of functions, and those of statements without their bodies. Text
    that does not parse, such as a notebook's cell with magics, has no spans."""
    try:
        nodes = [*ast.walk(ast.parse(text))]
    except SyntaxError:
        return [], []
    functions = [n for n in nodes if isinstance(n, _FUNCTIONS)]
    statements = [_head(node) for node in nodes if isinstance(node, ast.stmt)]
    return [(f.lineno, f.end_lineno or f.lineno) for f in functions], statements


def _head(node: ast.stmt) -> _Span:
    body = getattr(node, "body", None)
    last = node.end_lineno or node.lineno
    if isinstance(body, list) and body:
        last = max(node.lineno, body[0].lineno - 1)
    return node.lineno, last
