"""NKI releases: the data against itself and the emulator, and what a file uses."""

from __future__ import annotations

import re
from collections import Counter

import pytest

import neuronjax as nj
from neuronjax import nki
from neuronjax.nki import collectives
from neuronjax.nki.releases.differences import DIFFERENCES
from neuronjax.nki.releases.meeting import met_by_uses
from neuronjax.nki.releases.release import (
    NEWEST,
    RELEASES,
    place_in_time,
    resolve_release,
)
from neuronjax.nki.releases.traced import TRACED
from neuronjax.nki.releases.uses import NkiUse, uses

SOURCE = re.compile(r"(RN|API) (0|2)\.\d+|guide|samples#\d+|nki-library 2\.2\d")
NAMES = {release.name for release in RELEASES}
#: What a plain name of the data is of the emulator.
ROOTS = {
    "nki.isa": nki.isa,
    "nki.language": nki.language,
    "nki.collectives": collectives,
    "nki": nki,
}


def ids(difference: object) -> str:
    return f"{difference.name} {difference.what}"[:60]  # type: ignore[attr-defined]


@pytest.mark.parametrize("difference", DIFFERENCES, ids=ids)
def test_every_difference_has_valid_fields(difference) -> None:
    assert {difference.since, difference.until} - {""} <= NAMES
    assert difference.since or difference.until
    held = [r for r in RELEASES if difference.holds_in(r)]
    assert 0 < len(held) < len(RELEASES)
    assert difference.what
    assert difference.remedy
    assert all(map(SOURCE.fullmatch, difference.source.split(", ")))
    assert not difference.when.traced or difference.when.traced in TRACED
    assert not difference.when.literal or difference.when.keyword
    assert not difference.when.without or difference.when.position


def test_no_row_is_there_twice() -> None:
    rows = Counter((d.name, d.when, d.since, d.until) for d in DIFFERENCES)
    assert [row for row, count in rows.items() if count > 1] == []


def known(name: str) -> bool:
    """Whether the emulator has a name, methods of tensors included."""
    prefix = next(p for p in ROOTS if name.startswith(f"{p}."))
    found = ROOTS[prefix]
    for part in name.removeprefix(f"{prefix}.").split("."):
        if not hasattr(found, part):
            return False
        found = getattr(found, part)
    return True


def plain_rows() -> list[tuple[str, bool]]:
    """Names that come and go as such, and whether the newest release lacks them."""
    kinds = ("absent", "removed")
    rows = [d for d in DIFFERENCES if d.kind in kinds and d.name.startswith("nki.")]
    rows = [d for d in rows if not (d.when.keyword or d.when.style or "*" in d.name)]
    lacking = {d.name for d in rows if d.holds_in(NEWEST)}
    return [(name, name in lacking) for name in sorted({d.name for d in rows})]


@pytest.mark.parametrize(("name", "lacking"), plain_rows())
def test_the_emulator_has_what_the_newest_release_has(name: str, lacking: bool) -> None:
    if lacking and name not in ("nki.language.mgrid",):  # kept for older kernels
        assert not known(name)
    if not lacking and name != "nki.typing":  # a module
        assert known(name)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("0.4", "0.4"), ("0.4.0", "0.4"), ("2.30", "0.4"), ("nki-0.6", "0.6"),
        ("neuronxcc", "neuronxcc-2.26"), ("neuronxcc-2.x", "neuronxcc-2.26"),
        ("2.25", "neuronxcc-2.24"), ("neuronxcc-2.21", "neuronxcc-2.21"),
    ],
)  # fmt: skip
def test_names_of_releases(given: str, name: str) -> None:
    assert resolve_release(given).name == name


def test_an_unknown_release_is_named_with_those_that_are() -> None:
    with pytest.raises(nj.InvalidProgramError, match=r"no NKI release '0\.7'") as error:
        resolve_release("0.7")
    assert "0.6" in (error.value.remedy or "")


def test_releases_are_in_order() -> None:
    assert [r.date for r in RELEASES] == sorted(r.date for r in RELEASES)
    assert [place_in_time(r.name) for r in RELEASES] == list(range(len(RELEASES)))


def used(*lines: str, imports: str = "") -> list[NkiUse]:
    imports = (
        imports or "import nki\nimport nki.isa as nisa\nimport nki.language as nl\n"
    )
    return uses(imports + "\n".join(lines), "k.py")


def names(found: list[NkiUse]) -> set[str]:
    return {use.name for use in found}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("import nki.isa as i\ni.topk(a, b)", "nki.isa.topk"),
        ("from nki import isa as i\ni.topk(a, b)", "nki.isa.topk"),
        ("from nki.isa import topk as t\nt(a, b)", "nki.isa.topk"),
        ("import nki\nnki.isa.topk(a, b)", "nki.isa.topk"),
        ("import nki\ni = nki.isa\ni.topk(a, b)", "nki.isa.topk"),
        ("import neuronjax.nki.isa as i\ni.topk(a, b)", "nki.isa.topk"),
        ("import neuronxcc.nki.isa\nneuronxcc.nki.isa.topk(a, b)", "nki.isa.topk"),
        ("from neuronxcc import nki\nnki.isa.topk(a, b)", "nki.isa.topk"),
        ("import nki.language as nl\nnl.tile_size.pmax", "nki.language.tile_size.pmax"),
    ],
)
def test_aliases_are_followed(text: str, name: str) -> None:
    found = uses(text, "k.py")
    assert name in names(found)
    assert any(use.older for use in found) == ("neuronxcc" in text)


def test_what_is_not_nki_is_no_use() -> None:
    text = "import numpy as np\nfrom . import nki\nnp.topk(1)\nnki.isa.topk(2)"
    assert uses(text, "k.py") == []


def test_uses_record_the_arguments_of_a_call() -> None:
    call = "nisa.dma_copy(a, b, dge_mode=2, engine='x', **more)"
    found = next(u for u in used(call) if u.name == "nki.isa.dma_copy")
    assert found.positional == 2
    assert found.keywords == {"0": "", "1": "", "dge_mode": "int", "engine": "str"}
    assert found.is_open
    assert not found.valued
    assert next(u for u in used(f"r = {call}") if u.call).valued


def test_methods_count_on_tensors_alone() -> None:
    body = (
        "@nki.jit",
        "def kernel(x, view):",
        "    t = nl.ndarray((128, 4), dtype=nl.float32)",
        "    mine = View(t)",
        "    t.permute((1, 0))",
        "    x[0:64].squeeze_dim(0)",
        "    t.slice(0, 0, 4).select(1, 0)",
        "    mine.broadcast(0, 4)",
    )
    prefix = "nki.language.NkiTensor."
    methods = {n.removeprefix(prefix) for n in names(used(*body)) if prefix in n}
    assert methods == {"permute", "squeeze_dim", "slice", "select"}


def test_python_syntax_that_nki_refuses_is_found() -> None:
    body = (
        "@nki.jit",
        "def kernel(x, *, a=[1]):",
        "    reg = nisa.register_alloc(5)",
        "    if x is None: pass",
        "    while reg:",
        "        nisa.register_load(reg, x)",
        "def host(a=[1], *, b=None):",
        "    while a: pass",
        "    return b is None",
    )
    found = [(u.name, u.line) for u in used(*body) if u.name.startswith("python")]
    assert found == [
        ("python: * in a kernel's signature", 5),
        ("python: a list as default of a kernel", 5),
        ("python: is", 7),
        ("python: while register", 8),
    ]


# A line of a kernel -> in which of 2.27, 0.2, 0.3, 0.4, 0.5 and 0.6 it is lost.
LOST = {
    "nisa.topk(dst=v, src=t)": "2.27 0.2 0.3 0.4 0.5",
    "nl.fori_loop(0, 4, body)": "2.27 0.2 0.3 0.4 0.5",
    "nisa.activate2(dst=t, data=t)": "2.27 0.2 0.3",
    "nl.load(x)": "2.27 0.2",
    "nisa.activation(dst=t, op=nl.exp, data=t)": "",
    "nl.arange(4)": "2.27 0.2 0.3 0.4 0.5 0.6",
    "nisa.tensor_copy_dynamic_src(dst=t, src=t)": "0.4 0.5 0.6",
    "nisa.dma_copy(dst=t, src=x, dst_rmw_op=nl.add)": "0.3 0.4 0.5 0.6",
    "nisa.dma_copy(dst=t, src=x, priority=1)": "2.27 0.2 0.3",
    "nisa.dma_copy(dst=t, src=x, dge_mode=2)": "0.3 0.4 0.5 0.6",
    "nisa.dma_copy(dst=t, src=x, dge_mode=nisa.dge_mode.hwdge)": "",
    "nl.ndarray((128, 4), nl.float32, buffer='sbuf')": "0.3 0.4 0.5 0.6",
    "nisa.nc_matmul(dst=t, stationary=t, moving=t, accumulate=True)": "2.27 0.2",
    "nisa.nc_matmul(dst=t, stationary=t, moving=t, is_moving_zero=1)": "0.2 0.3 0.4 "
    "0.5 0.6",
    "nisa.register_move(r, imm=3)": "0.3 0.4 0.5 0.6",
    "nl.divide(t, t)": "0.3 0.4 0.5 0.6",
    "nisa.tensor_tensor(dst=t, data1=t, data2=t, op=nl.divide)": "",
    "nl.matmul(t, t)": "2.27 0.2 0.3 0.4 0.5 0.6",
    "nl.power(t, 2)": "0.3 0.4 0.5 0.6",
    "nl.tile_size.sbuf_fmax_bytes": "2.27 0.2 0.3",
    "nl.float8_e8m0fnu": "2.27 0.2 0.3 0.4",
}


@pytest.mark.parametrize("line", LOST)
def test_what_is_lost_in_which_release(line: str) -> None:
    meetings = [*met_by_uses(used(line), "k.py")]
    lost = [m for m in meetings if m.difference.effect == "lost"]
    releases = [r for r in RELEASES if "nki" in r.styles]
    found = [r.name for r in releases if any(m.holds_in(r) for m in lost)]
    assert found == LOST[line].split()


def test_the_older_style_stays_as_the_last_beta_had_it() -> None:
    imports = "import neuronxcc.nki.isa as nisa\n"
    (mask,) = [
        m
        for m in met_by_uses(used("nisa.tensor_copy(t, mask=m)", imports=imports), "k")
        if "mask" in m.difference.what
    ]
    assert mask.name == "neuronxcc.nki.isa.tensor_copy"
    held = [r.name for r in RELEASES if mask.holds_in(r)]
    assert held == ["0.4", "0.5", "0.6"]


def test_baremetal_gives_zeros_in_the_newest_release() -> None:
    imports = "from neuronxcc.nki import baremetal\n"
    meetings = met_by_uses(used("baremetal(kernel)(x)", imports=imports), "k.py")
    zeros = [m for m in meetings if "zeros" in m.difference.what]
    assert zeros
    assert all(m.holds_in(NEWEST) and not m.holds_in(RELEASES[-2]) for m in zeros)


def test_text_that_is_no_python_is_named_with_its_line() -> None:
    with pytest.raises(nj.InvalidProgramError) as error:
        uses("import nki\ndef f(:\n", "k.py")
    assert error.value.location == "k.py:2"
