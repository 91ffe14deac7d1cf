"""The notebooks as pages, with the outputs that they were saved with; none is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat
from nbconvert import MarkdownExporter

_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
#: What tells nbval which outputs to compare.
_MARKS = re.compile(r"^# NBVAL_\w+\n", re.MULTILINE)
_NOTE = """!!! note ""

    This page shows the notebook [`notebooks/{name}`]({name}) with its saved outputs.
"""


@dataclass(frozen=True, kw_only=True)
class Notebook:
    """A notebook as Markdown.

    Attributes:
        path: of the notebook.
        title: its first heading.
        text: the page.
        files: pictures, by their name relative to the page.
    """

    path: Path
    title: str
    text: str
    files: dict[str, bytes]


def read(path: Path) -> Notebook:
    """One notebook."""
    notebook = nbformat.read(path, as_version=4)
    for cell in notebook.cells:
        cell.source = _MARKS.sub("", cell.source)
        cell.outputs = [_shown(output) for output in cell.get("outputs", ())]
    notebook.metadata.setdefault("language_info", {}).setdefault("name", "python")
    names = {"unique_key": path.stem, "output_files_dir": f"{path.stem}_files"}
    text, resources = MarkdownExporter().from_notebook_node(notebook, dict(names))
    text = re.sub(r"\n{3,}", "\n\n", text).lstrip()
    heading, _, rest = text.partition("\n")
    return Notebook(
        path=path,
        title=heading.lstrip("# ").strip() or path.stem,
        text=f"{heading}\n\n{_NOTE.format(name=path.name)}\n{rest}",
        files=dict(resources.get("outputs") or {}),
    )


def _shown(output: Any) -> Any:
    """Text of a terminal without its colours, as a block of text."""
    data = output.get("data", {"text/plain": output.get("text", "")})
    if set(data) != {"text/plain"} or output.output_type == "error":
        return output
    text = _ANSI.sub("", data["text/plain"]).rstrip("\n")
    block = f"~~~~text\n{text}\n~~~~"
    return nbformat.v4.new_output("display_data", {"text/markdown": block})
