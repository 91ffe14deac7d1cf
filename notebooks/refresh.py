"""Runs notebooks again and saves their outputs in place.

    python notebooks/refresh.py             # all of them
    python notebooks/refresh.py 06 07       # some, by the start of their names

What a run leaves behind that says nothing about the result is removed: times, execution
metadata, the version of the kernel, cell ids that change. A cell that fails stops the
run, and nothing of that notebook is saved.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).parent
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}
SECONDS = 600  # for one cell


def notebooks(starts: list[str]) -> list[Path]:
    """Those whose names begin so, all without starts."""
    found = sorted(FOLDER.glob("*.ipynb"))
    if not starts:
        return found
    return [path for path in found if path.name.startswith(tuple(starts))]


def refresh(path: Path) -> float:
    """Executes and saves a notebook; returns the seconds that its cells took."""
    notebook = nbformat.read(path, as_version=4)
    os.environ["NEURONJAX_PROGRESS"] = "0"  # which kernels inherit
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        kernel_name=KERNEL["name"],
        resources={"metadata": {"path": str(FOLDER)}},
        record_timing=False,
        coalesce_streams=True,
    )
    start = time.perf_counter()
    client.execute()
    seconds = time.perf_counter() - start
    clean(notebook, path.name[:2])
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return seconds


def clean(notebook: nbformat.NotebookNode, prefix: str) -> None:
    """Removes what differs from run to run though the result is the same."""
    notebook.metadata = nbformat.from_dict(
        {"kernelspec": KERNEL, "language_info": {"name": "python"}}
    )
    for number, cell in enumerate(notebook.cells):
        cell.id = f"{prefix}-{number:02}"
        cell.metadata = nbformat.from_dict({})
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = nbformat.from_dict({})


def main() -> None:
    """Refreshes what the command line names."""
    found = notebooks(sys.argv[1:])
    if not found:
        sys.exit(f"no notebook begins with {' or '.join(sys.argv[1:])}")
    for path in found:
        seconds = refresh(path)
        print(f"{path.name:45} {seconds:5.1f} s  {path.stat().st_size / 1024:4.0f} KiB")


if __name__ == "__main__":
    main()
