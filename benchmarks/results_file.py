"""The results files from which the page is made: `results/<name>.json`.

Each states what was run, how thoroughly, when, with which versions and on which
machine. Its figures are in `entries`, a list whose items each benchmark defines. Times
are seconds. The files are committed; `latest.json` is not.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import harness

RESULTS = Path(__file__).parent / "results"
FORMAT, VERSION = "neuronjax-benchmark", 1
KEYS = ("format", "version", "name", "quick", "seconds", "started", "entries")
Measure = Callable[[bool], Mapping[str, Any]]


class BadResults(ValueError):
    """An error: a file was not written by a benchmark of this version."""


def document(
    name: str, body: Mapping[str, Any], *, quick: bool, seconds: float, **about: Any
) -> dict[str, Any]:
    """Return the content of a results file; `body` has at least `entries`."""
    head = {"format": FORMAT, "version": VERSION, "name": name, "quick": quick}
    return {**head, "seconds": round(seconds, 1), **about, **body}


@dataclass(frozen=True)
class Run:
    """A benchmark that has started.

    Attributes:
        name: name of the benchmark and of its file.
        about: the circumstances at the start.
        start: the clock at the start.
    """

    name: str
    about: Mapping[str, Any] = field(default_factory=harness.circumstances)
    start: float = field(default_factory=time.perf_counter)

    def document(self, body: Mapping[str, Any], *, quick: bool) -> dict[str, Any]:
        """Return the content of the results file, with the time so far."""
        seconds = time.perf_counter() - self.start
        return document(self.name, body, quick=quick, seconds=seconds, **self.about)


def check(found: Mapping[str, Any]) -> None:
    """Raise `BadResults` unless this is a document of this version."""
    missing = [key for key in (*KEYS, "versions", "machine") if key not in found]
    if missing:
        raise BadResults(f"results without {', '.join(missing)}")
    if (found["format"], found["version"]) != (FORMAT, VERSION):
        raise BadResults(f"results of version {found['version']}, not {VERSION}")


def write(found: Mapping[str, Any], path: Path) -> None:
    """Write a document, with its keys in their order."""
    check(found)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")


def read(path: Path) -> dict[str, Any]:
    """Return a document.

    Raises:
        BadResults: the file is no document, or one of another version.
    """
    try:
        found = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise BadResults(f"{path.name}: {error}") from error
    check(found)
    return found


def command(
    name: str,
    measure: Measure,
    show: Callable[[Mapping[str, Any]], str],
    arguments: Sequence[str] | None = None,
) -> int:
    """Run `python -m benchmarks.<name>`: measure, write the file, print a table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    path = RESULTS / f"{name}.json"
    parser.add_argument("--quick", action="store_true", help="smaller and fewer runs")
    parser.add_argument("--output", type=Path, default=path, help=f"[{path}]")
    options = parser.parse_args(arguments)
    run = Run(name)
    found = run.document(measure(options.quick), quick=options.quick)
    write(found, options.output)
    print(show(found))
    print(f"{options.output}: {len(found['entries'])} entries", file=sys.stderr)
    return int(bool(found.get("failed")))
