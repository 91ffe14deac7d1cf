"""Writes every file that is made: `python -m docs.made`."""

from __future__ import annotations

from pathlib import Path

from docs.made import exactness, operations

ROOT = Path(__file__).parents[2]


def made() -> dict[str, str]:
    """Return the text of every file, by its path in the repository."""
    page = exactness.page()
    return {
        "docs/exactness.md": page,
        "src/neuronjax/report/exactness.md": page,
        "src/neuronjax/report/operations.json": operations.as_json(),
    }


def main() -> None:
    """Write the files."""
    for path, text in made().items():
        (ROOT / path).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
