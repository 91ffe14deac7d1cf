"""Tables of reports: what follows one is a line apart."""

from __future__ import annotations

import pytest
from rich.console import Group

from neuronjax.report.tables import as_text, new_table


@pytest.mark.parametrize("caption", [None, "one line", "one line\nand another"])
def test_a_blank_line_follows_a_table(caption):
    tables = [new_table(title, {"": {}}, [["x"]], caption) for title in ("a", "b")]
    lines = as_text(Group(*tables)).split("\n")
    assert lines[lines.index("b") - 1] == ""
    assert lines[lines.index("b") - 2] != ""
