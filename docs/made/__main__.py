"""Writes every file that is made: `python -m docs.made`."""

from __future__ import annotations

from pathlib import Path

from docs.made import exactness, operations, verdict_schema
from docs.made.silicon_kit import kit

ROOT = Path(__file__).parents[2]


def made() -> dict[str, bytes]:
    """Return the content of every file, by its path in the repository."""
    return {
        "docs/exactness.md": exactness.page().encode(),
        "docs/verdict.schema.json": verdict_schema.as_json().encode(),
        "src/neuronjax/report/operations.json": operations.as_json().encode(),
        "src/neuronjax/testing/silicon/kit.zip": kit.archive(),
    }


def main() -> None:
    """Write the files."""
    for path, content in made().items():
        (ROOT / path).write_bytes(content)


if __name__ == "__main__":
    main()
