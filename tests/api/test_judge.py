"""KernelVerdicts on small kernels: right ones, wrong ones, and ones that cheat."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

import neuronjax as nj
from neuronjax.diagnostics.judging import running
from neuronjax.diagnostics.judging.verdict import from_json
from neuronjax.errors import InvalidProgramError
from tests.diagnostics.judging.kernels import REFERENCE, RIGHT

# What is changed in the kernel -> rule of the problem, or "" for a wrong result.
WRITE = "nisa.dma_copy(dst=out, src=a)"
ONES = "np.ones((128, 64), np.float32)"
NAMELESS = "@nki.jit\ndef other(x):\n    return x\n\n\n@nki.jit\ndef another"
WRONG = {
    "another operator": ("op=nl.add", "op=nl.subtract", ""),
    "an operand twice": ("data2=b", "data2=a", "input-ignored"),
    "half of it": (
        WRITE, "nisa.dma_copy(dst=out[0:64], src=a[0:64])", "result-in-part"
    ),
    "a constant": (
        WRITE, f"nisa.dma_copy(dst=out, src=nl.shared_constant({ONES}))",
        "input-ignored",
    ),
    "too many partitions": ("a = nl.ndarray(x.shape", "a = nl.ndarray((256, 64)",
                            "limit"),
    "the host's result": ("return out", f"return {ONES}", "limit"),
    "the host's arithmetic": ("return out", "return np.add(x, y)", "limit"),
    "nothing": ("return out", "return None", "input-ignored"),
    "a misspelled name": ("nisa.tensor_tensor", "nisa.tensor_tensr", "raised"),
    "no kernel": ("@nki.jit\ndef kernel", NAMELESS, "limit"),
}  # fmt: skip


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    path = tmp_path / "reference.py"
    path.write_text(REFERENCE)
    return path


def judged(folder: Path, text: str, **options: object) -> nj.KernelVerdict:
    path = folder / "candidate.py"
    path.write_text(text)
    return nj.judge(path, **options)  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_right_kernel_is_accepted(reference: Path, tmp_path: Path) -> None:
    verdict = judged(tmp_path, RIGHT, reference=reference, seeds=(0, 42))
    assert verdict.accepted
    assert verdict.correct
    assert [s.relative_l2 for s in verdict.seeds] == [0.0, 0.0]
    assert [s.seed for s in verdict.seeds[:2]] == [0, 42]
    assert verdict.times is not None
    assert verdict.times.low_ms is not None
    assert verdict.times.low_ms <= verdict.times.predicted_ms * 1.5
    assert verdict.times.hbm_read_bytes == 2 * 128 * 64 * 4
    assert sum(verdict.fidelity.values()) == 4
    assert verdict.seeds[0].worst is None
    again = from_json(verdict.to_json())
    assert again.to_json() == verdict.to_json()
    assert (
        "accepted: candidate.py, kernel on trn2, LNC 2, NKI kernel, correct"
        in verdict.as_text()
    )
    assert max(map(len, verdict.as_text().splitlines())) <= 80


@pytest.mark.slow_except("another operator", "a constant")
@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_refused_with_its_reason(
    name: str, reference: Path, tmp_path: Path
) -> None:
    before, after, rule = WRONG[name]
    assert before in RIGHT
    text = RIGHT.replace(before, after)
    verdict = judged(tmp_path, text, reference=reference, seeds=(0,))
    problems = (*verdict.limits, *verdict.hazards)
    assert not verdict.accepted
    if rule:
        assert rule in [p.rule for p in problems]
    else:
        assert not problems
        assert verdict.correct is False
        worst = verdict.seeds[0].worst
        assert worst is not None
        np.random.seed(0)
        x, y = (np.random.normal(size=(128, 64)).astype(np.float32) for _ in range(2))
        place = tuple(worst["index"])
        assert worst["expected"] == (x + y)[place]
        assert worst["actual"] == (x - y)[place]


MATMUL = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x, w):
    out = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.shared_hbm)
    total = nl.ndarray((128, 256), dtype=nl.float32, buffer=nl.psum)
    for k in range(TURNS):
        rows = nl.ds(k * 128, 128)
        nisa.nc_matmul(total, nl.load(x[rows]), nl.load(w[rows]))
    tile = nl.ndarray((128, 256), dtype=x.dtype, buffer=nl.sbuf)
    nisa.tensor_copy(tile, total)
    nl.store(out, tile)
    return out
"""

PRODUCT = """
import numpy as np


def get_inputs():
    draw = np.random.normal
    return [draw(size=(256, n)).astype(np.float32) for n in (128, 256)]


def forward(x, w):
    return x.T @ w
"""


@pytest.mark.slow_cases("2")
@pytest.mark.parametrize("turns", [1, 2])
def test_the_tolerance_of_a_matmul_is_derived(turns: int, tmp_path: Path) -> None:
    """Half of the sum is refused, all of it is accepted, by bounds of its own size."""
    reference = tmp_path / "reference.py"
    reference.write_text(PRODUCT)
    text = MATMUL.replace("TURNS", str(turns))
    verdict = judged(tmp_path, text, reference=reference, seeds=(7,))
    assert verdict.tolerance == "derived from the reference"
    assert verdict.accepted == (turns == 2)
    assert verdict.seeds[0].allowed < 1e-4  # three BF16 products are allowed
    assert (verdict.seeds[0].why == "") == verdict.accepted


UNDERIVED = {
    "a number of Python": (
        "return x + y * np.sign(float(y[0, 0])) ** 2",
        "converted to a Python number",
    ),
    "turns that an error decides": (
        """z = x + y
    left = np.max(np.abs(3 * z - z - 2 * z))
    while left > 1e-7:
        left = 0 * left
    return z""",
        "decides a branch",
    ),
}


@pytest.mark.slow_cases("a number of Python")
@pytest.mark.parametrize("name", UNDERIVED)
def test_where_no_tolerance_is_derived_the_verdict_says_so(
    reference: Path, tmp_path: Path, name: str
) -> None:
    result, why = UNDERIVED[name]
    reference.write_text(REFERENCE.replace("return x + y", result))
    verdict = judged(tmp_path, RIGHT, reference=reference, seeds=(0,))
    assert "no bound is derived" in verdict.tolerance
    assert why in verdict.tolerance
    assert verdict.seeds[0].allowed == 2e-5
    assert verdict.accepted


#: Errors grow fourfold with every turn: no bound of a result can be kept small.
CHAOS = """
import numpy as np


def get_inputs():
    return [np.random.uniform(0.1, 0.9, size=(128, 64)).astype(np.float32)]


def forward(x):
    for _ in range(40):
        x = np.float32(3.9) * x * (np.float32(1) - x)
    return x
"""
CHAOTIC = """
import nki
import nki.isa as nisa
import nki.language as nl


@nki.jit
def kernel(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    a = nl.load(x)
    for _ in range(TURNS):
        a = nl.multiply(nl.multiply(a, 3.9), nl.subtract(1.0, a))
    nl.store(out, a)
    return out
"""


@pytest.mark.parametrize("turns", [0, 40])
def test_bounds_that_catch_nothing_decide_nothing(turns: int, tmp_path: Path) -> None:
    """A kernel that copies its input is not accepted, nor is a right one refused."""
    reference = tmp_path / "chaos.py"
    reference.write_text(CHAOS)
    text = CHAOTIC.replace("TURNS", str(turns))
    verdict = judged(tmp_path, text, reference=reference, seeds=(0, 1))
    assert verdict.seeds[0].allowed > 0.1
    assert (verdict.word, verdict.accepted, verdict.correct) == (
        "undecided",
        False,
        None,
    )
    assert f"{max(s.allowed for s in verdict.seeds):.3g} times" in verdict.undecided
    assert "tolerance=0.02" in verdict.undecided
    assert verdict.as_text().startswith("undecided: candidate.py, kernel")
    assert from_json(verdict.to_json()) == verdict
    # The remedies: a tolerance of the user's own decides as ever, and so do few turns.
    assert "fewer iterations" in verdict.undecided
    reference.write_text(CHAOS.replace("40", "6"))
    few = CHAOTIC.replace("TURNS", str(min(turns, 6)))
    assert judged(tmp_path, few, reference=reference, seeds=(0, 1)).word == (
        "accepted" if turns else "refused"
    )
    reference.write_text(CHAOS)
    given = judged(tmp_path, text, reference=reference, seeds=(0, 1), tolerance=0.02)
    assert given.word == ("accepted" if turns else "refused")


#: A step of an optimizer is small beside the weight.
STEP = REFERENCE.replace("return x + y", "return x + np.float32(1e-4) * y")


@pytest.mark.parametrize("scale", ["1e-4", "0.0"])
def test_a_tolerance_that_lets_a_copy_pass_decides_nothing(
    scale: str, tmp_path: Path
) -> None:
    reference = tmp_path / "step.py"
    reference.write_text(STEP)
    add = "nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)"
    scaled = f"nisa.tensor_scalar(dst=b, data=b, op0=nl.multiply, operand0={scale})"
    text = RIGHT.replace(add, f"{scaled}; {add}")
    options = dict(reference=reference, seeds=(0,))
    verdict = judged(tmp_path, text, **options, tolerance=0.02)
    assert (verdict.word, verdict.correct) == ("undecided", None)
    passed = [m.what for m in verdict.mutants if m.does_nothing and not m.caught]
    assert passed == ["the result is input 0"]
    assert "does nothing would have passed: the result is input 0" in verdict.undecided
    # The remedy, and the bounds that the reference gives.
    [least] = re.findall(r"tolerance=(\S+)", verdict.undecided)
    for tolerance in (float(least), None):
        again = judged(tmp_path, text, **options, tolerance=tolerance)
        assert again.word == ("refused" if scale == "0.0" else "accepted")


@pytest.mark.slow
def test_what_wide_bounds_do_catch_is_wrong(tmp_path: Path) -> None:
    reference = tmp_path / "chaos.py"
    reference.write_text(CHAOS)
    text = CHAOTIC.replace("TURNS", "0").replace("3.9", "3.9e30")
    huge = text.replace("nl.load(x)", "nl.multiply(nl.load(x), 1e30)")
    verdict = judged(tmp_path, huge, reference=reference, seeds=(0,))
    assert (verdict.word, verdict.correct, verdict.undecided) == ("refused", False, "")


@pytest.mark.slow
def test_a_limit_is_refused_whatever_the_bounds_are(tmp_path: Path) -> None:
    reference = tmp_path / "chaos.py"
    reference.write_text(CHAOS)
    half = CHAOTIC.replace("TURNS", "0").replace(
        "store(out, a)", "store(out[:9], a[:9])"
    )
    verdict = judged(tmp_path, half, reference=reference, seeds=(0,))
    assert (verdict.word, verdict.undecided) == ("refused", "")


@pytest.mark.slow
def test_without_a_reference_nothing_is_compared(tmp_path: Path) -> None:
    verdict = judged(tmp_path, RIGHT + REFERENCE)
    assert verdict.accepted
    assert verdict.correct is None
    assert verdict.seeds == ()


@pytest.mark.slow
def test_the_baseline_gives_the_speedup(reference: Path, tmp_path: Path) -> None:
    baseline = tmp_path / "baseline.py"
    add = "    nisa.tensor_tensor(dst=a, data1=a, data2=b, op=nl.add)\n"
    negate = "    nisa.tensor_tensor(dst=a, data1=b, data2=a, op=nl.subtract)\n"
    baseline.write_text(RIGHT.replace(add, negate * 4 + add))
    verdict = judged(
        tmp_path, RIGHT, reference=reference, baseline=baseline, seeds=(0,)
    )
    assert verdict.times is not None
    assert verdict.times.speedup is not None
    assert verdict.times.speedup > 1.0


@pytest.mark.slow
def test_a_folder_is_ordered_best_first(reference: Path, tmp_path: Path) -> None:
    folder = tmp_path / "candidates"
    folder.mkdir()
    (folder / "wrong.py").write_text(RIGHT.replace("op=nl.add", "op=nl.multiply"))
    (folder / "right.py").write_text(RIGHT)
    found = nj.judge_all(folder, reference=reference, seeds=(3,))
    assert [Path(v.candidate).stem for v in found] == ["right", "wrong"]
    assert [v.accepted for v in found] == [True, False]
    assert len(json.loads(found.to_json())) == 2
    assert "2 kernels" in str(found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"reference": "nowhere.py"}, "no file nowhere.py"),
        ({"target": "trn9"}, "trn9"),
        ({"seeds": ()}, "no seeds"),
    ],
)
def test_what_is_wrong_with_the_call_is_an_error(
    options: dict, said: str, tmp_path: Path
) -> None:
    with pytest.raises(nj.InvalidProgramError, match=said):
        judged(tmp_path, RIGHT, **options)


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("def forward", "def forward(:\n#", r"SyntaxError.*"),
        ("return x + y", "return np.sqqrt(x) + y", r"AttributeError.*sqqrt.*"),
        ("forward(x, y)", "forward(x)", r"TypeError.*positional argument.*"),
        ("return x + y", "raise KeyError('x')", "KeyError"),
    ],
)
def test_a_reference_that_raises_is_no_fault_of_the_kernel(
    old: str, new: str, what: str, reference: Path, tmp_path: Path
) -> None:
    assert old in REFERENCE
    reference.write_text(REFERENCE.replace(old, new))
    with pytest.raises(InvalidProgramError, match=rf"(?s)reference.*raises {what}"):
        judged(tmp_path, RIGHT, reference=reference, seeds=(0,))


def test_the_line_of_a_reference_that_raises_is_named(
    reference: Path, tmp_path: Path
) -> None:
    text = REFERENCE.replace("return x + y", "return 1 / 0")
    line = text[: text.index("1 / 0")].count("\n") + 1
    reference.write_text(text)
    with pytest.raises(InvalidProgramError) as caught:
        judged(tmp_path, RIGHT, reference=reference, seeds=(0,))
    assert caught.value.location == f"{reference}:{line}"


def test_a_reference_that_imports_what_is_broken_is_named_with_its_import(
    reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "broken_helper.py").write_text("\n\n\n\ndef helper(:\n")
    reference.write_text(f"import broken_helper\n{REFERENCE}")
    with pytest.raises(InvalidProgramError) as caught:
        judged(tmp_path, RIGHT, reference=reference, seeds=(0,))
    assert caught.value.location == f"{reference}:1"


def test_the_line_of_a_candidate_that_is_no_python_is_named(
    reference: Path, tmp_path: Path
) -> None:
    verdict = judged(tmp_path, "\n\nx = (\n", reference=reference, seeds=(0,))
    assert not verdict.accepted
    assert verdict.limits[0].location.endswith(":3")


def test_the_worst_element_is_the_one_that_the_reason_tells_of(tmp_path: Path) -> None:
    """Not the largest difference, but the largest in bounds of its own element."""
    text = "np.random.normal(size=(128, 64)).astype(np.float32)"
    assert text in REFERENCE
    large = "np.geomspace(1, 1e6, 8192).reshape(128, 64).astype(np.float32)"
    reference = tmp_path / "reference.py"
    reference.write_text(REFERENCE.replace(text, large))
    off = RIGHT.replace(WRITE, f"nisa.memset(dst=a[0:1, 0:1], value=9.0)\n    {WRITE}")
    verdict = judged(tmp_path, off, reference=reference, seeds=(0,))
    worst = verdict.seeds[0].worst
    assert worst is not None
    assert worst["index"] == [0, 0]
    assert worst["actual"] == 9.0


TAIL = """
import numpy as np
import neuronxcc.nki as nki
import neuronxcc.nki.isa as nisa
import neuronxcc.nki.language as nl


@nki.jit
def kernel(x, w):
    out = nl.ndarray((128, 600), dtype=x.dtype, buffer=nl.shared_hbm)
    held = nl.load(x, dtype=nl.bfloat16)
    i_p, i_f = nl.arange(128)[:, None], nl.arange(512)[None, :]
    for c in nl.affine_range(2):
        there = 512 * c + i_f < 600
        moved = nl.ndarray((nl.par_dim(128), 512), dtype=nl.bfloat16, buffer=nl.sbuf)
        part = nl.load(w[i_p, 512 * c + i_f], mask=there)
        moved[i_p, i_f] = nl.copy(part[i_p, i_f], dtype=nl.bfloat16)
        total = nl.zeros((nl.par_dim(128), 512), dtype=np.float32, buffer=nl.psum)
        total[i_p, i_f] += nisa.nc_matmul(held, moved[i_p, i_f])
        nl.store(out[i_p, 512 * c + i_f], value=total[i_p, i_f], mask={mask})
    return out
"""
PRODUCT_OF_TAIL = """
import numpy as np


def get_inputs():
    sizes = (128, 128), (128, 600)
    return [np.random.normal(size=size).astype(np.float32) for size in sizes]


def forward(x, w):
    return x.T @ w
"""


@pytest.mark.slow
def test_columns_that_nobody_stores_may_be_unwritten(tmp_path: Path) -> None:
    reference = tmp_path / "reference.py"
    reference.write_text(PRODUCT_OF_TAIL)
    verdict = judged(
        tmp_path,
        TAIL.replace("{mask}", "there"),
        reference=reference,
        seeds=(0,),
        tolerance=0.01,
    )
    assert verdict.accepted, verdict
    assert [p.rule for p in verdict.advice] == ["maybe-unwritten"]
    assert "do not depend on these elements" in verdict.advice[0].message


@pytest.mark.slow
def test_a_second_run_in_the_same_memory_proves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slots that are used again hold the same leftovers in both runs."""
    monkeypatch.setattr(running, "shares_memory", lambda program: True)
    reference = tmp_path / "reference.py"
    reference.write_text(PRODUCT_OF_TAIL)
    kernel = TAIL.replace("{mask}", "there")
    verdict = judged(tmp_path, kernel, reference=reference, seeds=(0,), tolerance=0.01)
    assert not verdict.accepted
    assert [p.rule for p in verdict.hazards] == ["maybe-unwritten"]
