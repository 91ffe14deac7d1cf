"""What the silicon kit finds out about chips whose choices are known."""

from __future__ import annotations

import ast
import functools
import json
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import neuronjax.nki  # noqa: F401  what `import nki` is to mean
from docs.made.exactness import CLAIMS
from docs.made.silicon_kit import kernel_text
from docs.made.silicon_kit.kit import kit_files as made_files
from docs.made.silicon_kit.probes import PROBES
from neuronjax import cli
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.engines import fold, tensor
from neuronjax.execution.tiles import accumulators
from neuronjax.testing import check_silicon, write_silicon_kit
from neuronjax.testing.silicon import inputs, probes
from neuronjax.testing.silicon.questions_rounding import casts, others, subnormals
from neuronjax.testing.silicon.questions_sums import sums, tensor_sums
from neuronjax.testing.silicon.questions_values import values
from tests.testing.silicon import fake_chip
from tests.testing.silicon.fake_chip import Choices

# A chip that agrees with neuronjax, and chips that do in nothing.
OURS = Choices()
FOREIGN = {
    "first": Choices(
        vector_sum="left fold",
        scalar_sum="tiles of 64",
        partition_sum="tree of neighbours",
        passes="hh hl lh",
        cell="all one by one",
        statistics="running mean",
        fused=True,
        divide="times the reciprocal",
        rounding="toward zero",
        overflow="the largest",
        narrow_subnormals="signed zeros",
        integer_overflow="lower bits",
        integer_nan="smallest",
        subnormals="kept",
        dma_subnormals="kept",
        nan="the number",
        zeros="the first",
        payload="the second operand's",
        vector_integers="exact, lower 32 bits",
        gpsimd_integers="by way of FP32",
        transpose="by way of FP32",
        scales="ocp_floor",
        random="in proportion, 8 random bits",
        ranks="ring",
    ),
    "second": Choices(
        vector_sum="tiles of 128",
        scalar_sum="4 lanes",
        partition_sum="tree of halves",
        split="11 bits rounded",
        fp32="row by row",
        cell="cell last to first, then rows",
        statistics="sums of x and x * x",
        divide="cut off",
        reciprocal="cut off",
        rounding="nearest, half away",
        overflow="NaN",
        narrow_subnormals="zeros",
        integer_overflow="smallest",
        integer_nan="largest",
        subnormals="read as zeros, written as is",
        dma_subnormals="zeros",
        nan="the first",
        zeros="the second",
        payload="0x7fffffff",
        scales="ceil",
        random="up or down equally often",
        ranks="rdh",
        function="transcendentals=host",
    ),
    "third": Choices(
        vector_sum="tree of halves",
        scalar_sum="right fold",
        partition_sum="8 lanes",
        passes="ll lh hl hh",
        through_psum=True,
        cell="a sum for each slot",
        rounding="to odd",
        subnormals="read as is, written as zeros",
        nan="the second",
        payload="0x7fc00000",
        scales="rceil",
        random="not at all",
        ranks="single_step",
    ),
    "fourth": Choices(
        vector_sum="float64, rounded once",
        scalar_sum="left fold toward zero",
        partition_sum="tiles of 64",
        tensor_sum="tree of neighbours",
        split="8 bits rounded",
        passes="hh hl lh",
        cell="slot after slot",
        rounding="down",
        subnormals="zeros",
        payload="0xffc00000",
        ranks="mesh",
    ),
    "fifth": Choices(
        vector_sum="right fold",
        tensor_sum="16 lanes",
        psum="right fold",
        cell="cell as a tree, then rows",
    ),
    "sixth": Choices(tensor_sum="tiles of 32", psum="left fold toward zero"),
    "seventh": Choices(
        tensor_sum="left fold toward zero", psum="float64, rounded once"
    ),
}


THROUGH = "one left fold through PSUM"


def truth(chip: Choices) -> dict[str, str | None]:
    """The alternative that every question should find; None where it has none such,
    as what the chip does differs in two places at once."""
    passes = f"{chip.split}: {chip.passes}"
    product = {  # whose passes are added in PSUM
        "left fold": passes,
        "right fold": f"{chip.split}: ll lh hl hh",
        "float64, rounded once": "one product, rounded",
    }.get(chip.psum)
    plain = chip.psum == "left fold"
    order = f"{chip.tensor_sum}, then PSUM" if plain else None
    if chip.fp32 == "by 32 rows":  # whatever order operands of 16 bits have
        rows = chip.psum in ("left fold", "right fold")
    else:
        rows = plain and chip.tensor_sum == "left fold"
    rows = rows and not chip.through_psum
    pairs = chip.cell  # of two there is no other order
    if pairs.startswith("cell "):
        pairs = "cell first, then rows"
    found = {
        "VectorE: sums": chip.vector_sum,
        "ScalarE: sums": chip.scalar_sum,
        "GpSimd: sums over partitions": chip.partition_sum,
        "VectorE: running sums": _fused(chip, "product rounded, then sum"),
        "VectorE: bn_stats": chip.statistics,
        "TensorE: sums of a tile": chip.tensor_sum,
        "PSUM: sums of tiles": chip.psum,
        "TensorE: sums over tiles": THROUGH if chip.through_psum else order,
        "TensorE: FP32 products": product,
        "TensorE: sums of FP32 products": f"{product}, {chip.fp32}" if rows else None,
        "TensorE: sums of four MX products": chip.cell,
        "TensorE: sums of two FP8 products": pairs,
        "VectorE: a * b + c": _fused(chip, "rounded twice"),
        "ScalarE: a * b + c": _fused(chip, "rounded twice"),
        "VectorE: reciprocal": chip.reciprocal,
        "VectorE: division": chip.divide,
        "VectorE: maximum with NaN": chip.nan,
        "VectorE: minimum of zeros": chip.zeros,
        "VectorE: bits of a NaN sum": chip.payload,
        "VectorE: int32 add": chip.vector_integers,
        "GpSimd: int32 multiply": chip.gpsimd_integers,
        "TensorE: transposition": chip.transpose,
        "VectorE: transposition": chip.transpose,
        "VectorE: scales of quantize_mx": chip.scales,
        "ScalarE: stochastic rounding": chip.random,
        "DMA: subnormals in casts": chip.dma_subnormals,
        "TensorE: subnormals": chip.subnormals.removeprefix("signed "),
        "VectorE: to int16, overflow": chip.integer_overflow,
        "ScalarE: to int32, NaN": chip.integer_nan,
    }
    kept = chip.narrow_subnormals
    if kept == "kept":
        kept = f"kept, {chip.rounding}"
    for engine in ("VectorE", "ScalarE", "GpSimd", "DMA"):
        found |= {
            f"{engine}: to bfloat16, rounding": chip.rounding,
            f"{engine}: to float8_e4m3, overflow": chip.overflow,
            f"{engine}: to float8_e4m3, subnormals": kept,
        }
        if engine != "DMA":
            found[f"{engine}: to int32, rounding"] = chip.rounding
            found[f"{engine}: subnormals"] = chip.subnormals
    if chip.ranks != OURS.ranks:
        name = chip.ranks.replace("single_step", "single_step_mesh")
        found |= {"all-reduce, bfloat16": name, "all-reduce, float32": name}
    return found | {f"ScalarE: {name}": chip.function for name in functions_of(chip)}


def functions_of(chip: Choices) -> tuple[str, ...]:
    """Those that are run: each takes seconds."""
    return ("exp", "tanh", "rsqrt") if "host" in chip.function else ("exp",)


def _fused(chip: Choices, otherwise: str) -> str:
    return "multiply-add" if chip.fused else otherwise


@pytest.fixture(scope="module")
def kit(tmp_path_factory):
    folder = tmp_path_factory.mktemp("silicon") / "kit"
    write_silicon_kit(folder)
    return folder


def others_than(*functions: str) -> str:
    """What --only takes for all but these of ScalarE's functions."""
    names = (n for n in (*PROBES, *probes.REDUCTIONS) if "function" not in n)
    return ",".join([*names, *(f"function_{f}" for f in functions)])


@pytest.mark.slow
@pytest.mark.parametrize("name", FOREIGN)
def test_every_choice_of_a_foreign_chip_is_found(kit, tmp_path, name):
    """And no other alternative fits."""
    chip = FOREIGN[name]
    only = others_than(*functions_of(chip))
    assert fake_chip.run(kit, tmp_path, chip, "trn3", only) == 0
    report = check_silicon(tmp_path)
    assert all("function" in name for name in report.left_out)
    fits = {f.question: f.fits for f in report.findings}
    expected = {q: (a,) if a else () for q, a in truth(chip).items()}
    assert {q: fits[q] for q in expected} == expected


def test_foreign_chips_differ_in_many_alternatives():
    pairs = {pair for chip in FOREIGN.values() for pair in truth(chip).items()}
    assert len({pair for pair in pairs if pair[1]} - truth(OURS).items()) >= 100


@pytest.mark.slow
def test_a_chip_like_ours_is_confirmed(kit, tmp_path):
    fake_chip.run(kit, tmp_path, OURS, "trn2", others_than("copy"))
    report = check_silicon(tmp_path)
    undecided = {f.question for f in report.findings if f.verdict == "undecided"}
    silent = {f"ScalarE: {f}" for f in probes.FUNCTIONS if f != "copy"}
    # Nothing is promised of a NaN's payload.
    assert undecided == {"VectorE: bits of a NaN sum", *silent}
    assert report.contradicted == ()
    [line] = [
        line for line in str(report).splitlines() if "all-reduce, float32" in line
    ]
    assert "confirmed" in line
    assert "none" not in line


# -- The emulator as the chip ----------------------------------------------------------


@pytest.fixture
def emulator(kit, tmp_path, monkeypatch):
    """Some probes on the emulator, in this process; the report."""

    def run_kit(only):
        for name in ("nki", "nki.isa", "nki.language"):
            monkeypatch.setitem(sys.modules, name, sys.modules["neuronjax." + name])
        for name in ("kernels", "inputs"):
            monkeypatch.delitem(sys.modules, name, raising=False)
        monkeypatch.setattr(sys, "path", [*sys.path])
        monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "trn3")
        arguments = ["--chip", "trn3", "--results", str(tmp_path), "--only", only]
        assert fake_chip.load(kit).main(arguments) == 0
        for name in ("kernels", "inputs"):
            monkeypatch.delitem(sys.modules, name)
        return check_silicon(tmp_path)

    return run_kit


@pytest.mark.slow
def test_the_emulator_confirms_itself(emulator):
    """A few of its kernels; all of them are in the next test."""
    report = emulator("cast_vector_float8_e4m3,subnormals_vector,special_max,mx_quant")
    found = [f.verdict for f in report.findings if f.elements]
    assert found == ["confirmed"] * 7


@pytest.mark.slow
def test_a_changed_emulator_is_found_out(emulator, monkeypatch):
    """Tiles of 128 in VectorE, FP32 operands without the fourth pass."""
    passes = tensor.array_passes
    tiled = functools.partial(fold.fold_axes, tile=128)
    monkeypatch.setattr(accumulators, "fold_axes", tiled)
    monkeypatch.setattr(tensor, "by_kernel", lambda psum: False)
    monkeypatch.setattr(tensor, "array_passes", lambda *given: passes(*given)[:3])
    report = emulator("vector_sum_1000,fp32_product")
    found = {f.question: (f.verdict, f.fits) for f in report.findings if f.elements}
    assert found == {
        "VectorE: sums": ("contradicted", ("tiles of 128",)),
        "TensorE: FP32 products": ("contradicted", ("12 bits cut: hh hl lh",)),
    }


@pytest.mark.slow
@pytest.mark.parametrize("style", [["--chip", "trn3"], ["--chip", "trn1", "--older"]])
def test_all_of_the_kit_runs_unmodified(kit, tmp_path, style):
    """In both calling styles, with the runtime's stochastic rounding."""
    command = [sys.executable, "-m", "neuronjax.nki", str(kit / "run.py"), *style]
    subprocess.run([*command, "--results", str(tmp_path)], check=True)
    report = check_silicon(tmp_path)
    assert report.contradicted == ()
    undecided = {f.question for f in report.findings if f.verdict == "undecided"}
    absent = {"all-reduce, float32", "all-reduce, bfloat16"}  # no devices of JAX
    if "--older" in style:
        absent.add("ScalarE: gelu_apprx_sigmoid_dx")  # not of the older style
    assert undecided == {"VectorE: bits of a NaN sum", *absent}
    assert "VectorE adds 128 numbers in this order: 0..127" in report.notes


# -- Folders ---------------------------------------------------------------------------


@pytest.fixture(scope="module")
def complete(kit, tmp_path_factory):
    """Results of a few probes."""
    folder = tmp_path_factory.mktemp("results")
    fake_chip.run(kit, folder, OURS, "trn2", "vector_sum_1,special_,divide")
    return folder


@pytest.fixture
def folder(complete, tmp_path):
    return shutil.copytree(complete, tmp_path / "results")


def edit(folder, **changes):
    path = folder / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_half_a_folder_decides_what_it_can(folder):
    (folder / "divide.npz").unlink()
    data = (folder / "special_maximum.npz").read_bytes()
    (folder / "special_maximum.npz").write_bytes(data[:-100])
    report = check_silicon(folder)
    assert report.left_out["divide"] == "divide.npz is missing"
    assert "cut short" in report.left_out["special_maximum"]
    assert report.left_out["scan"] == "was not run"
    verdicts = {f.question: f.verdict for f in report.findings}
    assert verdicts["VectorE: division"] == "undecided"
    assert verdicts["VectorE: minimum with NaN"] == "confirmed"
    # 127, 128 and 1,000 numbers are enough to tell the orders apart.
    assert verdicts["VectorE: sums"] == "confirmed"


def test_inputs_of_another_generator_are_left_out(folder):
    probes = json.loads((folder / "manifest.json").read_text())["probes"]
    probes["divide"]["inputs"]["x"] = "0" * 64
    edit(folder, probes=probes)
    assert "inputs" in check_silicon(folder).left_out["divide"]


def test_a_refused_kernel_says_why(kit, folder, monkeypatch):
    def refuses(*arguments, **options):
        raise SystemExit("the compiler ended")

    monkeypatch.setattr(fake_chip.Isa, "reciprocal", refuses)
    status = fake_chip.run(kit, folder, OURS, "trn2", "reciprocal,divide")
    assert status == 0
    report = check_silicon(folder)
    assert report.left_out["reciprocal"] == "refused: SystemExit: the compiler ended"


def test_the_time_limit_is_kept(kit, tmp_path, monkeypatch):
    runner = fake_chip.load(kit)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv("NEURON_PLATFORM_TARGET_OVERRIDE", "")
    arguments = ["--chip", "trn2", "--results", str(tmp_path), "--limit", "0"]
    assert runner.main([*arguments, "--only", "divide"]) == 1
    with pytest.raises(InvalidProgramError, match="time limit"):
        check_silicon(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"format": "another"}, "not written by a silicon kit"),
        ({"kit": "0123456789abcdef"}, "silicon-kit"),
        ({"chip": "h100"}, "one of: trn1, trn2, trn3"),
        ({"probes": []}, "damaged: its probes are no mapping"),
        ({"probes": {}}, "no usable result"),
    ],
)
def test_what_is_no_result_is_refused(folder, changes, message):
    edit(folder, **changes)
    with pytest.raises(InvalidProgramError, match=message) as error:
        check_silicon(folder)
    assert error.value.remedy


def test_a_folder_without_a_whole_manifest_is_refused(folder):
    path = folder / "manifest.json"
    path.write_bytes(path.read_bytes()[:50])
    with pytest.raises(InvalidProgramError, match="damaged"):
        check_silicon(folder)
    path.unlink()
    with pytest.raises(InvalidProgramError, match="there is no"):
        check_silicon(folder)


# -- The kit and the commands ----------------------------------------------------------


def test_the_kit_is_the_same_bytes_every_time(kit):
    again = made_files()
    assert {p.name: p.read_bytes() for p in kit.iterdir() if p.is_file()} == again


def test_the_kit_needs_numpy_and_the_vendor_alone(kit):
    own = {"inputs", "kernels", "kernels_older", "ranks"}
    vendor = {"numpy", "nki", "neuronxcc", "jax"}
    found = set()
    for path in kit.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            if isinstance(node, ast.ImportFrom):
                found.add(str(node.module).split(".")[0])
    assert found - sys.stdlib_module_names <= own | vendor


@pytest.mark.slow
def test_every_probe_is_a_kernel_of_both_styles_and_has_a_question():
    for text in (kernel_text.newer(), kernel_text.older()):
        functions = [n.name for n in ast.parse(text).body if hasattr(n, "name")]
        assert functions == list(PROBES)
    families = (sums, tensor_sums, casts, subnormals, others, values)
    asked = [question for family in families for question in family()]
    orders = {"vector_order", "tensor_order"}  # shown as notes
    named = {probe for question in asked for probe in question.probes}
    assert named | orders == {*PROBES, *probes.REDUCTIONS}
    assert {q.claim for q in asked} <= {claim.subject for claim in CLAIMS}


def test_inputs_are_what_they_were():
    """Another stream is another kit: results of the old one are refused."""
    found = inputs.make("scan", "x", PROBES["scan"].inputs["x"][1])
    assert found[0, :3].tolist() == [1050304774, 3219976734, 3203410948]
    assert inputs.words(1, 3).tolist() == [1175010553, 3892281679, 2582492138]


@pytest.fixture
def run(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    return lambda *arguments: CliRunner().invoke(cli.app, arguments)


def test_the_commands(run, kit, folder, tmp_path):
    made = run("silicon-kit", str(tmp_path / "again"))
    assert made.exit_code == 0
    assert (tmp_path / "again/run.py").read_bytes() == (kit / "run.py").read_bytes()
    found = run("silicon-check", str(folder))
    assert found.exit_code == 0
    assert "VectorE: division" in found.stdout
    assert max(map(len, found.stdout.splitlines())) <= 80
    data = json.loads(run("silicon-check", str(folder), "--json").stdout)
    assert data["claims"]["double-row FP8"] == "undecided"
    assert data["claims"]["MX matmul"] == "not asked"
    assert run("silicon-check", str(tmp_path)).exit_code == 2


def test_a_contradiction_is_a_status(run, kit, tmp_path):
    chip = Choices(divide="cut off")
    fake_chip.run(kit, tmp_path, chip, "trn2", "divide,scan")
    found = run("silicon-check", str(tmp_path))
    assert found.exit_code == 1
    text = " ".join(found.stdout.split())
    assert "VectorE: division contradicted cut off" in text
    assert "neuronjax says correctly rounded" in text
    data = json.loads(run("silicon-check", str(tmp_path), "--json").stdout)
    assert data["claims"]["elementary functions"] == "contradicted"


def test_an_unknown_order_is_shown(kit, tmp_path):
    """Where no alternative fits, the sums of pairs still say what is added when."""
    fake_chip.run(kit, tmp_path, FOREIGN["first"], "trn2", "vector_order,divide")
    notes = check_silicon(tmp_path).notes
    assert "VectorE adds 128 numbers in this order: 0..127" in notes
    chip = Choices(vector_sum="2 lanes")
    fake_chip.run(kit, tmp_path, chip, "trn2", "vector_order,divide")
    [note] = [n for n in check_silicon(tmp_path).notes if n.startswith("VectorE")]
    assert note.startswith("VectorE adds 128 numbers in this order: (0 + 2 + 4")
