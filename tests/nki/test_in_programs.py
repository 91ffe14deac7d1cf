"""Kernels inside emulated programs: one instruction, the bits of the kernel alone."""

from __future__ import annotations

import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import neuronjax as nj
import neuronjax.nki.isa as nisa
import neuronjax.nki.language as nl
from neuronjax import nki
from neuronjax.errors import InvalidProgramError
from neuronjax.execution.tiles.registry import (
    Operands,
    Results,
    Signature,
    TileContext,
    executes,
)
from neuronjax.ir import kernel_call
from neuronjax.ir.kernel_call import NkiKernel
from neuronjax.nki.trace import emit


def matmul_kernel():
    """A product of [128, m] and [128, n], of which nothing is known to JAX."""

    @nki.jit
    def product(a, b):
        out = nl.ndarray((a.shape[1], b.shape[1]), nl.float32, buffer=nl.shared_hbm)
        acc = nl.ndarray(out.shape, nl.float32, buffer=nl.psum)
        nisa.nc_matmul(acc, nl.load(a), nl.load(b))
        t = nl.ndarray(out.shape, nl.float32)
        nisa.activation(t, nl.tanh, acc)
        nl.store(out, t)
        return out

    def forward(a, b):
        y = product(a, b)
        return y, (a, b, y)

    def backward(residuals, ct):
        a, b, y = residuals
        ct = ct * (1 - y * y)
        return b @ ct.T, a @ ct

    product.defvjp(forward, backward)
    return product


@nki.jit
def generation(x):
    """What it returns depends on the chip, its shape does not."""
    out = nl.ndarray(x.shape, nl.float32, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, nl.float32)
    nisa.memset(t, float(nisa.get_nc_version().value))
    nl.store(out, t)
    return out


@executes("test_program_key")
def key_bits(i: Signature, x: Operands, c: TileContext) -> Results:
    return (jnp.full(i.outputs[0].shape, c.key),)


@nki.jit
def keys(x):
    out = nl.ndarray(x.shape, nl.uint32, buffer=nl.shared_hbm)
    t = nl.ndarray(x.shape, nl.uint32)
    emit("test_program_key", "vector", [t])
    nl.store(out, t)
    return out


def data(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def same(a, b):
    a, b = (np.asarray(v).view(np.uint32) for v in (a, b))
    np.testing.assert_array_equal(a, b)


A, B = data(128, 64), data(128, 96, seed=1)


def kernels(lowered) -> list[NkiKernel]:
    return [i for i in lowered.instructions if isinstance(i, NkiKernel)]


@pytest.mark.slow
def test_a_kernel_is_one_instruction_with_its_bits():
    product = matmul_kernel()
    step = nj.jit(lambda a, b: jnp.exp(product(a, b)) + 1, target="trn2")
    lowered = step.lower(A, B)
    (found,) = kernels(lowered)
    assert found.engine in ("tensor", "scalar")
    assert found.kernel.name == "product"
    assert "@neuronjax.nki(" in lowered.as_text()
    assert "nki_kernel" in lowered.as_text("instructions")
    alone = product.with_target("trn2")(A, B)
    outputs = step(A, B)
    same(outputs, nj.jit(lambda y: jnp.exp(y) + 1, target="trn2")(alone))
    with jax.disable_jit():
        same(step(A, B), outputs)
    same(jax.jit(step)(A, B), outputs)


@pytest.mark.slow
def test_gradients_and_batches():
    product = matmul_kernel()
    loss = lambda a, b: (product(a, b) ** 2).sum()  # noqa: E731
    inside = nj.jit(jax.grad(loss, argnums=(0, 1)), target="trn2")
    outside = jax.jit(jax.grad(nj.jit(loss, target="trn2"), argnums=(0, 1)))
    inner, outer = inside(A, B), outside(A, B)
    for x, y in zip(inner, outer, strict=True):
        same(x, y)
    expected = jax.grad(lambda a, b: (jnp.tanh(a.T @ b) ** 2).sum(), argnums=(0, 1))(
        A, B
    )
    np.testing.assert_allclose(inner[0], expected[0], rtol=1e-3, atol=1e-3)
    # A batch has the bits of its examples, whoever makes it.
    batch = jnp.stack([A, 2 * A])
    mapped = jax.vmap(nj.jit(product, target="trn2"), in_axes=(0, None))(batch, B)
    within = nj.jit(jax.vmap(product, in_axes=(0, None)), target="trn2")
    same(within(batch, B), mapped)
    same(mapped[1], product.with_target("trn2")(2 * A, B))
    assert len(kernels(within.lower(batch, B))) == 1


@pytest.mark.slow
def test_the_program_decides_the_chip():
    x = data(128, 4)

    def inner(x):
        return generation.with_target("trn3")(x)

    cached = jax.jit(inner)  # must not be reused from chip to chip
    found = {
        chip: float(nj.jit(lambda x: cached(x), target=chip)(x)[0, 0])
        for chip in ("trn1", "trn2", "trn3", "trn2")
    }
    assert found == {"trn1": 2, "trn2": 3, "trn3": 4}
    assert float(cached(x)[0, 0]) == 4
    lowered = nj.jit(generation, target="trn1").lower(x)
    (found_kernel,) = kernels(lowered)
    assert found_kernel.kernel.program.target == "trn1"


@pytest.mark.slow
def test_on_every_device_of_a_mesh():
    product = matmul_kernel()
    mesh = nj.make_mesh((2,), ("data",))
    spread = jax.shard_map(
        lambda a, b: jax.lax.psum(product(a, b), "data"),
        mesh=mesh,
        in_specs=(P(None, "data"), P()),
        out_specs=P(),
    )
    step = nj.jit(spread, target="trn2")
    parts = [product.with_target("trn2")(A[:, n : n + 32], B) for n in (0, 32)]
    same(step(A, B), parts[0] + parts[1])
    with jax.disable_jit():
        same(step(A, B), step(A, B))


@pytest.mark.slow
def test_derivatives_on_every_device_of_a_mesh():
    """What `jax.shard_map` checks: a cotangent varies where its primal does."""

    @nki.jit
    def product(x, w):
        out = nl.ndarray(x.shape, x.dtype, buffer=nl.shared_hbm)
        a, b = nl.load(x), nl.load(w)
        nisa.tensor_tensor(a, a, b, nl.multiply)
        nl.store(out, a)
        return out

    product.defvjp(
        lambda x, w: (product(x, w), (x, w)),
        lambda kept, g: (product(g, kept[1]), product(g, kept[0])),
    )
    mesh = nj.make_mesh((4,), ("data",))

    def loss(w, x):
        total = lambda x, w: jax.lax.psum(jnp.sum(product(x, w)), "data")  # noqa: E731
        specs = (P("data"), P())
        return jax.shard_map(total, mesh=mesh, in_specs=specs, out_specs=P())(x, w)

    x = np.arange(32, dtype=np.float32).reshape(16, 2)
    found = nj.jit(jax.grad(loss), target="trn2")(np.ones((4, 2), np.float32), x)
    same(found, x.reshape(4, 4, 2).sum(0))


@pytest.mark.slow
def test_random_bits_start_from_the_seed_and_from_the_call():
    x = data(128, 2)
    plain = nj.jit(keys.with_seed(5), target="trn2")
    same(plain(x), keys.with_seed(5).with_target("trn2")(x))
    stochastic = nj.Policy(rounding="stochastic", seed=1)
    step = nj.jit(keys, target="trn2", policy=stochastic)
    drawn = {int(step.with_rounding_seed(n)(x)[0, 0]) for n in range(3)}
    assert len(drawn) == 3
    same(step.with_rounding_seed(1)(x), jax.jit(step.with_rounding_seed(1))(x))


def test_a_kernel_takes_its_own_time_in_a_profile():
    product = matmul_kernel()
    alone = nj.profile(product, target="trn2")(A, B).timeline
    step = nj.profile(lambda a, b: product(a, b), target="trn2")(A, B).timeline
    kernel, whole = alone.scheduled_seconds, step.scheduled_seconds
    assert whole == pytest.approx(kernel, rel=0.1)
    busy = {e.queue for e in step.events if e.name == "NKI_KERNEL"}
    assert {"tensor", "scalar", "dma"} <= busy


def test_bytes_of_a_kernel_are_those_of_its_transfers():
    product = matmul_kernel()
    alone = nj.profile(product, target="trn2")(A, B)
    step = nj.profile(lambda a, b: product(a, b), target="trn2")(A, B)
    for name in ("hbm_read_bytes", "hbm_write_bytes", "dma_transfer_count"):
        assert step.metrics[name] == alone.metrics[name] > 0, name
    # Alone it is profiled on one of the two physical cores that the program has.
    both = alone.metrics["dma_efficiency_percent"] / 2
    assert step.metrics["dma_efficiency_percent"] == pytest.approx(both)
    (op,) = [used for name, used in step.by_op().items() if "nki" in name]
    assert op.hbm_bytes == step.metrics["dma_transfer_total_bytes"]
    (totals,) = [t for t in step.timeline.totals if t.read_bytes]
    assert totals.read_bytes == step.timeline.hbm_read_bytes


_OTHER_PROCESS = """
import sys
import neuronjax as nj
try:
    nj.load(sys.argv[1], target="trn2")
except nj.InvalidProgramError as error:
    print(error)
"""


@pytest.mark.slow
def test_a_saved_program_names_its_kernel(tmp_path):
    product = matmul_kernel()
    lowered = nj.jit(product, target="trn2").lower(A, B)
    path = tmp_path / "step.mlir"
    path.write_text(lowered.as_text())
    same(
        nj.load(path, target="trn2").compile()(A, B), product.with_target("trn2")(A, B)
    )
    run = [sys.executable, "-c", _OTHER_PROCESS, str(path)]
    done = subprocess.run(run, capture_output=True, text=True, check=True)
    assert "calls the kernel 'product#" in done.stdout, done.stderr
    assert "capture the program again in this process" in done.stdout


def test_texts_depend_on_what_the_kernel_does():
    first, second = matmul_kernel(), matmul_kernel()
    texts = [kernel_call.text_of(k.trace(A, B)) for k in (first, second)]
    assert texts[0] == texts[1]
    assert kernel_call.text_of(first.trace(A, A)) != texts[0]
    assert kernel_call.text_of(first.with_target("trn1").trace(A, B)) != texts[0]


def test_a_result_that_another_chip_shapes_differently():
    @nki.jit
    def wide(x):
        out = nl.ndarray(
            (nisa.get_nc_version().value, 4), nl.float32, buffer=nl.shared_hbm
        )
        t = nl.ndarray(out.shape, nl.float32)
        nisa.memset(t, 1.0)
        nl.store(out, t)
        return out

    lowered = nj.jit(wide, target="trn3").lower(data(128, 4))
    with pytest.raises(InvalidProgramError, match=r"wide returns .* on trn1"):
        nj.load(str(lowered.as_text()).encode(), target="trn1")


@pytest.mark.slow
def test_a_policy_decides_how_a_kernel_rounds():
    @nki.jit
    def narrow(x):
        out = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, nl.bfloat16, nl.sbuf)
        nisa.tensor_copy(tile, nl.load(x))
        nl.store(out, tile)
        return out

    x = np.full((128, 256), 1 + 2**-7 * 0.5 + 2**-20, np.float32)
    up = 1 + 2**-7
    nearest = nj.jit(narrow, target="trn2")(x)
    assert (np.asarray(nearest) == up).all()
    policy = nj.Policy(rounding="stochastic", seed=3)
    step = nj.jit(narrow, target="trn2", policy=policy)
    found = np.asarray(step.with_rounding_seed(1)(x)).astype(np.float32)
    assert set(np.unique(found)) == {1, up}
    assert abs((found == up).mean() - 0.5) < 5 * 0.5 / np.sqrt(x.size)
    same(step.with_rounding_seed(1)(x), found.astype(jnp.bfloat16))
    assert (np.asarray(step.with_rounding_seed(2)(x)) != found).any()
    own = nj.jit(narrow.with_rounding("stochastic"), target="trn2")
    alone = narrow.with_target("trn2").with_rounding("stochastic")
    same(own(x), alone(x))


@pytest.mark.slow
def test_devices_round_with_bits_of_their_own():
    @nki.jit
    def narrow(x):
        out = nl.ndarray(x.shape, nl.bfloat16, buffer=nl.shared_hbm)
        tile = nl.ndarray(x.shape, nl.bfloat16, nl.sbuf)
        nisa.tensor_copy(tile, nl.load(x))
        nl.store(out, tile)
        return out

    mesh = nj.make_mesh((2,), ("data",))
    spread = jax.shard_map(narrow, mesh=mesh, in_specs=P("data"), out_specs=P("data"))
    policy = nj.Policy(rounding="stochastic")
    x = np.full((256, 32), 1 + 2**-8, np.float32)
    found = np.asarray(nj.jit(spread, target="trn2", policy=policy)(x))
    assert (found[:128] != found[128:]).any()
