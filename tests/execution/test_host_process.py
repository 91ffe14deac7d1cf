"""What a process goes through: forks, flags of XLA, interrupts, failures, tasks."""

import asyncio
import dataclasses
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuronjax as nj
from neuronjax.execution import host_process, stages
from tests.conformance import bits

ROOT = Path(__file__).parents[2]
X = np.linspace(-2, 2, 24, dtype=np.float32).reshape(3, 8)
STOCHASTIC = nj.Policy(
    auto_cast="all", auto_cast_type="bf16", rounding="stochastic", seed=3
)


def double(x):
    return jnp.tanh(x @ x.T) * 2


def step(policy="bf16", function=double):
    return nj.jit(function, policy=policy)


def digest_of(policy="bf16"):
    """For a process of its own."""
    return bits.digest(step(policy)(X))


# -- other processes -------------------------------------------------------------------

FORKS = """
import os, signal, warnings
warnings.simplefilter("ignore", RuntimeWarning)
from tests.execution.test_host_process import *
run = step()
lowered = lambda x: run.lower(x)(x)
{before}
calls = dict(same=lambda: run(X), new=lambda: run(X[:2]), lowered=lambda: lowered(X))
for name, call in calls.items():
    if not os.fork():
        signal.alarm(60)
        try:
            call()
            print(name, "ran", flush=True)
        except nj.UnsupportedError as error:
            print(name, "refused: spawn" if "spawn" in error.remedy else "", flush=True)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]), flush=True)
print("parent", digest_of())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize(
    ("before", "outcome"),
    [
        ("lowered = run.lower(X); run(X), lowered(X)", "refused: spawn"),
        ("jnp.ones(3) + 1", "refused: spawn"),
        ("", "ran"),
    ],
    ids=["emulated", "JAX alone", "nothing"],
)
def test_a_forked_process_runs_or_says_that_it_cannot(before, outcome):
    """XLA's threads are the parent's: a child would wait for them for ever."""
    done = run_python(FORKS.format(before=before))
    lines = [f"{name} {outcome}" for name in ("same", "new", "lowered")]
    told = [line for name in lines for line in (name, "0")]
    assert done.stdout.splitlines() == [*told, f"parent {digest_of()}"], done.stderr


def run_python(code, **environment):
    path = os.pathsep.join([str(ROOT), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )


@pytest.mark.slow
def test_a_spawned_process_has_the_same_bits():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(digest_of) == digest_of()


# -- flags that change bits ------------------------------------------------------------

BAD = "--xla_cpu_enable_fast_math"


@pytest.mark.parametrize(
    ("flags", "refused"),
    [
        (BAD, True),
        (f"{BAD}=true", True),
        (f"--xla_cpu_max_isa=AVX2 {BAD}=1", True),
        (f"{BAD}=true {BAD}=false", False),
        (f"{BAD}=0", False),
        ("--xla_force_host_platform_device_count=2", False),
        ("", False),
    ],
)
def test_flags_that_change_bits_are_refused(monkeypatch, tmp_path, flags, refused):
    file = tmp_path / "flags.txt"
    file.write_text(flags)
    for given in (flags, str(file)):
        monkeypatch.setattr(host_process, "_started", False)
        monkeypatch.setenv("XLA_FLAGS", given)
        if not refused:
            host_process.check()
            continue
        for _ in range(2):
            with pytest.raises(nj.UnsupportedError, match="XLA_FLAGS turns on") as e:
                step()(X)
            assert flags.split("--")[-1].partition("=")[0] in e.value.remedy


@pytest.mark.slow
def test_fast_math_is_refused_in_a_process_of_its_own():
    code = "from tests.execution.test_host_process import *; digest_of()"
    done = run_python(code, XLA_FLAGS=f"{BAD}=true")
    assert done.returncode == 1
    assert "remedy: take xla_cpu_enable_fast_math out of XLA_FLAGS" in done.stderr


@pytest.mark.slow
def test_compiler_options_that_change_bits_are_refused():
    fast = {"xla_cpu_enable_fast_math": True}
    with pytest.raises(nj.UnsupportedError, match="compiler_options turns on"):
        nj.jit(double, compiler_options=fast)
    slow = {"xla_cpu_enable_fast_math": False}
    bits.assert_same(nj.jit(double, compiler_options=slow)(X), step(None)(X))


# -- interrupts and failures -----------------------------------------------------------


class _Interrupting:
    """Of `stages`: interrupts when a stage begins, or soon after it has begun."""

    def __init__(self, at, soon):
        self._at, self._soon = at, soon

    def stage(self, name):
        if name != self._at:
            return
        if not self._soon:
            raise KeyboardInterrupt
        main = threading.main_thread().ident
        assert main is not None
        interrupt = (signal.pthread_kill, (main, signal.SIGINT))
        threading.Timer(0.05, *interrupt).start()

    def end(self):
        pass


@pytest.mark.slow_cases(
    "capturing-False",
    "compiling-False",
    "lowering-False",
    "emulating-False",
)
@pytest.mark.parametrize(
    ("stage", "soon"),
    [
        *((s, False) for s in ("capturing", "lowering", "emulating", "compiling")),
        ("compiling", True),
    ],
)
def test_an_interrupt_leaves_nothing_behind(monkeypatch, request, stage, soon):
    run, other = step(STOCHASTIC), step(STOCHASTIC)
    expected = [bits.digest(other(X)) for _ in range(3)]
    watch = _Interrupting(stage, soon)
    monkeypatch.setattr(stages, "watch", lambda name: watch)
    # Who runs the tests in the background ignores the interrupts of a terminal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with pytest.raises(KeyboardInterrupt):
        _run_and_wait(run)
    monkeypatch.setattr(stages, "watch", lambda name: None)
    assert stages._owner is None
    # The call that was interrupted has had its number.
    assert bits.digest(run(X)) == expected[1]
    assert bits.digest(jax.jit(run.with_rounding_seed(2))(X)) == expected[2]


def _run_and_wait(run):
    run(X)
    # XLA does not hear of it while it compiles: it ends, and then Python raises. Python
    # ignores one that it raises in a finalizer, so another one follows.
    threading.Event().wait(5)
    signal.raise_signal(signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize("disabled", [False, True])
def test_a_host_that_fails_midway_leaves_the_next_call_right(disabled):
    """The call has had its number of stochastic rounding."""
    failing = [False]

    def host(x):
        if failing[0]:
            raise ValueError("the host gives up")
        return np.asarray(x)

    def function(x):
        y = double(x)
        return jax.pure_callback(host, jax.ShapeDtypeStruct(y.shape, y.dtype), y) * 3

    policy = dataclasses.replace(STOCHASTIC, callbacks="host")
    run, other = step(policy, function), step(policy, function)
    expected = [bits.digest(run(X)) for _ in range(3)]
    assert len(set(expected)) == 3
    with jax.disable_jit(disabled):
        assert bits.digest(other(X)) == expected[0]
        failing[0] = True
        with pytest.raises(Exception, match="the host gives up"):
            jax.block_until_ready(other(X))
        failing[0] = False
        assert bits.digest(other(X)) == expected[2]


# -- asyncio ---------------------------------------------------------------------------


@pytest.mark.slow
def test_tasks_and_their_threads_have_the_same_bits():
    run, expected = step(), bits.digest(step()(X))
    gradient = jax.grad(lambda x: step("fp8")(x).sum())
    slope = bits.digest(jax.grad(lambda x: step("fp8")(x).sum())(X))

    async def by_task(function):
        await asyncio.sleep(0)
        return bits.digest(function(X))

    async def all_at_once():
        tasks = [by_task(f) for f in (run, gradient) * 2]
        by_thread = [asyncio.to_thread(f, X) for f in (run, gradient) * 2]
        return *await asyncio.gather(*tasks), *await asyncio.gather(*by_thread)

    *digests, one, two, three, four = asyncio.run(all_at_once())
    assert digests == [expected, slope] * 2
    assert [*map(bits.digest, (one, two, three, four))] == [expected, slope] * 2
