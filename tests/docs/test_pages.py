"""The made pages of the documentation say all that the package holds.

The site itself is built, and its code run, by `make docs`.
"""

from __future__ import annotations

import collections
import re
from pathlib import Path

import pytest

import neuronjax.hardware as machines
from docs.made.operations import NAMES
from docs.pages import (
    citations,
    command_line,
    constants,
    coverage,
    examples,
    flags,
    hardware,
    markdown,
    matrix,
    reference,
)
from docs.pages.contradictions import CONTRADICTIONS
from neuronjax.hardware import chips
from neuronjax.policy.flags import FLAGS, UNSUPPORTED_VARIABLES

ROOT = Path(__file__).parents[2]


def test_every_public_name_is_on_one_page():
    pages = reference.groups()
    placed = collections.Counter(n for group in pages.values() for n in group.names)
    assert set(placed) == set(reference.public_names())
    assert set(placed.values()) == {1}
    index = reference.index(pages)
    assert all(f"neuronjax.{name}]" in index for name in placed)
    assert "::: neuronjax.jit\n" in reference.page(pages["programs"])


def test_a_new_name_has_a_page(monkeypatch):
    import neuronjax

    monkeypatch.setattr(neuronjax, "surprise", object(), raising=False)
    assert "surprise" in reference.groups()["more"].names


def test_contradictions_are_complete_sentences_of_data():
    topics = [item.topic for item in CONTRADICTIONS]
    assert len(set(topics)) == len(topics)
    for item in CONTRADICTIONS:
        assert item.chosen != item.alternative
        assert item.topic
        assert item.sources


def test_hardware_is_complete():
    page = hardware.page()
    names = [*machines.TARGETS, *machines.CAPABILITIES, *machines.TOPOLOGIES]
    assert [name for name in names if f"`{name}`" not in page] == []
    topics = (markdown.cell(c.topic) for c in CONTRADICTIONS)
    assert [topic for topic in topics if topic not in page] == []
    assert "NeuronCore-v2 | tensor | 2.8 GHz" in page
    # Every key that is cited is explained.
    cited = set(re.findall(r"\*\[([A-Z][A-Z0-9]*)", page))
    explained = page.partition("## Sources")[2]
    assert {key for key in cited if key not in explained} == set()


def test_citations_are_those_of_the_source():
    found = citations.citations(chips)
    trn2, core = found[id(chips.TRN2)], found[id(chips.NEURON_CORE_V3)]
    assert trn2["hbm_bytes"] == "[A3]"
    assert trn2["cc_cores"] == "[H2, DRV]"
    assert core["sbuf_bytes"] == "[A3]"
    assert core["partitions"] == "[A2]"  # kept from NeuronCore-v2
    assert core["products_per_cell_per_cycle"] == "[A3, V26, C3]"
    assert "assumption" in found[id(chips.TRN4)]["dma_engine_bytes_per_second"]


def test_the_matrix_counts_its_cells():
    page = matrix.matrix_table()
    counts = list(map(int, re.findall(r"(\d+) (?:cells|answers|refusals|that)", page)))
    assert counts[0] == sum(counts[1:])
    kinds = page.count("\n| ") - 2  # heads and rules
    verbs = page.splitlines()[2].count("|") - 2
    assert counts[0] == kinds * verbs
    assert "Instead: " in page


def test_flags_are_complete():
    page = flags.flags_table()
    assert [flag.name for flag in FLAGS if f"`{flag.name}`" not in page] == []
    assert "| `--auto-cast` | `matmult` | `auto_cast='matmult'` |" in page
    assert "refused: it belongs to neuron-cc" in page
    variables = flags.variables_table()
    assert all(f"`{name}`" in variables for name in UNSUPPORTED_VARIABLES)
    assert "| `sparsity` | `None`, `'4:16'`," in flags.legal_table()
    assert "| 2.27 | `auto_cast='none'` |" in flags.defaults_table()


def test_constants_and_ops_are_complete():
    page = constants.page()
    listed = [c.name for group in constants.GROUPS.values() for c in group]
    assert len(listed) == len(set(listed)) > 50
    assert [name for name in listed if f"`{name}`" not in page] == []
    page = coverage.page()
    assert [name for name in NAMES if f"`{name}`" not in page] == []


def test_tables_hold_any_text():
    assert markdown.table(("a", "b:"), [("x|y", "<z>\n1")]) == (
        "| a | b |\n| --- | ---: |\n| x\\|y | &lt;z> 1 |\n"
    )


@pytest.mark.slow
def test_examples_and_commands():
    page = examples.page(ROOT / "examples")
    assert f"{{ #{examples.anchor('distributed/train.py')} }}" in page
    assert '??? example "examples/digits.py"' in page
    page = command_line.page()
    assert "## `neuronjax check`" in page
    assert "```sh\nneuronjax check model.mlirbc --target trn1\n" in page
    assert str(ROOT) not in page


@pytest.mark.slow
def test_notebooks(tmp_path):
    pytest.importorskip("nbconvert")
    nbformat = pytest.importorskip("nbformat")
    from docs.pages import notebooks

    new = nbformat.v4
    output = new.new_output("stream", name="stdout", text="\x1b[1m2\x1b[0m\n")
    notebook = new.new_notebook(
        cells=[
            new.new_markdown_cell("# A title\n\nWords."),
            new.new_code_cell("# NBVAL_CHECK_OUTPUT\nprint(1 + 1)", outputs=[output]),
        ]
    )
    nbformat.write(notebook, tmp_path / "one.ipynb")
    found = notebooks.read(tmp_path / "one.ipynb")
    assert found.title == "A title"
    assert "```python\nprint(1 + 1)\n```" in found.text
    assert "~~~~text\n2\n~~~~" in found.text
