"""The vendor's interface as public harnesses call it, in small harnesses of our own."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.nki import legacy, neuron_profile, typing as nt
from neuronjax.nki.children import STAND_INS, for_children
from neuronjax.nki.legacy import isa as nisa, language as nl
from neuronjax.nki.legacy.benchmarking import summary

#: What AccelOpt reads of a summary (prompts/profile_list.json, less its own "latency").
READ = """hbm_read_bytes hbm_write_bytes psum_read_bytes psum_write_bytes
sbuf_read_bytes sbuf_write_bytes spill_reload_bytes spill_save_bytes hardware_flops
transpose_flops peak_flops_bandwidth_ratio mm_arithmetic_intensity hfu_estimated_percent
scalar_engine_active_time_percent vector_engine_active_time_percent
gpsimd_engine_active_time_percent""".split()


@legacy.jit
def product(a, b):
    out = nl.ndarray((128, 512), dtype=a.dtype, buffer=nl.shared_hbm)
    turned = nl.copy(nisa.nc_transpose(nl.load(a)))
    nl.store(out, nl.copy(nl.matmul(turned, nl.load(b), transpose_x=True)))
    return out


def operands():
    rng = np.random.default_rng(0)
    shapes = ((128, 128), (128, 512))
    return [rng.standard_normal(shape, np.float32) for shape in shapes]


@pytest.mark.slow
def test_the_summary_has_the_older_names():
    timed = legacy.baremetal(product)
    timed(*operands())
    found, now = timed.summary, timed.profile(*operands()).metrics
    assert set(READ) < set(found)
    assert found["predicted"] is True
    # FP32 is four passes of the array.
    rows = 2 * 128 * 128
    assert found["hardware_flops"] - found["transpose_flops"] == 4 * rows * 512
    assert found["transpose_flops"] == now["adjusted_transpose_flops"] > 0
    moved = 4 * (128 * 128 + 2 * 128 * 512)
    assert found["mm_arithmetic_intensity"] == 4 * rows * 512 / moved
    assert {k: found[k] for k in ("total_time", "hbm_read_bytes")} == {
        k: now[k] for k in ("total_time", "hbm_read_bytes")
    }


def test_a_summary_without_traffic_divides_by_nothing():
    names = ("hbm_read_bytes", "hbm_write_bytes")
    names += ("adjusted_hardware_flops", "adjusted_transpose_flops")
    assert summary(dict.fromkeys(names, 0.0))["mm_arithmetic_intensity"] == 0.0


def test_types_stand_for_arrays_where_only_the_time_counts():
    timed = legacy.benchmark(warmup=2, iters=10)(product)
    types = nt.tensor[[128, 128], nl.bfloat16], nt.tensor[[128, 512], nl.bfloat16]
    assert timed(*types) is None
    halved = timed.benchmark_result
    assert halved.predicted
    assert halved.nc_latency.predicted
    timed(*operands())
    whole = timed.benchmark_result.nc_latency.get_latency_percentile(50)
    assert 0 < halved.nc_latency.get_latency_percentile(99) < whole
    with pytest.raises(InvalidProgramError, match="has no data type"):
        timed(nt.tensor[128, 128], types[1])


def test_a_profile_fills_its_working_directory(tmp_path):
    legacy.profile(working_directory=str(tmp_path), profile_nth=2)(product)(*operands())
    held = {path.name: json.loads(path.read_text()) for path in tmp_path.iterdir()}
    assert set(held) == {"file.neff", "profile.ntff", "profile.json"}
    assert all(content["predicted"] is True for content in held.values())
    assert len({json.dumps(content["summary"]) for content in held.values()}) == 1


def test_an_illegal_kernel_leaves_no_file(tmp_path):
    def beyond(a):
        return nl.load(a[nl.arange(129)[:, None], nl.arange(8)[None, :]])

    bare = legacy.baremetal(beyond, save_neff_name=str(tmp_path / "k.neff"))
    with pytest.raises(InvalidProgramError):
        bare(np.zeros((256, 8), np.float32))
    assert not list(tmp_path.iterdir())


def shown(capsys, *arguments) -> tuple[int, str, str]:
    """Status, output and errors of `neuron-profile`."""
    status = neuron_profile.main([str(a) for a in arguments])
    said = capsys.readouterr()
    return status, said.out, said.err


def test_neuron_profile_captures_and_views(tmp_path, capsys):
    neff, ntff = tmp_path / "k.neff", tmp_path / "k.ntff"
    legacy.benchmark(product, save_neff_name="k.neff", artifacts_dir=tmp_path)(
        *operands()
    )
    assert shown(capsys, "capture", "-n", neff, "-s", ntff) == (0, "", "")
    session = tmp_path / "p.ntff"
    each = ("--num-exec", 20, "--profile-nth-exec", 10)
    assert shown(capsys, "capture", "-n", neff, "-s", session, *each)[0] == 0
    names = {path.name for path in tmp_path.iterdir()} - {"k.neff", "k.ntff"}
    assert names == {"p_exec_10.ntff", "p_exec_20.ntff"}
    view = ("view", "-n", neff, "-s", tmp_path / "p_exec_20.ntff")
    status, printed, _ = shown(capsys, *view, "--output-format=summary-json")
    (line,) = printed.splitlines()
    (found,) = json.loads(line).values()
    assert (status, found["predicted"]) == (0, True)
    assert found["total_time"] > 0
    status, printed, errors = shown(
        capsys, *view, "--output-format", "summary-text", "--other"
    )
    assert "\ntranspose_flops" in printed
    assert "--other" in errors


def test_neuron_profile_refuses_what_is_not_ours(tmp_path, capsys):
    view = ("view", "--output-format", "summary-json", "-n")
    for name, content in (("a.neff", b"\x7fELF\xff"), ("b.neff", b"[]")):
        (tmp_path / name).write_bytes(content)
        status, printed, errors = shown(capsys, *view, tmp_path / name)
        assert (status, printed) == (1, "")
        assert "was not written by neuronjax" in errors
    assert "No such file" in shown(capsys, *view, tmp_path / "c.neff")[2]
    unpriced = tmp_path / "d.neff"
    unpriced.write_text(json.dumps({"kernel": "k", "unpriced": "no price of it"}))
    assert "no price of it" in shown(capsys, *view, unpriced)[2]


KERNEL = """
    import neuronxcc.nki as nki
    import neuronxcc.nki.language as nl

    @nki.jit
    def kernel(a):
        out = nl.ndarray(a.shape, dtype=a.dtype, buffer=nl.shared_hbm)
        nl.store(out, nl.exp(nl.load(a)))
        return out
"""
HARNESS = """
    import json, os, subprocess, sys
    import numpy as np
    import neuronxcc.nki as nki
    from candidate import kernel

    if "--child" in sys.argv:
        print(kernel(np.zeros((4, 8), np.float32)).sum())
        sys.exit(3)
    bare = nki.baremetal(kernel, save_neff_name="k.neff", save_trace_name="k.ntff")
    bare(np.zeros((4, 8), np.float32))
    os.system("neuron-profile view --output-format summary-json"
              " -n k.neff -s k.ntff > summary.json")
    found = json.load(open("summary.json"))
    print(list(found), found["kernel"]["predicted"], found["kernel"]["total_time"] > 0)
    for command in (["python"], [sys.executable, "-m", "neuronjax.nki"]):
        done = subprocess.run([*command, "harness.py", "--child"], capture_output=True)
        print(done.returncode, done.stdout)
"""


@pytest.mark.slow
def test_what_a_harness_starts_finds_nki_and_neuron_profile(tmp_path):
    for name, text in (("candidate.py", KERNEL), ("harness.py", HARNESS)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    command = [sys.executable, "-m", "neuronjax.nki", "harness.py"]
    here = str(Path(nki.__file__).parents[2])
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=os.environ | {"JAX_PLATFORMS": "cpu", "PYTHONPATH": here},
        capture_output=True,
        text=True,
    )
    summary, *started = done.stdout.splitlines()
    assert summary == "['kernel'] True True", done.stderr
    assert started == ["3 b'32.0\\n'"] * 2


def test_the_commands_are_there_as_long_as_the_script_runs(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    with for_children():
        said = subprocess.run(["neuron-profile", "-h"], capture_output=True, text=True)
        assert "capture" in said.stdout, said.stderr
        cores = subprocess.check_output(["neuron-ls", "--json-output"])
        assert [d["neuroncore_ids"] for d in json.loads(cores)] == [[0]]
        assert os.environ["PYTHONPATH"] == str(STAND_INS)
    assert os.environ["PATH"] == "/usr/bin:/bin"
    assert "PYTHONPATH" not in os.environ
