"""Compiled programs that the next process reads."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import pytest

import neuronjax as nj

PROGRAM = """
import json, sys, time
import jax, jax.numpy as jnp, numpy as np
import neuronjax as nj
from neuronjax.api import keep_compiled

keep_compiled.LEAST_SECONDS = 0.0
folder = nj.keep_compiled(sys.argv[1])
x = jnp.asarray(np.random.default_rng(0).standard_normal((64, 64)).astype(np.float32))
gradient = jax.grad(lambda x: jnp.tanh(x @ x / 8).sum())
step = nj.jit(gradient, target="trn2", policy="fp8")
out = np.asarray(step(x))
with jax.disable_jit():
    alone = np.asarray(step(x))
read = sum(1 for f in folder.iterdir() if f.name.endswith("-cache"))
print(json.dumps([out.tobytes().hex(), bool((out == alone).all()), read, str(folder)]))
"""


def run(folder: Path) -> list:
    environment = {k: v for k, v in os.environ.items() if "COMPILATION_CACHE" not in k}
    environment = {k: v for k, v in environment.items() if "PERSISTENT" not in k}
    command = [sys.executable, "-c", PROGRAM, str(folder)]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    return json.loads(found.stdout.splitlines()[-1])


@pytest.mark.slow
def test_a_second_process_has_the_same_bits_and_compiles_nothing(tmp_path):
    chosen = tmp_path / "a folder of \u00e9l\u00e8ves"
    bits, equal, entries, folder = run(chosen)
    assert equal
    assert entries > 0
    assert Path(folder).parent == chosen
    assert run(chosen) == [bits, True, entries, folder]


@pytest.fixture
def configured():
    names = (
        "jax_compilation_cache_dir",
        "jax_persistent_cache_min_compile_time_secs",
        "jax_persistent_cache_min_entry_size_bytes",
    )
    before = {name: getattr(jax.config, name) for name in names}
    yield
    for name, value in before.items():
        jax.config.update(name, value)


def test_a_cache_that_was_chosen_stays(configured, tmp_path):
    jax.config.update("jax_compilation_cache_dir", str(tmp_path))
    assert nj.keep_compiled() == tmp_path
    assert jax.config.jax_compilation_cache_dir == str(tmp_path)


def test_it_lies_beside_the_verdicts(configured, tmp_path, monkeypatch):
    jax.config.update("jax_compilation_cache_dir", None)
    monkeypatch.setenv("NEURONJAX_CACHE_DIR", str(tmp_path))
    found = nj.keep_compiled()
    assert found.parent == tmp_path
    assert jax.config.jax_compilation_cache_dir == str(found)


def test_a_folder_that_is_named_wins(configured, tmp_path):
    assert nj.keep_compiled(tmp_path / "mine").parent == tmp_path / "mine"


@pytest.mark.slow
def test_a_program_may_still_say_how_many_devices_there_are(tmp_path):
    program = f"""
import jax
import neuronjax as nj
nj.keep_compiled({str(tmp_path)!r})
jax.config.update("jax_num_cpu_devices", 3)
print(jax.device_count())
"""
    environment = {k: v for k, v in os.environ.items() if k != "XLA_FLAGS"}
    command = [sys.executable, "-c", program]
    found = subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout == "3\n"
