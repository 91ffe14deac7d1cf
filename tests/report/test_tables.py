"""Tables of reports: what follows one is a line apart."""

from __future__ import annotations

import functools
import pickle
import re
import types

import pytest
from rich.console import Group
from rich.text import Text

from neuronjax.report.html import as_html
from neuronjax.report.tables import Drawing, Records, as_text, new_table, one_line


@pytest.mark.parametrize("caption", [None, "one line", "one line\nand another"])
def test_a_blank_line_follows_a_table(caption):
    tables = [new_table(title, {"": {}}, [["x"]], caption) for title in ("a", "b")]
    lines = as_text(Group(*tables)).split("\n")
    assert lines[lines.index("b") - 1] == ""
    assert lines[lines.index("b") - 2] != ""


def test_records_are_a_list_of_flat_dicts_and_a_table():
    rows = [{"op": f"add{n}", "seconds": n / 3, "note": None} for n in range(30)]
    found = Records(rows)
    assert found == rows
    text = str(found)
    assert "30 rows" in text
    assert "0.3333" in text
    assert "not shown: 10 more" in text
    assert "None" not in text
    assert set(found._repr_mimebundle_()) == {"text/plain", "text/html"}
    printed: list[str] = []  # by IPython, which has a form of its own for a list
    found._repr_pretty_(types.SimpleNamespace(text=printed.append), False)
    assert printed == [text]


def test_columns_for_which_there_is_no_room_are_named():
    text = str(Records([{"first": "x" * 60, "second": "y" * 30, "third": 1}]))
    assert max(map(len, text.splitlines())) <= 80
    assert "y" * 30 not in text
    assert text.rstrip().endswith("not shown: second, third")


def test_a_page_has_all_columns_and_numbers_below_each_other():
    page = Records([{"first": "x" * 60, "second": "y" * 30, "third": 1}])._repr_html_()
    assert "y" * 30 in page
    assert "not shown" not in page
    sides = re.findall(r"<td style=.text-align:(\w+)", page)
    assert sides == ["left", "left", "right"]


def test_one_line_is_cut_in_text_and_whole_on_a_page():
    shown = Drawing(Group(one_line(("bold", "bold"), " and ", "long" * 30)))
    assert str(shown) == f"bold and {'long' * 17}lo…"
    assert "long" * 30 in shown._repr_html_()


def test_records_may_be_drawn_by_who_makes_them():
    found = Records([{"a": 1}], lambda: new_table("mine", {"": {}}, [["x"]]))
    assert str(found).startswith("mine")
    assert str(Records()).startswith("0 rows")
    named = Records([{"a": 1}], functools.partial(new_table, "mine", {}, []))
    assert str(pickle.loads(pickle.dumps(named))) == str(named)


@pytest.mark.parametrize("draw", [as_text, as_html])
def test_square_brackets_are_part_of_a_text(draw):
    table = new_table("a[b]", {"c[d]": {}}, [["float32[b,16]"]], "e[f]")
    table.add_row("[red]x[/red] :x:")
    shown = draw(table)
    for text in ("a[b]", "c[d]", "float32[b,16]", "[red]x[/red] :x:", "e[f]"):
        assert text in shown


def test_a_styled_cell_is_a_text_of_its_own():
    assert "color:" in as_html(new_table("", {"": {}}, [[Text("x", "red")]]))
