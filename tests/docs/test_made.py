"""Files that are made and kept in the repository are up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs.made.__main__ import made

ROOT = Path(__file__).parents[2]
# The integer sum over devices warns that a chip adds in FP32, as it should.
pytestmark = pytest.mark.filterwarnings("ignore::neuronjax.IntegersInFP32Warning")
FILES = (
    "docs/exactness.md",
    "src/neuronjax/report/exactness.md",
    "src/neuronjax/report/operations.json",
)


def test_every_file_is_up_to_date():
    found = made()
    assert set(found) == set(FILES)
    stale = [path for path in FILES if (ROOT / path).read_text() != found[path]]
    assert not stale, "run: python -m docs.made"
