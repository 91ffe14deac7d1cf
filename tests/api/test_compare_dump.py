"""`compare_dump` on devices whose bugs are known: NumPy, in orders of its own."""

import json

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from jax import lax
from typer.testing import CliRunner

import neuronjax as nj
from neuronjax.cli import app
from neuronjax.errors import InvalidProgramError
from tests.arrays import normal

ROWS, WIDTH, CLASSES = 16, 64, 10


def forward(p, x):
    with jax.named_scope("encoder"):
        h = jnp.tanh(x @ p["encoder"])
    with jax.named_scope("norm"):
        h = h * lax.rsqrt(jnp.mean(h * h, -1, keepdims=True) + 1e-6)
    with jax.named_scope("head"):
        return jax.nn.softmax(h @ p["head"])


PARAMS = {
    "encoder": normal(WIDTH, WIDTH) / 8,
    "head": normal(WIDTH, CLASSES, seed=1),
}
X = normal(ROWS, WIDTH, seed=2)


def narrow(x):
    return x.astype(ml_dtypes.bfloat16).astype(np.float32)


def device(epsilon=1e-6, dropped=None):
    """A chip that casts operands of matmuls to BF16, with or without a bug."""
    x, weights = narrow(X), narrow(PARAMS["encoder"])
    if dropped is not None:
        weights[dropped] = 0
    encoded = np.tanh(x[:, ::-1] @ weights[::-1])
    scale = np.mean(encoded * encoded, -1, keepdims=True) + np.float32(epsilon)
    normed = encoded / np.sqrt(scale)
    logits = narrow(normed) @ narrow(PARAMS["head"])
    e = np.exp(logits - logits.max(-1, keepdims=True))
    result = e / e.sum(-1, keepdims=True)
    return {"encoder": encoded, "model.norm.output": normed, "the result": result}


def compared(dump, **options):
    return nj.compare_dump(forward, dump, policy="bf16", **options)(PARAMS, X)


def test_a_right_device_is_legal():
    found = compared(device())
    assert found.is_legal
    assert found.first is None
    assert [t.tensor for t in found.tensors] == [*device()]
    assert {t.how for t in found.tensors} == {"name"}
    assert "all are within tolerance" in str(found)
    assert max(map(len, str(found).splitlines())) <= 80


def test_the_first_op_outside_is_named_and_no_later_one():
    """What follows is computed from the device's own values, and so is legal."""
    found = compared(device(epsilon=1e-3))
    [wrong] = found.outside
    assert wrong is found.first
    assert wrong.tensor == "model.norm.output"
    assert wrong.place is not None
    assert wrong.place.module == "norm"
    assert "test_compare_dump.py" in wrong.place.source
    assert wrong.since == ("encoder",)
    assert {"rsqrt", "add", "multiply"} <= {op.op for op in wrong.ops}
    assert all(op.module == "norm" for op in wrong.ops)
    assert wrong.checked.judged.refused > 1000
    text = str(found)
    assert "first outside its tolerance: model.norm.output, multiply in norm" in text
    assert "> h = h * lax.rsqrt" in text
    assert max(map(len, text.splitlines())) <= 80


def test_a_dropped_row_is_found_from_the_result_alone():
    """Without the tensors between, bounds add up and still tell."""
    right, wrong = ({"the result": device(dropped=d)["the result"]} for d in (None, 7))
    assert compared(right).is_legal
    first = compared(wrong).first
    assert first is not None
    assert set(first.since) == {"p/encoder", "p/head", "x"}
    assert {op.module for op in first.ops} == {"encoder", "norm", "head"}


@pytest.mark.slow
def test_a_tensor_in_a_narrower_format_was_rounded_when_saved():
    dump = {n: x.astype(ml_dtypes.bfloat16) for n, x in device().items()}
    assert compared(dump).is_legal
    dump["encoder"] = (dump["encoder"].astype(np.float32) * 1.02).astype(
        ml_dtypes.bfloat16
    )
    first = compared(dump).first
    assert first is not None
    assert first.tensor == "encoder"


def test_bytes_without_a_dtype_are_the_programs(tmp_path):
    """What np.load makes of BF16."""

    def function(x):
        return x.astype(jnp.bfloat16)

    np.save(tmp_path / "convert.npy", np.asarray(jnp.asarray(X, jnp.bfloat16)))
    assert np.load(tmp_path / "convert.npy").dtype.kind == "V"
    assert nj.compare_dump(function, tmp_path / "convert.npy")(X).is_legal


def test_other_arguments_are_the_first_difference():
    found = compared({"x": X + 1, **device()})
    assert found.first is not None
    assert found.first.place is None
    assert "the device got different numbers" in str(found)


def test_nan_is_outside():
    dump = device()
    dump["encoder"][0, 0] = np.nan
    first = compared(dump).first
    assert first is not None
    assert first.tensor == "encoder"
    assert first.checked.judged.non_finite == 1
    assert first.checked.index == (0, 0)


# -- matching --------------------------------------------------------------------------


def test_what_does_not_match_says_why():
    dump = device() | {
        "strange": np.zeros(3, np.float32),
        "head.weight": np.zeros((3, 3), np.float32),
        "broadcast_in_dim": np.zeros((ROWS, 1), np.float32),
        "encoded": np.zeros((ROWS, WIDTH), np.float32),
        "head/output": np.zeros((ROWS, CLASSES), np.float32),
    }
    found = compared(dump)
    why = {u.tensor: u.why for u in found.unmatched}
    assert "no value has this name" in why["strange"]
    assert "no value has this name" in why["head.weight"]
    assert why["broadcast_in_dim"].startswith("its name fits several values: ")
    assert why["encoded"].startswith("no unique match: its shape and dtype fit")
    assert "is already matched with 'the result'" in why["head/output"]
    assert len(found.tensors) == 3
    assert "unmatched: strange float32[3]" in str(found)


def test_a_name_with_another_shape_says_so():
    [left] = compared({"encoder": np.zeros((2, 2), np.float32)}).unmatched
    assert "is 16x64xfloat32" in left.why


def test_a_unique_shape_is_a_match():
    def function(x, w):
        return jnp.sum(x @ w, axis=0)

    w = normal(WIDTH, 4)
    product = narrow(X) @ narrow(w)
    found = nj.compare_dump(function, {"h1": product}, policy="bf16")(X, w)
    [tensor] = found.tensors
    assert tensor.how == "shape"
    assert tensor.name == "dot_general"
    assert found.is_legal


def test_names_can_be_given():
    dump = {"t0": device()["encoder"]}
    found = compared(dump, names={"t0": "encoder/tanh"})
    assert found.is_legal
    assert found.tensors[0].how == "given"
    with pytest.raises(InvalidProgramError, match="names maps 't0' to") as caught:
        compared(dump, names={"t0": "encoder/tan"})
    assert "encoder/tanh" in (caught.value.remedy or "")
    with pytest.raises(InvalidProgramError, match="which is not in the dump"):
        compared(dump, names={"t1": "encoder/tanh"})
    with pytest.raises(InvalidProgramError, match="has shape"):
        compared(dump, names={"t0": "the result"})


def test_calls_and_loops():
    """A function called twice is two values; what is in a loop has no tensor."""

    @jax.jit
    def layer(x, w):
        return jnp.tanh(x @ w)

    def function(x, w):
        x = layer(layer(x, w), w)
        total, rows = lax.scan(lambda c, r: (c + r, jnp.exp(c)), jnp.zeros(WIDTH), x)
        return total, rows

    w = normal(WIDTH, WIDTH, seed=3) / 8
    first = np.tanh(X @ w)
    second = np.tanh(first @ w)
    dump = {"tanh": first, "tanh.1": second, "0": second.sum(0)}
    found = nj.compare_dump(function, dump, policy="fp32")(X, w)
    assert found.is_legal, found
    assert len(found.tensors) == 3
    wrong = nj.compare_dump(function, dump | {"tanh.1": second + 1e-3}, policy="fp32")(
        X, w
    )
    assert [t.tensor for t in wrong.outside] == ["tanh.1", "0"]


def test_a_saved_program_is_compared_too(tmp_path):
    """As an exported PyTorch model: StableHLO with names of its own."""

    def flat(encoder, head, x):
        return forward({"encoder": encoder, "head": head}, x)

    arguments = PARAMS["encoder"], PARAMS["head"], X
    path = tmp_path / "model.mlir"
    path.write_text(nj.jit(flat).lower(*arguments).as_text())
    program = nj.load(path, policy="bf16")
    dump = {"the result": device()["the result"]}
    found = nj.compare_dump(program, dump)(*arguments)
    assert found.is_legal
    assert found.policy == "bf16"
    wrong = {"the result": device(epsilon=1e-2)["the result"]}
    assert not nj.compare_dump(program, wrong)(*arguments).is_legal


def test_the_command(tmp_path):
    def flat(encoder, head, x):
        return forward({"encoder": encoder, "head": head}, x)

    arguments = PARAMS["encoder"], PARAMS["head"], X
    model, inputs = tmp_path / "model.mlir", tmp_path / "inputs.npz"
    model.write_text(nj.jit(flat).lower(*arguments).as_text())
    np.savez(inputs, *arguments)

    def run(epsilon, *options):
        result = device(epsilon=epsilon)["the result"]
        np.savez(tmp_path / "dump.npz", **{"the result": result})
        words = ["compare-dump", str(model), str(tmp_path / "dump.npz")]
        words += ["--inputs", str(inputs), "--policy", "bf16", *options]
        return CliRunner().invoke(app, words)

    right = run(1e-6)
    assert right.exit_code == 0, right.output
    assert "all are within tolerance" in right.output
    wrong = run(1e-2, "--json")
    assert wrong.exit_code == 1
    assert json.loads(wrong.output)["first"] == "the result"


def test_what_is_no_file_is_an_error_before_any_call():
    with pytest.raises(InvalidProgramError, match="no such file"):
        nj.compare_dump(forward, "missing.safetensors")
