"""The page about judging lists the bugs and the cheats that tests judge."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import pytest

from tests.diagnostics.judging.bug_cases import BUGS
from tests.diagnostics.judging.cheat_cases import CHEATS

PAGE = Path(__file__).parents[3] / "docs" / "how-to" / "judge.md"


def table(verdicts: Mapping[str, str]) -> str:
    """A row for every verdict, and what gets it, in the order of the data."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, verdict in verdicts.items():
        found[verdict].append(name)
    rows = [f"| `{verdict}` | {'; '.join(names)} |" for verdict, names in found.items()]
    return "\n".join(
        ["| finding in the verdict | cases that get it |", "|---|---|", *rows]
    )


@pytest.mark.parametrize(
    ("what", "verdicts"),
    [
        ("bugs", {name: bug.verdict for name, bug in BUGS.items()}),
        ("cheats", {name: cheat.verdict for name, cheat in CHEATS.items()}),
    ],
)
def test_the_page_has_the_tables(what: str, verdicts: Mapping[str, str]) -> None:
    text = PAGE.read_text()
    between = rf"(<!-- {what}: .*? -->\n)(.*?)(<!-- end of {what} -->)"
    held = re.search(between, text, re.DOTALL)
    assert held is not None
    wanted = f"\n{table(verdicts)}\n\n"
    if os.environ.get("NEURONJAX_UPDATE_DOCS") == "1":
        PAGE.write_text(text.replace(held[0], f"{held[1]}{wanted}{held[3]}"))
    else:
        assert held[2] == wanted
