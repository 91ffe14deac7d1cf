"""What a candidate is refused for: what it holds at a time, not what it ever held."""

from pathlib import Path

import numpy as np
import pytest

from neuronjax import nki
from neuronjax.diagnostics.judging import running
from neuronjax.nki import isa as nisa, language as nl

TILE_BYTES = 128 * 512 * 4
TURNS = 20
X = np.ones((128, 512), np.float32)


@nki.jit
def one_after_the_other(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    for _ in range(TURNS):
        tile = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf)
        nisa.dma_copy(dst=tile, src=x)
        nisa.dma_copy(dst=out, src=tile)
    return out


@nki.jit
def all_at_once(x):
    out = nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.shared_hbm)
    tiles = [nl.ndarray(x.shape, dtype=x.dtype, buffer=nl.sbuf) for _ in range(TURNS)]
    for tile in tiles:
        nisa.dma_copy(dst=tile, src=x)
    for tile in tiles:
        nisa.dma_copy(dst=out, src=tile)
    return out


@pytest.mark.parametrize(
    ("kernel", "refused"), [(one_after_the_other, False), (all_at_once, True)]
)
def test_tiles_that_follow_each_other_share_memory(monkeypatch, kernel, refused):
    program = kernel.traced(X).program
    monkeypatch.setattr(running, "MOST_BYTES", 10 * TILE_BYTES)
    problems = list(running.too_large(program, Path("candidate.py")))
    assert [p.rule for p in problems] == ["memory"] * refused
    assert not refused or "5.50 MiB; 2.50 MiB are allowed" in problems[0].message


def test_a_second_run_shares_memory_only_where_it_has_to(monkeypatch):
    program = one_after_the_other.traced(X).program
    assert not running.shares_memory(program)
    monkeypatch.setattr(running, "MOST_BYTES", 10 * TILE_BYTES)
    assert running.shares_memory(program)
