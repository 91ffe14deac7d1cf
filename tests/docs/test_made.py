"""Files that are made and kept in the repository are up to date."""

from __future__ import annotations

from pathlib import Path

from docs.made.__main__ import made

ROOT = Path(__file__).parents[2]
FILES = (
    "docs/exactness.md",
    "docs/verdict.schema.json",
    "src/neuronjax/report/operations.json",
    "src/neuronjax/testing/silicon/kit.zip",
)


def test_every_file_is_up_to_date():
    found = made()
    assert set(found) == set(FILES)
    stale = [path for path in FILES if (ROOT / path).read_bytes() != found[path]]
    assert not stale, "run: python -m docs.made"
