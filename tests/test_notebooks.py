"""The notebooks as files: valid, executed, and free of what is one machine's.

Nothing is executed here; `make notebooks` does that, and compares the outputs.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import nbformat
import pytest

FOLDER = Path(__file__).parent.parent / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MOST_BYTES = 400_000
#: Folders of one machine: homes, temporary files, a kernel's cells.
MACHINE_PATH = re.compile(r"(?<![\w.])/(?:home|root|tmp|work|Users|var|opt|usr)/\w")
CHECKED = "# NBVAL_CHECK_OUTPUT"


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def notebook(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
    return [output for cell in code_cells(notebook) for output in cell.outputs]


def test_there_are_twelve():
    numbers = [path.name.partition("_")[0] for path in NOTEBOOKS]
    assert numbers == [f"{n:02}" for n in range(1, 13)]


def test_the_readme_names_every_notebook():
    readme = (FOLDER / "README.md").read_text()
    assert [p.name for p in NOTEBOOKS if f"({p.name})" not in readme] == []


def test_is_valid_and_not_too_large(path, notebook):
    nbformat.validate(notebook)
    assert path.stat().st_size < MOST_BYTES


def test_begins_with_a_numbered_title(path, notebook):
    first = notebook.cells[0]
    assert first.cell_type == "markdown"
    assert first.source.startswith(f"# {int(path.name[:2])}. ")


def test_was_executed_from_top_to_bottom(notebook):
    counts = [cell.execution_count for cell in code_cells(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    assert outputs(notebook)


def test_no_cell_failed_or_warned(notebook):
    found = [(o.output_type, o.get("name")) for o in outputs(notebook)]
    assert [kind for kind in found if "error" in kind or "stderr" in kind] == []


def test_results_show_themselves(notebook):
    """No address of an object, which differs in every run."""
    text = json.dumps(outputs(notebook))
    assert re.findall(r"<[^>]{1,80} object at 0x[0-9a-f]+>", text) == []


def test_names_no_folder_of_a_machine(path, notebook):
    for cell in notebook.cells:
        assert MACHINE_PATH.findall(cell.source) == []
    for output in outputs(notebook):
        without_pictures = {
            kind: value
            for kind, value in output.get("data", {}).items()
            if not kind.startswith("image/")
        }
        text = json.dumps([without_pictures, output.get("text", "")])
        assert MACHINE_PATH.findall(text) == []


def test_holds_no_metadata_of_a_run(notebook):
    assert notebook.metadata.kernelspec.name == "python3"
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert notebook.metadata.language_info == {"name": "python"}
    assert [cell.metadata for cell in notebook.cells if cell.metadata] == []


def test_something_is_compared_and_it_is_text(notebook):
    """Pictures and tables of HTML are never the same bytes twice."""
    checked = [c for c in code_cells(notebook) if c.source.startswith(CHECKED)]
    asserts = [c for c in code_cells(notebook) if "assert " in c.source]
    assert checked or asserts
    for output in (output for cell in checked for output in cell.outputs):
        assert set(output.get("data", {})) <= {"text/plain"}
