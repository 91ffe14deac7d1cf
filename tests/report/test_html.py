"""HTML of reports: real tables, folded details, and colours that every theme shows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from rich.console import Group
from rich.text import Text

from neuronjax.report.html import CODE, COLOURS, Narrowed, as_html
from neuronjax.report.tables import NAME, NUMBER, TEXT, WORD, Drawing, new_table

THEMES = Path(sys.prefix) / "share/jupyter/lab/themes/@jupyterlab"


def table(title="Ops", **options):
    return new_table(title, {"op": NAME, "ms": NUMBER}, [("a <b>", "1.5")], **options)


def test_a_table_is_a_table():
    found = as_html(table(caption="note [1] & more"))
    assert found.count("<tr>") == 2
    assert "a &lt;b&gt;</td>" in re.sub("</?span[^>]*>", "", found)
    assert "text-align:right" in found
    assert "note [1] &amp; more" in found
    assert "<b>Ops</b>" in found


def test_what_follows_the_first_table_is_folded():
    found = as_html(Group("head", table(), Text("between"), Group(table("Modules"))))
    assert found.index("head") < found.index("<table") < found.index("<details>")
    assert found.count("<details>") == 1
    assert "<summary><b>Modules</b></summary>" in found
    assert found.index("between") < found.index("<details>")


def test_markup_is_looks_and_no_code_of_a_terminal():
    found = as_html(Group("[red]wrong[/red] [dim]of 21[/dim]", Text("x", "bold green")))
    assert COLOURS["red"] in found
    assert COLOURS["dim"] in found
    assert "font-weight:bold" in found
    assert not any(code in found for code in ("\x1b", "<script", "<style", "class="))
    assert not re.search(r"#[0-9a-fA-F]{3,6}|rgb", found)


def test_what_was_fitted_to_columns_is_whole_on_a_page():
    text = Narrowed("  so many\n  words", "  so many words")
    (found,) = as_html(Group(text)).splitlines()
    assert ">so many words</div>" in found
    assert "margin-left:1em" in found
    assert "so many words</td>" in as_html(new_table("", {"": {}}, [[text]]))


def test_a_word_does_not_wrap_and_a_text_does():
    looks = {"word": WORD, "text": TEXT, "long": WORD | {"max_width": 9}}
    found = as_html(new_table("", looks, [["a-b"] * 3]))
    assert re.findall(r"white-space:([\w-]+);", found)[3:] == [
        "pre",
        "pre-wrap",
        "pre-wrap",
    ]


def test_code_has_characters_of_one_width():
    assert "monospace" in as_html(Text("x @ x", CODE))
    assert "monospace" not in as_html(Text("x @ x"))


def test_a_report_is_a_bundle():
    found = Drawing(table())._repr_mimebundle_(include=None, exclude=None)
    assert set(found) == {"text/plain", "text/html"}
    assert found["text/plain"] == str(Drawing(table()))


# -- contrast, by the themes of JupyterLab ---------------------------------------------


def variables(theme):
    text = (THEMES / f"theme-{theme}-extension/index.css").read_text()
    return dict(re.findall(r"(--[\w-]+):\s*([^;}]+)[;}]", text))


def channels(colour, over=(255, 255, 255)):
    """Red, green and blue of a colour of CSS, on what lies below it."""
    colour = {"white": "#fff", "black": "#000"}.get(colour, colour)
    if match := re.fullmatch(r"rgba\(([\d., ]+)\)", colour):
        *own, alpha = map(float, match[1].split(","))
        return [alpha * c + (1 - alpha) * b for c, b in zip(own, over, strict=True)]
    digits = colour.removeprefix("#")
    digits = digits if len(digits) == 6 else "".join(2 * d for d in digits)
    return [int(digits[n : n + 2], 16) for n in (0, 2, 4)]


def luminance(rgb):
    """As WCAG defines it."""
    parts = (c / 255 for c in rgb)
    linear = [
        c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts
    ]
    return sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("colour", COLOURS)
def test_contrast(theme, colour):
    if not THEMES.is_dir():
        pytest.skip("JupyterLab is not installed")
    known = variables(theme)
    behind = channels(known["--jp-layout-color0"])
    name = re.match(r"var\((--[\w-]+)", COLOURS[colour])[1]
    lights = luminance(channels(known[name], behind)), luminance(behind)
    assert (max(lights) + 0.05) / (min(lights) + 0.05) >= 4.5
