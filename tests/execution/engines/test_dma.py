"""The patches of a convolution: against indices in NumPy, by the kernel and by XLA."""

from __future__ import annotations

import functools
import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings, strategies as st

import neuronjax as nj
from neuronjax.execution.engines import tensor
from neuronjax.execution.engines.dispatch import Registers, execute
from neuronjax.ir.instruction import Buffer, View
from neuronjax.ir.instruction_set import Im2col, Window
from neuronjax.ir.program import TensorType
from neuronjax.numerics.host_kernels import choice

DTYPES = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float4_e2m1fn")
DTYPES = (*DTYPES, "float8_e5m2", "int8", "int32", "bool", "uint4")


@pytest.fixture(params=["kernel", "gather"])
def way(request, monkeypatch):
    """Both ways to make patches."""
    if request.param == "kernel" and not tensor.has_host_kernels():
        pytest.skip("no kernels for this processor")
    monkeypatch.setattr(choice, "enabled", request.param == "kernel")


@st.composite
def windows(draw):
    """A window, and the sizes of what it slides over."""
    rank = draw(st.integers(1, 3))
    dimension = st.tuples(*(st.integers(1, 3) for _ in range(4)))
    sizes, strides, base, dilations = zip(
        *(draw(dimension) for _ in range(rank)), strict=True
    )
    pads = st.tuples(st.integers(-2, 3), st.integers(-2, 3))
    padding = tuple(draw(pads) for _ in range(rank))
    spatial = tuple(draw(st.integers(1, 5)) for _ in range(rank))
    return Window(sizes, strides, base, dilations, padding), spatial


def counts(window, spatial):
    """How many windows fit along each dimension."""
    for n, size, stride, base, dilation, padding in zip(
        spatial,
        window.sizes,
        window.strides,
        window.base_dilations,
        window.window_dilations,
        window.padding,
        strict=True,
    ):
        padded = (n - 1) * base + 1 + sum(padding)
        yield max((padded - (size - 1) * dilation - 1) // stride + 1, 0)


def oracle(x, window):
    """[groups, batch * positions, K], element by element of the input as it came."""
    groups, batch, *spatial, channels = x.shape
    found = tuple(counts(window, spatial))
    out = np.zeros((groups, batch, *found, *window.sizes, channels), x.dtype)
    for place in itertools.product(*map(range, (*found, *window.sizes))):
        at = []
        for d, n in enumerate(spatial):
            output, position = place[d], place[len(spatial) + d]
            dilated = output * window.strides[d] - window.padding[d][0]
            dilated += position * window.window_dilations[d]
            index, between = divmod(dilated, window.base_dilations[d])
            at.append(index if not between and 0 <= index < n else None)
        if None not in at:
            out[(slice(None), slice(None), *place)] = x[(slice(None), slice(None), *at)]
    return out.reshape(groups, batch * int(np.prod(found)), -1)


def any_values(shape, dtype):
    """Codes at random: NaNs with payloads too."""
    rng = np.random.default_rng(3)
    kind = jnp.dtype(dtype)
    if kind.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if jax.dtypes.itemsize_bits(kind) < 8:
        return rng.integers(0, 6, shape).astype(kind)
    return rng.integers(0, 256, (*shape, kind.itemsize), np.uint8).view(kind)[..., 0]


def im2col(window, shape, dtype):
    """The instruction, as a function of its operand."""
    groups, batch, *spatial, channels = shape
    found = int(np.prod(tuple(counts(window, spatial))))
    k = int(np.prod(window.sizes)) * channels
    types = (
        TensorType(s, jnp.dtype(dtype)) for s in (shape, (groups, batch * found, k))
    )
    operand, result = (Buffer(n, t) for n, t in enumerate(types))
    i = Im2col(
        operands=(View(operand),), results=(result,), engine="dma", window=window
    )
    zero = Registers(jnp.float32(-0.0), jnp.uint32(0))
    return lambda x: execute(i, [x], zero)[0]


def same(found, want):
    assert found.shape == want.shape
    assert found.dtype == want.dtype
    assert np.asarray(found).tobytes() == want.tobytes()


@pytest.mark.slow
@pytest.mark.parametrize("way", ["kernel", "gather"], indirect=True)
@settings(
    max_examples=25,
    deadline=None,
    # Which way it is holds for all examples.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(windows(), st.sampled_from(DTYPES), st.integers(1, 2), st.integers(1, 3))
def test_patches_are_what_the_indices_say(way, case, dtype, groups, channels):
    window, spatial = case
    # Without a window there is no convolution to make patches for.
    assume(0 not in tuple(counts(window, spatial)))
    shape = (groups, 2, *spatial, channels)
    x = any_values(shape, dtype)
    same(jax.jit(im2col(window, shape, dtype))(x), oracle(x, window))


WIDE = Window((3, 5), (2, 1), (1, 2), (1, 2), ((1, -1), (3, 0)))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("shape", [(1, 2, 40, 31, 24), (3, 1, 9, 64, 1)])
def test_patches_of_many_blocks(shape):
    x = any_values(shape, "bfloat16")
    same(jax.jit(im2col(WIDE, shape, "bfloat16"))(x), oracle(x, WIDE))


@pytest.mark.usefixtures("way")
def test_four_dimensions():
    window = Window((2,) * 4, (1, 2, 1, 1), (1,) * 4, (1, 1, 2, 1), ((0, 1),) * 4)
    shape = (1, 2, 3, 4, 3, 2, 5)
    x = any_values(shape, "float32")
    same(jax.jit(im2col(window, shape, "float32"))(x), oracle(x, window))


@pytest.mark.usefixtures("way")
def test_mapped_patches():
    shape = (2, 2, 5, 4, 3)
    x = any_values((6, *shape), "bfloat16")
    found = jax.jit(jax.vmap(im2col(WIDE, shape, "bfloat16")))(x)
    same(found, np.stack([oracle(one, WIDE) for one in x]))


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("dimensions", [1, 2])
def test_a_larger_window_is_no_longer_program(dimensions):
    """Operations of the program do not depend on how many positions a window has."""

    def operations(size):
        image = jnp.ones((2, 3, *[16] * dimensions))
        kernel = jnp.ones((4, 3, *[size] * dimensions))
        convolve = functools.partial(
            jax.lax.conv, window_strides=(1,) * dimensions, padding="SAME"
        )
        step = jax.grad(lambda *args: (convolve(*args) ** 2).sum(), argnums=(0, 1))
        call = nj.jit(lambda *args: step(*args), policy="bf16")
        text = jax.jit(lambda *args: call(*args)).lower(image, kernel).as_text()
        return len(re.findall(r" = \"?stablehlo\.", text))

    assert operations(5) == operations(3)
