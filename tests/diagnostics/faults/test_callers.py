"""The lines that called a helper stand below the line of the fault in the helper."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from neuronjax.api.compare import compare
from tests.arrays import normal
from tests.diagnostics.faults.marked import marked_line


def half(x):
    return x.astype(jnp.float16)


shared = jax.jit(half)


def restored(small):
    return jax.lax.stop_gradient(small).astype(jnp.float32) * 1e9


def plain(x):
    large = half(x)
    small = half(x * 1e-9)  # here
    return restored(small) + large


def shared_by_calls(x):
    large = shared(x)
    small = shared(x * 1e-9)  # here
    return restored(small) + large


def in_a_scan(x):
    def step(total, row):
        small = half(row * 1e-9)  # here
        return total + restored(small) + half(row), None

    return jax.lax.scan(step, jnp.zeros_like(x[0]), x)[0]


def over_devices(x):
    def shard(x):
        small = half(x * 1e-9)  # here
        return jax.lax.psum(restored(small) + half(x), "d")

    mesh = nj.make_mesh((2,), ("d",))
    return jax.shard_map(shard, mesh=mesh, in_specs=P("d"), out_specs=P())(x)


CALLED = [plain, shared_by_calls, in_a_scan, over_devices]


def numbers():
    return np.abs(normal(8, 16)) + 1


def first_of(function, called):
    report = compare(function, target="trn2.48xlarge")(numbers())
    fault = report.faults[0]
    assert fault.kind == "underflow"
    assert fault.record.source == f"{__file__}:{half.__code__.co_firstlineno + 1}"
    assert fault.record.callers[0] == marked_line(called)
    assert fault.record.as_dict()["callers"] == fault.record.callers
    return str(report)


@pytest.mark.parametrize("function", CALLED)
def test_the_call_that_makes_the_fault_is_named(function):
    shown = first_of(function, function)
    line = marked_line(function).rpartition("/")[2]
    assert f"called from {line}: " in shown


@pytest.mark.parametrize("function", CALLED[:3])
@pytest.mark.parametrize("derive", [jax.grad, jax.vmap])
def test_the_call_is_named_under_transformations(function, derive):
    if derive is jax.grad:
        first_of(jax.value_and_grad(lambda x: function(x).sum()), function)
    else:
        first_of(lambda x: jax.vmap(function)(x[None]), function)


def test_a_program_without_helpers_has_no_call():
    report = compare(lambda x: (x * 1e-9).astype(jnp.float16) * 1.0)(numbers())
    assert "called from" not in str(report)


@pytest.mark.parametrize("function", [plain, shared_by_calls, in_a_scan])
def test_a_loaded_program_has_the_calls(function, tmp_path):
    exported = jax.export.export(jax.jit(function), platforms=["cpu"])(numbers())
    file = tmp_path / "program.jax"
    file.write_bytes(exported.serialize())
    first_of(nj.load(file), function)
