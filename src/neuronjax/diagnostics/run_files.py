"""A run of a study in a file of JSON lines: header, records, end.

The first line is the header, with a fingerprint of the code that made the run. Every
further line is the record of a step, written when the step ends; the last line states
that the run is complete. Floats keep every bit; NaN and Infinity are as in Python.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from neuronjax.errors import InvalidProgramError
from neuronjax.ir.json_text import json_object

_END = {"complete": True}

Record = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class StoredRun:
    """A run that ended: its header, and the records of its steps."""

    header: dict[str, Any]
    records: tuple[Record, ...]


def run_path(folder: Path, *parts: Any) -> Path:
    """Return the path of a run's file in `folder`, such as "trn2-bf16-seed0.jsonl"."""
    name = "-".join(re.sub(r"[^\w.+:]+", "_", str(part)) for part in parts)
    return folder / f"{name}.jsonl"


def read_run(path: Path) -> StoredRun | None:
    """Return the run in a file; None if the file is missing, or the run did not end.

    Raises:
        InvalidProgramError: the file is not that of a run.
    """
    if not path.exists():
        return None
    try:
        # Text after the last line break is incomplete: the writing process was killed.
        found = list(map(json_object, path.read_text().split("\n")[:-1]))
        ended = len(found) > 1 and found[-1] == _END
        return StoredRun(found[0], tuple(found[1:-1])) if ended else None
    except (OSError, ValueError) as error:
        raise InvalidProgramError(
            f"{path} is not the file of a run: {error}",
            remedy="give the study a folder of its own, or delete the file",
        ) from error


@contextlib.contextmanager
def written_run(path: Path, header: Record) -> Iterator[Callable[[Record], None]]:
    """Open a new file for a run, and yield a function that appends and flushes a line.

    The file is marked complete if the `with` block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:

        def write(line: Record) -> None:
            file.write(json.dumps(line) + "\n")
            file.flush()

        write(header)
        yield write
        write(_END)
