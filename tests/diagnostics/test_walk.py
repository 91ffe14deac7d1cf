"""The walk of compare and tolerance runs programs of a mesh as the chips would."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.capture.trace import capture
from neuronjax.diagnostics.compare import Setting
from neuronjax.diagnostics.executors import Emulator
from neuronjax.diagnostics.op_walk import ParallelWalk
from neuronjax.hardware import resolve_target

TARGET = "trn2.48xlarge"
DEVICES = 4
MESH = nj.make_mesh((DEVICES,), ("dp",))
GRID = nj.make_mesh((2, 2), ("dp", "tp"))


def sharded(f, mesh=MESH, ins=P("dp"), outs=P()):
    return jax.shard_map(f, mesh=mesh, in_specs=ins, out_specs=outs, check_vma=False)


def variance(x):
    return (x * x).mean() - x.mean() ** 2  # the fault


FAULT = "test_walk.py:28"


def data(mean=0.0, seed=0, shape=(16, 8)):
    normal = np.random.default_rng(seed).normal(size=shape)
    return (normal + mean).astype(np.float32)


def in_scan(x):
    def turn(total, _):
        return total + lax.psum(variance(x), "dp"), None

    return lax.scan(turn, jnp.float32(0), None, length=3)[0]


def own_trips(x):
    """Every device turns its loop as often as its number says."""

    def turn(carry):
        return carry[0] + 1, carry[1] + variance(x)

    count = lax.axis_index("dp") + 1
    done = lax.while_loop(lambda carry: carry[0] < count, turn, (0, jnp.float32(0)))
    return lax.psum(done[1], "dp")


def own_branch(x):
    chosen = lax.cond(lax.axis_index("dp") > 1, variance, lambda x: 0 * x.sum(), x)
    return lax.psum(chosen, "dp")


def ring(x):
    pairs = [(n, (n + 1) % DEVICES) for n in range(DEVICES)]
    return lax.pmean(variance(lax.ppermute(x, "dp", pairs)), "dp")


def over_two_axes(x):
    row = lax.all_gather(lax.pmean(variance(x), "dp")[None], "tp", tiled=True)
    return row.mean()


PROGRAMS = {
    "psum": sharded(lambda x: lax.psum(variance(x), "dp")),
    "scan": sharded(in_scan),
    "while": sharded(own_trips),
    "cond": sharded(own_branch),
    "ppermute": sharded(ring),
    "all_gather": sharded(lambda x: variance(lax.all_gather(x, "dp", tiled=True))),
    "all_to_all": sharded(
        lambda x: lax.pmean(variance(lax.all_to_all(x, "dp", 1, 0, tiled=True)), "dp")
    ),
    "psum_scatter": sharded(
        lambda x: lax.pmean(
            variance(lax.psum_scatter(x.T, "dp", tiled=True) / DEVICES), "dp"
        )
    ),
    "two axes": sharded(over_two_axes, GRID, P("dp", "tp")),
    "sharded result": sharded(lambda x: variance(x)[None], outs=P("dp")),
    "one device": sharded(
        lambda x: lax.pmean(variance(x), "dp"), nj.make_mesh((1,), ("dp",))
    ),
}


@pytest.mark.slow_except("psum", "ppermute", "one device")
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_fault_on_a_mesh_is_named_at_its_line(name):
    found = nj.compare(PROGRAMS[name], target=TARGET, policy="bf16")(data(mean=1e3))
    assert found.faults[0].record.source.endswith(FAULT)


def captured(function, *arrays):
    types = tuple(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in arrays)
    names = [f"x{n}" for n in range(len(types))]
    return capture(lambda *x: jax.tree.leaves(function(*x)), types, names).program


STOCHASTIC = nj.Policy(
    auto_cast="all", rounding="stochastic", seed=5, name="stochastic"
)


def gradient(x, w):
    """Weights are replicated, their gradient is reduced in BF16."""

    def loss(w):
        return jnp.square(jnp.tanh(x @ w)).mean()

    def turn(w, _):
        update = lax.pmean(jax.grad(loss)(w).astype(jnp.bfloat16), "dp")
        scattered = lax.psum_scatter(update, "dp", tiled=True)
        gathered = lax.all_gather(scattered, "dp", tiled=True)
        return w - 0.1 * gathered.astype(jnp.float32), None

    return lax.scan(turn, w, None, length=2)[0]


TRAIN = sharded(gradient, ins=(P("dp"), P()))


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fp8", STOCHASTIC], ids=["fp8", "stochastic"])
def test_the_actual_lane_has_the_bits_of_the_run(policy):
    x, w = data(), data(seed=1, shape=(8, 8))
    program = captured(TRAIN, x, w)
    target, policy = resolve_target(TARGET), nj.Policy.resolve(policy)
    setting = Setting(program=program, target=target, call_index=np.uint32(7))
    sides = setting.side("float32", policy), setting.emulated(policy)
    [ours] = ParallelWalk(*sides, lambda *heard: None).run([x, w])
    run = nj.jit(TRAIN, target=TARGET, policy=policy)
    if policy is STOCHASTIC:
        run = run.with_rounding_seed(7)
    assert np.asarray(ours).tobytes() == np.asarray(run(x, w)).tobytes()


def test_the_reference_of_a_mesh_is_in_double_precision():
    """An error beyond FP32's would be seen beside the float64 of NumPy."""

    def moments(x):
        x = lax.all_to_all(x, "dp", 1, 0, tiled=True)
        total = lax.psum(x, "dp")
        part = lax.psum_scatter(x, "dp", scatter_dimension=0, tiled=True)
        return total, part, lax.pmax(x, "dp")

    x = data(mean=1e3)
    program = captured(sharded(moments, outs=(P(), P("dp"), P())), x)
    setting = Setting(program=program, target=resolve_target(TARGET))
    side = setting.side("float64", nj.Policy.resolve("fp32"))
    results = ParallelWalk(side, side, lambda *heard: None).run([x])
    blocks = np.split(x.astype(np.float64), DEVICES, axis=1)
    total = np.sum(blocks, axis=0)
    for found, expected in zip(results, (total, total, np.max(blocks, axis=0))):
        np.testing.assert_allclose(found, expected, rtol=1e-15)
    assert not side.executor.kept_in_float32


def test_what_devices_hold_alike_runs_once(monkeypatch):
    executed = []
    execute = Emulator.execute

    def counted(self, i, *args):
        executed.append(i.name)
        return execute(self, i, *args)

    monkeypatch.setattr(Emulator, "execute", counted)

    def replicated(x, w):
        for _ in range(5):
            w = jnp.tanh(w)
        return lax.psum((x * w).sum(), "dp")

    function = sharded(replicated, ins=(P("dp"), P()))
    x, w = data(), data(shape=(8,))
    nj.compare(function, target=TARGET, policy="fp32", reference="fp32")(x, w)
    assert executed.count("activation") == 5


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["fp32", "bf16"])
def test_results_of_a_mesh_are_within_their_bounds_and_faults_are_not(policy):
    x, w = data(), data(seed=1, shape=(8, 8))

    def layer(x, w):
        y = jnp.tanh(x @ w)
        pairs = [(n, n ^ 1) for n in range(DEVICES)]
        sent = lax.ppermute(y, "dp", pairs)
        gradient = lax.psum_scatter(x.T @ y, "dp", tiled=True)
        low = lax.psum(y.astype(jnp.bfloat16), "dp")
        return lax.psum(x.T @ y, "dp"), gradient, sent, low, lax.pmax(y, "dp")

    outs = (P(), P("dp"), P("dp"), P(), P())
    function = sharded(layer, ins=(P("dp"), P()), outs=outs)
    bounds = nj.tolerance(function, target=TARGET, policy=policy)(x, w)
    results = nj.jit(function, target=TARGET, policy=policy)(x, w)
    assert bounds.allows(results)
    for n, result in enumerate(results):
        wrong = np.asarray(result).astype(np.float32)
        wrong.flat[5] += 0.3 * np.abs(wrong).max()
        assert not bounds.allows([*results[:n], wrong, *results[n + 1 :]])


def test_one_error_on_all_devices_adds_up_with_its_sign():
    """What every device rounds alike is N times as wrong in a sum over N devices."""

    def total(w):
        return lax.psum(jnp.exp(w), "dp")

    def alone(w):
        return jnp.exp(w) * DEVICES

    w = data()
    many = nj.tolerance(sharded(total, ins=P()), target=TARGET, policy="fp32")(w)
    one = nj.tolerance(alone, policy="fp32")(w)
    assert np.all(many.atol >= 0.99 * one.atol)


def test_a_decision_in_doubt_on_a_mesh_is_refused_at_its_line():
    def doubtful(x):
        mean = lax.pmean(jnp.exp(x).sum(), "dp")
        return lax.cond(mean - mean * 1.0000001 > 0, jnp.sin, jnp.cos, mean)

    with pytest.raises(nj.UnsupportedError, match="which branch is taken") as error:
        nj.tolerance(sharded(doubtful), target=TARGET, policy="fp32")(data())
    assert "test_walk.py" in str(error.value.location)


def rows(outs=P("dp")):
    """A layer on a mesh, on a line of its own, and the same with another factor."""

    def layer(x, w):
        return jnp.tanh(x @ w)

    def edited(x, w):
        return jnp.tanh(x @ w * 1.01)

    return [sharded(f, ins=(P("dp"), P()), outs=outs) for f in (layer, edited)]


@pytest.mark.slow
def test_an_edit_on_a_mesh_is_named():
    before, after = rows()
    x, w = data(), data(seed=1, shape=(8, 8))
    found = nj.compare(before, against=after, target=TARGET, policy="bf16")(x, w)
    assert "multiply" in str(found)
    assert found.first is not None
    same = nj.compare(before, against=rows()[0], target=TARGET, policy="bf16")(x, w)
    assert same.first is None


@pytest.mark.slow
def test_a_dump_of_a_mesh_is_held_against_its_results():
    function, edited = rows()
    x, w = data(), data(seed=1, shape=(8, 8))
    run, wrong = (
        np.asarray(nj.jit(f, target=TARGET, policy="bf16")(x, w))
        for f in (function, edited)
    )
    wrong = wrong + 0.05

    def first(found):
        ask = nj.compare_dump(
            function, {"the result": found}, target=TARGET, policy="bf16"
        )
        compared = ask(x, w)
        assert len(compared.tensors) == 1
        return compared.first

    assert first(run) is None
    assert first(wrong) is not None


# -- what devices have in common -------------------------------------------------------

MANY = nj.make_mesh((64,), ("dp",))


def low(a, b):
    """Weights with an error, the same on every device."""
    return (a * b).astype(jnp.bfloat16).astype(jnp.float32)


def summed(a, b, x):
    return lax.psum((low(a, b) * x).sum(0), "dp")


def stacked(a, b, x):
    return (low(a, b) * x).sum(0)[None]


@pytest.mark.parametrize("joins", [True, False], ids=["psum", "outside"])
def test_errors_that_devices_share_add_up(joins):
    """64 devices multiply the same rounded weight, and all numbers have one sign."""
    a, b = 1 + abs(data(shape=(8,))), 1 + abs(data(seed=1, shape=(8,)))
    x = 1 + 0.01 * data(seed=2, shape=(64, 8))
    ins = (P(), P(), P("dp"))
    if joins:
        function = sharded(summed, MANY, ins)
    else:
        rows_of = sharded(stacked, MANY, ins, P("dp"))

        def function(a, b, x):
            return rows_of(a, b, x).sum(0)

    ask = dict(target="trn2.48xlarge", policy="fp32")
    bounds = nj.tolerance(function, **ask)(a, b, x)
    assert bounds.allows(nj.jit(function, **ask)(a, b, x))


def doubtful_of(reduce):
    """Whether 3 * (1 / 3) > 1 is asked on the first device alone."""

    def function(x, y):
        return reduce((x * y > 1).astype(jnp.int32), "dp")

    x = np.full((DEVICES, 1), 3.0, np.float32)
    y = np.full((DEVICES, 1), 1.0, np.float32)
    y[0] = np.float32(1) / np.float32(3)
    return sharded(function, ins=(P("dp"), P("dp")), outs=P()), x, y


@pytest.mark.parametrize("reduce", [lax.pmin, lax.pmax, lax.psum])
def test_integers_over_devices_are_in_doubt_where_any_is(reduce):
    function, x, y = doubtful_of(reduce)
    policy = nj.Policy(integer_path="exact")
    bounds = nj.tolerance(function, target=TARGET, policy=policy)(x, y)
    assert np.isinf(bounds.atol).all()


@pytest.mark.slow
def test_drawn_errors_of_a_sum_are_the_same_on_every_device():
    def function(x):
        total = lax.psum(x.astype(jnp.bfloat16), "dp").astype(jnp.float32)
        return lax.pmax(total, "dp") - lax.pmin(total, "dp")

    ask = dict(target=TARGET, policy="fp32")
    bounds = nj.tolerance(sharded(function), samples=4, **ask)(data())
    assert np.all(np.asarray(bounds.expected) == 0)
    assert bounds.allows(nj.jit(sharded(function), **ask)(data()))


def test_after_a_collective_devices_that_hold_the_same_share_their_work(monkeypatch):
    executed = []
    execute = Emulator.execute

    def counted(self, i, *args):
        executed.append(i.name)
        return execute(self, i, *args)

    monkeypatch.setattr(Emulator, "execute", counted)

    def function(x):
        total = lax.psum(x, "dp")
        for _ in range(5):
            total = jnp.tanh(total)
        return total

    nj.compare(sharded(function), target=TARGET, policy="bf16")(data())
    assert executed.count("activation") <= 2 * 5  # isolated, and in the run


@pytest.mark.slow
def test_an_edit_on_one_device_alone_is_named():
    def before(w):
        return lax.all_gather(jnp.sin(w * 2), "dp")

    def after(w):
        shift = jnp.where(lax.axis_index("dp") == 1, 1.0, 0.0)
        return lax.all_gather(jnp.sin(w * 2 + shift), "dp")

    one, other = (sharded(f, ins=P()) for f in (before, after))
    ask = nj.compare(one, against=other, target=TARGET, policy="fp32")
    found = ask(data(shape=(8,)))
    assert found.first is not None
    assert found.first.after.op in ("sine", "add")
