"""`examples/distributed/train.py` over processes: the bits of the run of one process.

The reference is the example inside the test's own process, on one device.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from examples.distributed import train
from tests.distributed.children import Child, children, free_port

STEPS = 60
SAVE_EVERY = 10
KILLED_AT = 25


@pytest.fixture(scope="module")
def unbroken() -> list[str]:
    """What one process on one device prints: a line for each step, and the state's."""
    with pytest.MonkeyPatch.context() as patch:
        printed: list[str] = []
        patch.setattr(train, "print", lambda x, **_: printed.append(x), raising=False)
        state = train.train(steps=STEPS, directory=None, save_every=1)
        train.report(state)
    return printed


def commands(processes: int, *options: str) -> list[list[str]]:
    """One for each process of a run."""
    port = free_port()
    shared = ("examples/distributed/train.py", f"--steps={STEPS}", *options)
    return [
        [
            *shared,
            f"--processes={processes}",
            f"--process={process}",
            f"--coordinator=localhost:{port}",
        ]
        for process in range(processes)
    ]


def reported(lines: Sequence[str]) -> list[str]:
    """Without what libraries say."""
    return [line for line in lines if re.match(r"(step|state) ", line)]


def assert_same_run(folder: Path, processes: int, unbroken: list[str], *options: str):
    with children(folder, commands(processes, *options)) as (started, deadline):
        for child in started:
            assert reported(child.finish(deadline)) == unbroken


@pytest.mark.slow
def test_the_network_learns(unbroken):
    losses = [float(line.split()[3]) for line in unbroken[:-1]]
    assert len(losses) == STEPS
    assert np.mean(losses[-5:]) < losses[0] / 4


@pytest.mark.slow
def test_two_processes_of_two_devices_have_the_bits_of_one(tmp_path, unbroken):
    assert_same_run(tmp_path, 2, unbroken, "--real-devices=2")


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_processes_of_one_device(tmp_path, unbroken, processes):
    assert_same_run(tmp_path, processes, unbroken)


def first_step(child: Child) -> int:
    return int(reported(child.lines())[0].split()[1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "then"),
    [pytest.param(0, 2, id="coordinator"), pytest.param(1, 1, id="worker-then-alone")],
)
def test_a_killed_run_goes_on_bit_for_bit(tmp_path, unbroken, victim, then):
    """One process is killed; the other cannot go on; `then` processes start again."""
    options = (f"--directory={tmp_path / 'saved'}", f"--save-every={SAVE_EVERY}")
    reached = f"step {KILLED_AT} "
    with children(tmp_path / "first", commands(2, *options)) as (started, deadline):
        started[victim].wait_for(
            lambda lines: any(line.startswith(reached) for line in lines), deadline
        )
        started[victim].kill()
        before = reported(started[victim].lines())
    assert before == unbroken[: len(before)]
    assert KILLED_AT < len(before) < STEPS

    with children(tmp_path / "second", commands(then, *options)) as (started, deadline):
        for child in started:
            after = reported(child.finish(deadline))
            resumed = first_step(child)
            assert resumed in range(SAVE_EVERY, STEPS, SAVE_EVERY)
            assert after == unbroken[resumed:]
