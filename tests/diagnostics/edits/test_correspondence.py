"""The first value that two programs both compute and that differs, of any two programs.

What they compute is written in other ways: on a mesh and on one device, in a loop and
unrolled, batched and one by one."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from tests.arrays import normal

BATCH, LENGTH, SIZE, WORDS = 16, 6, 8, 12
MESH = nj.make_mesh((8,), ("dp",))
W = {"hidden": normal(SIZE, SIZE, seed=0) / 3, "head": normal(SIZE, WORDS, seed=1)}
LAYERS = normal(3, SIZE, SIZE, seed=2) / 3
X = normal(BATCH, LENGTH, SIZE, seed=3)
IDS = np.arange(BATCH * LENGTH, dtype=np.int32).reshape(BATCH, LENGTH) % WORDS
MASK = (np.arange(LENGTH) <= np.arange(BATCH)[:, None] % LENGTH).astype(np.float32)


def compared(before, after, *arguments, **options):
    """The comparison; its page fits the terminal and has no word of the compiler's."""
    asked: dict[str, Any] = {"target": "trn2.48xlarge", "policy": "fp32"} | options
    found = nj.compare(before, against=after, **asked)(*arguments)
    page = str(found)
    assert max(map(len, page.splitlines())) <= 80
    assert "manual_computation" not in page
    assert "bitcast" not in page
    return found, " ".join(page.split())


def line(function):
    """The line of a function's `return`, as reports have it."""
    code = function.__code__
    return f"{code.co_filename}:{max(n for *_, n in code.co_lines() if n)}"


def each_loss(w, x, ids, shift=0.0):
    logits = jnp.tanh(x @ w["hidden"] + shift) @ w["head"]
    found = jnp.take_along_axis(jax.nn.log_softmax(logits), ids[..., None], -1)
    return -found[..., 0]


def loss(w, x, ids, mask):
    weighted = each_loss(w, x, ids) * mask
    return weighted.sum() / mask.sum()


def mean_of_means(w, x, ids, mask):
    weighted = each_loss(w, x, ids) * mask
    return lax.pmean(weighted.sum() / mask.sum(), "dp")


def ratio_of_sums(w, x, ids, mask):
    weighted = each_loss(w, x, ids) * mask
    return lax.psum(weighted.sum(), "dp") / lax.psum(mask.sum(), "dp")


def sharded(function, data=3, **options):
    parts = {"in_specs": (P(), *[P("dp")] * data), "out_specs": P()} | options
    return jax.shard_map(function, mesh=MESH, check_vma=False, **parts)


BATCHED = (W, X, IDS, MASK)


@pytest.mark.slow
def test_a_mean_of_the_devices_means_differs_at_the_loss():
    found, page = compared(sharded(mean_of_means), loss, *BATCHED)
    first = found.first
    assert first is not None
    assert (first.output, first.type) == ("the result", "float32 scalar")
    assert (first.before.source, first.after.source) == (
        line(mean_of_means),
        line(loss),
    )
    numbers = [
        str(nj.jit(f, target="trn2.48xlarge", policy="fp32")(*BATCHED))
        for f in (sharded(mean_of_means), loss)
    ]
    assert list(first.numbers) == numbers
    [(local, whole)] = first.equal_behind
    assert local.op == whole.op == "multiply"
    assert first.equal > 15
    assert "the first value that differs: the result, float32 scalar" in page


@pytest.mark.slow
def test_the_order_of_the_two_does_not_matter():
    found, _ = compared(loss, sharded(mean_of_means), *BATCHED)
    assert found.first is not None
    assert found.first.after.source == line(mean_of_means)
    assert found.first.equal > 15


@pytest.mark.slow
def test_sums_over_devices_are_the_sums_of_the_whole():
    """They differ by what another order of the additions makes."""
    found, _ = compared(sharded(ratio_of_sums), loss, *BATCHED)
    assert found.first is None or found.first.errors.max_ulp <= 8
    found, page = compared(sharded(ratio_of_sums), loss, *BATCHED, tolerance=1e-5)
    assert found.first is None
    assert found.compared > 20
    assert "pairs of values were compared" in page


def test_a_fault_in_what_every_device_does_is_after_the_last_equal_value():
    def shifted(w, x, ids, mask):
        weighted = each_loss(w, x, ids, 1e-2) * mask
        return lax.psum(weighted.sum(), "dp") / lax.psum(mask.sum(), "dp")

    found, _ = compared(sharded(shifted), loss, *BATCHED)
    assert found.first is not None
    assert "dot_general" in [after.op for _, after in found.first.equal_behind]


@pytest.mark.slow
def test_gathered_weights_are_the_weights():
    def gathering(w, x):
        w = lax.all_gather(w, "dp", tiled=True)
        return jnp.tanh(x @ w) * 2.0

    def whole(w, x):
        return jnp.tanh(x @ w) * 3.0

    sides = sharded(gathering, in_specs=(P("dp"), P("dp")), out_specs=P("dp")), whole
    found, _ = compared(*sides, W["hidden"], X)
    assert found.first is not None
    assert found.first.after.op == "multiply"
    assert [after.op for _, after in found.first.equal_behind] == ["tanh"]


@pytest.mark.slow
def test_a_matrix_split_over_two_axes():
    mesh = nj.make_mesh((4, 2), ("dp", "tp"))

    def layer(w, x):
        return jnp.tanh(x @ w)

    split = jax.shard_map(
        layer,
        mesh=mesh,
        in_specs=(P(None, "tp"), P("dp")),
        out_specs=P("dp", None, "tp"),
    )
    found, _ = compared(split, layer, W["hidden"], X)
    assert found.is_same
    assert found.compared == 2
    found, _ = compared(split, lambda w, x: jnp.tanh(x @ w) + 1.0, W["hidden"], X)
    assert found.first is not None
    assert found.first.errors.elements == X.size


def block(w, h, epsilon=1e-6):
    scale = lax.rsqrt((h * h).mean(-1, keepdims=True) + epsilon)
    return h + jnp.tanh(h * scale @ w)


def scanned(layers, x):
    return lax.scan(lambda h, w: (block(w, h), None), x, layers)[0]


def unrolled(layers, x, epsilons=(1e-6,) * 3):
    for w, epsilon in zip(layers, epsilons, strict=True):
        x = block(w, x, epsilon)
    return x


@pytest.mark.slow
def test_a_loop_and_the_same_unrolled():
    found, _ = compared(scanned, unrolled, LAYERS, X)
    assert found.is_same
    assert found.compared > 20
    other = functools.partial(unrolled, epsilons=(1e-6, 1e-2, 1e-6))
    found, page = compared(scanned, other, LAYERS, X)
    assert found.first is not None
    assert found.first.after.op == "add"
    assert found.first.before.source == found.first.after.source
    assert "constant 0.01" in page
    lines = [text for text in str(found).splitlines() if "> scale =" in text]
    assert len(lines) <= 3


@pytest.mark.slow
def test_a_batch_and_its_examples_one_by_one():
    def batched(w, x):
        return jax.vmap(lambda row: jnp.tanh(row @ w).sum())(x)

    def looped(w, x):
        sums = [jnp.tanh(row @ w).sum() for row in x]
        return jnp.stack([*sums[:5], sums[5] / SIZE, *sums[6:]])

    found, page = compared(batched, looped, W["hidden"], X)
    assert found.first is not None
    assert found.first.index == (5,)
    assert found.first.errors.differing == 1
    assert "no value before it has a counterpart" in page


@pytest.mark.slow
def test_microbatches_are_no_part_of_the_whole():
    def micro(w, *data):
        parts = (a.reshape(4, BATCH // 4, *a.shape[1:]) for a in data)
        losses = lax.map(lambda part: loss(w, *part), tuple(parts))
        return losses.mean()

    found, _ = compared(loss, micro, *BATCHED)
    assert found.first is not None
    assert found.first.output == "the result"
    assert found.first.after.source == line(micro)


def test_two_programs_of_nothing_in_common():
    def one(x):
        return {"a": jnp.sin(x).sum(-1)}

    def other(x):
        return {"b": jnp.cumsum(jnp.exp(x * 2), 1)}

    found, page = compared(one, other, X)
    assert found.first is None
    assert not found.is_same
    assert "no value of one program can be matched" in page


@pytest.mark.slow
def test_results_of_other_pytrees():
    """What is returned by the same name is compared, whatever made it."""

    def one(x):
        return {"loss": x.mean(), "aux": jnp.tanh(x)}

    def other(x):
        return {"loss": x.mean() * 2, "extra": (jnp.tanh(x), x)}

    found, page = compared(one, other, X)
    assert found.first is not None
    assert found.first.output == "loss"
    assert "the first value that differs: output loss, float32 scalar" in page
    assert "only before" in page


@pytest.mark.slow
def test_the_same_product_written_in_other_ways():
    def one(w, x):
        return jnp.einsum("bti,io->bto", x, w)

    def other(w, x):
        return (w.T @ x.reshape(-1, SIZE).T).T.reshape(x.shape)

    found, _ = compared(one, other, W["hidden"], X, tolerance=1e-6)
    assert found.first is None
    found, _ = compared(one, lambda w, x: other(w, x * 2), W["hidden"], X)
    assert found.first is not None
    assert found.first.after.op == "dot_general"


@pytest.mark.slow
def test_a_signed_zero_and_a_nan_are_values_too():
    found, _ = compared(lambda x: x * 0.0, lambda x: -(x * 0.0), np.float32([1, 2]))
    assert found.first is not None
    assert set(found.first.numbers) == {"0.0", "-0.0"}
    found, _ = compared(jnp.log, lambda x: jnp.log(x) + 1, np.float32([-1, 2]))
    assert found.first is not None
    assert found.first.index == (1,)


def test_a_sum_is_no_maximum():
    """What one computes beside is compared with nothing; so is an argument returned."""

    def one(x):
        return {"sum": x.sum(), "x": x * 2}

    def other(x):
        return {"shifted": (x - x.max()).sum(), "sum": x.sum(), "x": x}

    found, _ = compared(one, other, X)
    assert found.first is not None
    assert found.first.output == "x"
    assert found.first.after.op == "argument"
