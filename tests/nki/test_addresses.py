"""SBUF and PSUM: live ranges, capacity, fixed addresses, against sweeps written out."""

from __future__ import annotations

import re

import numpy as np
import pytest

import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.hardware import resolve_target
from neuronjax.nki.limits.addresses import peak_bytes
from neuronjax.nki.limits.live_ranges import live_ranges
from neuronjax.nki.limits.programs import checked


def trace(body, *args, target="trn2"):
    program = nki.jit(body).with_target(target).trace(*args)
    return checked(program, resolve_target(target).core)


def output(shape):
    return nl.ndarray(shape, "float32", buffer=nl.shared_hbm)


def chain(count, columns, kept=False):
    """Tiles that are written and read, all kept until the end or none."""

    def kernel():
        out, tiles = output((128, columns)), []
        for n in range(count):
            t = nl.ndarray((128, columns), "float32", name=f"tile{n}")
            nisa.memset(t, n)
            tiles.append(t)
            if not kept:
                nisa.dma_copy(out, t)
        if kept:
            for t in tiles:
                nisa.dma_copy(out, t)
        return out

    return kernel


def test_memory_is_used_again():
    program = trace(chain(100, 8192))
    assert peak_bytes(program)["sbuf"] == 8192 * 4


def test_too_much_sbuf_is_refused_with_its_tiles():
    with pytest.raises(InvalidProgramError) as found:
        trace(chain(7, 8192, kept=True))
    text = str(found.value)
    assert "229,376 bytes per partition of SBUF" in text
    assert "212,984" in text
    assert "32,768 bytes: float32[128, 8192] 'tile0'" in text
    assert "and 2 more, 65,536 bytes" in text
    assert text.count("test_addresses.py:") == 6
    assert trace(chain(7, 8192, kept=True), target="trn3")  # 245,752 bytes


def test_too_much_psum_is_refused():
    def kernel():
        tiles = [nl.ndarray((128, 512), "float32", nl.psum) for _ in range(9)]
        for t in tiles:
            nisa.memset(t, 0)
        for t in tiles:
            nisa.tensor_copy(nl.ndarray((128, 512), "float32"), t)

    with pytest.raises(InvalidProgramError, match=r"18,432 bytes.*PSUM.*8 banks"):
        trace(kernel)


def test_quadrants_are_used_side_by_side():
    """Seven tiles of 32 partitions need no more than two of 128."""

    def kernel():
        tiles = [nl.ndarray((32, 16384), "float32") for _ in range(7)]
        for t in tiles:
            nisa.memset(t, 0)
        for t in tiles:
            nisa.dma_copy(output((32, 16384)), t)

    assert peak_bytes(trace(kernel))["sbuf"] == 16384 * 7


def test_what_a_loop_of_the_device_carries_is_alive_in_all_of_it():
    def kernel(count):
        out = output((128, 8))
        total = nl.zeros((128, 8), "float32", name="total")
        for _ in nl.dynamic_range(count):
            a = nl.ndarray((128, 8), "float32", name="first")
            nisa.memset(a, 1)
            nisa.tensor_tensor(total, total, a, nl.add)
            b = nl.ndarray((128, 8), "float32", name="second")
            nisa.memset(b, 1)
            nisa.dma_copy(out, b)
        nisa.memset(nl.ndarray((128, 8), "float32", name="last"), 0)
        return out

    program = trace(kernel, 4)
    lives = {s.name: found for s, found in live_ranges(program).segments.items()}
    assert lives["total"] == [(0, 4)]  # to the end of the loop, not to its add
    assert peak_bytes(program)["sbuf"] == 2 * 32


def fixed(first, second, interleaved=False, offset=64):
    def kernel():
        out = output((128, 16))
        a = nl.ndarray((128, 16), "float32", name="a", address=first)
        b = nl.ndarray((128, 16), "float32", name="b", address=second)
        for t in (a, b):
            nisa.memset(t, 1)
            if not interleaved:
                nisa.dma_copy(out, t)
        if interleaved:
            nisa.dma_copy(out, a)
            nisa.dma_copy(out, b)
        return out

    return kernel


def test_fixed_addresses_may_be_used_in_turns():
    assert trace(fixed((0, 4096), (0, 4096 + 32)))
    assert trace(fixed((0, 4096), (0, 4160), interleaved=True))


def test_fixed_addresses_that_overlap():
    with pytest.raises(InvalidProgramError) as found:
        trace(fixed((0, 4096), (0, 4096 + 32), interleaved=True))
    lines = re.findall(r"test_addresses.py:(\d+)", str(found.value))
    assert len(set(lines)) == 4  # both allocations, the write and the last read
    assert "'b'" in str(found.value)
    assert "(0, 4128) overwrites" in str(found.value)


def test_fixed_addresses_out_of_range():
    with pytest.raises(InvalidProgramError, match="at most 212,920"):
        trace(fixed((0, 0), (0, 212_984 - 32)))


def test_in_place_reuse_at_one_instruction():
    """The last read of a tile and the first write of its successor are one."""

    def kernel():
        out = output((128, 16))
        a = nl.ndarray((128, 16), "float32", address=(0, 0))
        b = nl.ndarray((128, 16), "float32", address=(0, 0))
        nisa.memset(a, 1)
        nisa.activation(b, nl.exp, a)
        nisa.dma_copy(out, b)
        return out

    assert trace(kernel)


@pytest.mark.parametrize("seed", range(6))
def test_what_is_in_use_at_once(seed):
    """Random programs, every position swept."""
    generator = np.random.default_rng(seed)
    sizes = [
        (int(p), int(f))
        for p, f in zip(
            generator.choice([1, 8, 32, 40, 64, 100, 128], 60),
            generator.integers(1, 3000, 60),
            strict=True,
        )
    ]
    ages = generator.integers(0, 12, 60)

    def kernel():
        out = nl.ndarray((60, 1), "float32", buffer=nl.shared_hbm)
        alive: list = []
        for n, ((p, f), age) in enumerate(zip(sizes, ages, strict=True)):
            memory = nl.psum if n % 4 == 0 and f <= 512 else nl.sbuf
            address = (0, 100_000 + 128 * n) if n % 10 == 3 and f < 300 else None
            t = nl.ndarray((p, f), "float32", memory, address=address)
            nisa.memset(t, 0)
            alive.append((n + int(age), n, t))
            for end, number, old in alive:
                if end == n:
                    nisa.dma_copy(out[number : number + 1], old[0:1, 0:1])
        return out

    program = trace(kernel)
    found = peak_bytes(program)
    assert found == {m: swept(program, m) for m in ("sbuf", "psum")}
    assert peak_bytes(program, memories=("psum",)) == {"psum": found["psum"]}


def swept(program, memory):
    """Bytes alive at every position, in quadrants."""
    changes: dict[int, float] = {}
    for storage, lives in live_ranges(program).segments.items():
        if storage.memory == memory:
            quadrants = {1: 1, 2: 2}.get(-(-storage.shape[0] // 32), 4)
            for first, last in lives:
                for position in range(first, last + 1):
                    area = storage.free_size * 4 * quadrants / 4
                    changes[position] = changes.get(position, 0) + area
    return max(changes.values(), default=0)


def test_cores_have_memories_of_their_own():
    def kernel():
        out = output((2, 128, 8192))
        core = nl.program_id(0)
        tiles = [nl.ndarray((128, 8192), "float32") for _ in range(6)]
        for t in tiles:
            nisa.memset(t, 0)
        for t in tiles:
            nisa.dma_copy(out[core], t)
        return out

    program = nki.jit(kernel).with_target("trn2")[2].trace()
    assert peak_bytes(program)["sbuf"] == 6 * 8192 * 4
