"""Tables of a comparison in 80 columns."""

from __future__ import annotations

import pytest

from neuronjax.diagnostics.comparison_tables import line_of, op_table
from neuronjax.diagnostics.op_errors import Errors
from neuronjax.diagnostics.op_records import OpRecord
from neuronjax.report.tables import as_text


def record(number, module, file="train.py"):
    none = Errors()
    return OpRecord(
        number=number,
        op="stablehlo.dot_general",
        scope="",
        source=f"/home/me/{file}:{45 + number}",
        module=module,
        phase="backward",
        result="tensor<4xf32>",
        executions=1,
        isolation=none,
        accumulation=none,
    )


LAYERS = [f"blocks/{n}/attention/wk" for n in range(2)]


@pytest.mark.parametrize(
    "file", ["fault_bf16params.py", "a_very_long_name_of_a_file.py"]
)
def test_a_long_name_of_a_file_leaves_layers_apart(file):
    ops = [record(900 + n, module, file) for n, module in enumerate(LAYERS)]
    text = as_text(op_table("ops", ops))
    assert max(map(len, text.splitlines())) <= 80
    for layer in LAYERS:
        assert f"{layer[len('blocks/') :]} bwd" in text
    assert f" {file[:6]}" in text
    assert "…:945" in text


def test_a_name_that_fits_is_whole():
    text = as_text(op_table("ops", [record(3, "mlp", "fault_bf16params.py")]))
    assert "fault_bf16params.py:48" in text
    text = as_text(op_table("ops", [record(3, "blocks/0/mlp")]))
    assert " blocks/0/mlp bwd " in text
    assert "train.py:48" in text


def test_a_line_without_a_file():
    found = record(1, "mlp")
    assert line_of(found, 9) == "train…:46"
    assert line_of(found, 99) == "train.py:46"
