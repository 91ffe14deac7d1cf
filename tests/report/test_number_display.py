"""Number formats, MX and sparse arrays in text and in a notebook."""

from __future__ import annotations

import html
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.report.number_display import display_of, format_table
from neuronjax.report.tables import as_text


def shown(value):
    """What is shown as text, without blanks at the ends; its words are in the HTML."""
    has_text = type(value).__str__ is not object.__str__
    text = str(value if has_text else display_of(value))
    page = html.unescape(re.sub(r"<[^>]*>", " ", value._repr_html_())).split()
    assert {*text.split()} - {*"─" * 99} <= {*page, *re.findall("─+", text)}
    return text.strip("\n")


def ramp(rows=64, columns=12):
    return jnp.arange(rows * columns, dtype=jnp.float32).reshape(rows, columns)


# -- formats ---------------------------------------------------------------------------


def test_formats_are_looked_up_by_name_and_dtype():
    assert nj.formats["float8_e4m3"].max_finite == 240
    assert nj.formats["mxfp4_e2m1"].element is nj.formats["float4_e2m1fn"]
    assert nj.formats[jnp.bfloat16].name == "bfloat16"
    assert nj.formats["int8"].max == 127
    assert set(nj.formats) >= {"tfloat32", "mxfp8_e5m2", "uint32"}
    assert all(nj.formats[name].name == name for name in nj.formats)


def test_an_unknown_format_is_refused():
    assert "float9" not in nj.formats
    with pytest.raises(nj.InvalidProgramError, match="float8_e4m3"):
        nj.formats["float8_e4m4"]


def test_formats_print_in_80_columns():
    text = str(nj.formats)
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    (row,) = (line for line in text.splitlines() if "float8_e4m3fn  " in line[:20])
    assert row.split() == "float8_e4m3fn 1 4 3 448 2^-6 2^-9 2^-3 NaN".split()
    assert shown(nj.formats) == text.strip()


@pytest.mark.parametrize("name", list(nj.formats))
def test_every_format_shows_itself(name):
    assert shown(nj.formats[name]).startswith(name)
    assert name in repr(nj.formats[name]) or name.endswith(("8", "16", "32"))


def test_a_format_shows_its_limits():
    lines = as_text(format_table(nj.formats["float8_e5m2"])).splitlines()
    rows = dict(line.strip().split("  ", 1) for line in lines if "  " in line.strip())
    assert rows["bits"].strip() == "S EEEEE MM (8)"
    assert rows["largest"].strip() == "57344"
    assert rows["smallest"].strip() == "1.526e-05 = 2^-16"


# -- arrays ----------------------------------------------------------------------------


def test_an_mx_array_shows_scales_and_elements():
    found = nj.quantize_mx(jnp.array([96.0, -1, 0.5, 3] + 28 * [0.0] + [0.25]))
    rows = [line.split() for line in shown(found).splitlines()]
    assert ["[0]", "2^-2", "384", "-4", "2", "12", "0", "0", "0", "0", "..."] in rows
    assert ["[1]", "2^-10", "256"] in rows
    assert repr(found) == (
        "<neuronjax.MXArray mxfp8_e4m3(33,), blocks of 32 along axis -1>"
    )


def test_blocks_along_another_axis_are_placed_in_the_order_of_the_axes():
    lines = shown(nj.quantize_mx(ramp(), axis=0)).splitlines()
    places = [line.strip().split("  ")[0] for line in lines if line[:2] == " ["]
    assert places[:3] == ["[0, 0]", "[1, 0]", "[0, 1]"]
    assert lines[-1].strip() == "18 more"


def test_a_block_with_a_nan_has_a_nan_scale():
    assert "NaN" in shown(nj.quantize_mx(jnp.array([1.0, np.nan])))


def test_a_sparse_array_shows_what_is_kept():
    found = nj.sparsify(jnp.array([1.0, -3, 3, 2, 0, 0, 5, -1]), "2:4")
    assert shown(found).splitlines()[-1].split() == ["[:]", "·■■·", "··■■"]
    assert repr(found) == "<neuronjax.SparseArray 2:4 float32(8,), axis -1>"


@pytest.mark.slow_cases("4:16", "4:12")
@pytest.mark.parametrize("pattern", ["4:16", "4:12", "2:4", "1:2"])
def test_a_wide_sparse_array_fits(pattern):
    text = shown(nj.sparsify(ramp(500, 20), pattern))
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert text.splitlines()[-1].strip() == "12 more"


@pytest.mark.slow_cases("sparsify")
@pytest.mark.parametrize("make", [nj.quantize_mx, nj.sparsify])
def test_what_is_no_array_of_numbers_still_has_a_name(make):
    array = make(ramp())
    for other in (
        jax.tree.map(lambda leaf: None, array),
        jax.eval_shape(lambda: array),
        make(ramp()[:, :0]),
    ):
        assert type(array).__name__ in repr(other)
        assert "<" in other._repr_html_()
        assert other._repr_mimebundle_()["text/plain"] == str(other.display())

    def traced(x):
        assert type(array).__name__ in make(x)._repr_html_()
        return x

    jax.jit(traced)(ramp())


def test_a_table_of_collective_times_shows_its_figures():
    bench = nj.collective_bench("all_reduce", sizes=["1K", "1M"])
    assert "bandwidth in GB/s" in shown(bench)
    assert repr(bench) == (
        "<neuronjax.CollectiveBench all_reduce over 64 ranks of trn2.48xlarge, 2 sizes>"
    )
