"""Saved programs: every format from every source, called as what was saved."""

from __future__ import annotations

import dataclasses
import importlib
import io
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

import neuronjax as nj
from neuronjax.capture import artifacts, parsing
from tests.capture import saved
from tests.conformance.bits import assert_same, op_by_op

ARGS, KWARGS = saved.arguments()
FLAT = jax.tree.leaves((ARGS, KWARGS))


@pytest.fixture(scope="module")
def program() -> Any:
    return saved.lowered(saved.network, *ARGS, **KWARGS)


@pytest.fixture(scope="module")
def artifact() -> bytes:
    return saved.exported(saved.network, *ARGS, **KWARGS)


@pytest.fixture(scope="module")
def expected() -> Any:
    return nj.jit(saved.network)(*ARGS, **KWARGS)


def add(x: jax.Array, y: jax.Array) -> jax.Array:
    return x + y


X, Y = jnp.arange(4.0), jnp.ones(4)


@pytest.fixture(scope="module")
def small() -> bytes:
    return saved.FORMATS["mlir"](saved.lowered(add, X, Y))


def mlir(body: str, arguments: str = "%x: tensor<4xf32>", results: str = "") -> bytes:
    """Text of a program that returns what `body` defines as %r."""
    results = results or "tensor<4xf32>"
    return (
        f"func.func @main({arguments}) -> {results} {{\n{body}\n"
        f"  return %r : {results}\n}}"
    ).encode()


# ---- Formats and sources.


@pytest.mark.slow_cases("mlir", "portable artifact", "hlo text")
@pytest.mark.parametrize("form", saved.FORMATS)
def test_every_format_has_the_bits_of_jit(form, program, expected):
    loaded = nj.load(saved.FORMATS[form](program))
    results = loaded.compile()(*FLAT)
    assert isinstance(results, tuple)
    assert_same(results, tuple(jax.tree.leaves(expected)))


@pytest.mark.slow
def test_a_jax_export_artifact_keeps_its_pytrees(artifact, expected):
    compiled = nj.load(artifact).compile()
    assert_same(compiled(*ARGS, **KWARGS), expected)
    assert_same(op_by_op(compiled, *ARGS, **KWARGS), expected)


@pytest.mark.slow
def test_an_artifact_of_the_policy_asked_for(artifact):
    step = nj.jit(saved.network, target="trn1", policy="bf16")
    compiled = nj.load(artifact, target="trn1", policy="bf16").compile()
    assert_same(compiled(*ARGS, **KWARGS), step(*ARGS, **KWARGS))


def test_a_policy_scope_counts(artifact):
    with nj.policy_scope("bf16"):
        scoped = nj.load(artifact)
    assert scoped.as_text("instructions") == nj.load(artifact, policy="bf16").as_text(
        "instructions"
    )


def test_load_accepts_paths_bytes_and_files(tmp_path, small):
    path = tmp_path / "program"  # the name tells nothing
    path.write_bytes(small)
    sources = [path, str(path), small, bytearray(small), memoryview(small)]
    wanted = nj.load(small).as_text("instructions").replace("the program", path.name)
    for source in [*sources, io.BytesIO(small), io.StringIO(small.decode())]:
        found = nj.load(source).as_text("instructions")
        assert found.replace("the program", path.name) == wanted
    with path.open("rb") as binary, path.open() as text:
        assert nj.load(binary).as_text("instructions") == wanted
        assert nj.load(text).as_text("instructions") == wanted


def test_locations_name_the_line_of_the_file(tmp_path):
    path = tmp_path / "model.mlir"
    path.write_bytes(
        mlir('  %r = "stablehlo.rng_bit_genera"(%x) : (tensor<4xf32>) -> tensor<4xf32>')
    )
    with pytest.raises(nj.InvalidProgramError, match="rng_bit_genera"):
        nj.load(path)
    path.write_bytes(mlir("  %r = stablehlo.add %x, %x : tensor<4xf32>"))
    op = next(nj.load(path).program.walk())
    assert op.location.source == f"{path}:2"


@pytest.mark.slow
def test_argument_names_are_pytree_paths(program, artifact):
    text = saved.FORMATS["mlir with locations"](program)
    names = ("params/b", "params/w", "x", "scale")
    assert nj.load(text).program.argument_names == names
    assert nj.load(artifact).program.argument_names == names
    rule = nj.Rule(param=r"params/w", auto_cast="matmult", auto_cast_type="bf16")
    policy = nj.Policy(rules=(rule,))
    assert_same(
        nj.load(artifact, policy=policy).compile()(*ARGS, **KWARGS),
        nj.jit(saved.network, policy=policy)(*ARGS, **KWARGS),
    )


def test_what_a_lowered_and_a_compiled_tell(small):
    lowered = nj.load(small)
    assert "stablehlo.add" in lowered.as_text()
    assert [i.name for i in lowered.instructions] == ["tensor_tensor"]
    args, kwargs = lowered.args_info
    assert [a.shape for a in args] == [(4,), (4,)]
    assert not kwargs
    compiled = lowered.compile()
    assert compiled.as_text() == lowered.as_text("instructions")
    assert compiled.cost_analysis() is not None
    assert compiled.memory_analysis() is not None


def test_one_result_is_an_array_and_no_result_an_empty_tuple(small):
    assert_same(nj.load(small).compile()(X, Y), X + Y)
    none = b"func.func @main(%x: tensor<4xf32>) { return }"
    assert nj.load(none).compile()(X) == ()


def test_calling_again_does_not_compile_again(small, caplog):
    compiled = nj.load(small).compile()
    with jax.log_compiles():
        first = compiled(X, Y)
        caplog.clear()
        assert_same(compiled(X, Y), first)
    assert "Compiling" not in caplog.text


# ---- The calling convention of jax.export.


class Pair(NamedTuple):
    left: Any
    right: Any


def test_unused_arguments_are_dropped_and_checked():
    data = saved.exported(lambda used, unused: used["a"] * 2, {"a": X, "b": Y}, Y)
    lowered = nj.load(data)
    assert lowered.program.argument_names == ("used/a",)
    assert_same(lowered.compile()({"a": X, "b": Y}, Y), X * 2)
    with pytest.raises(nj.InvalidProgramError, match=r"argument arg2 is float32\[3\]"):
        lowered.compile()({"a": X, "b": Y}, jnp.ones(3))


def test_registered_pytrees():
    export.register_namedtuple_serialization(Pair, serialized_name="tests.Pair")
    data = saved.exported(lambda p: Pair(p.right, [p.left, None, ()]), Pair(X, Y))
    assert_same(nj.load(data).compile()(Pair(X, Y)), Pair(Y, [X, None, ()]))


def test_an_unregistered_pytree_is_named():
    data = saved.exported(lambda p: p.left, Pair(X, Y))
    with pytest.raises(nj.InvalidProgramError, match=r"tests\.PaiX"):
        nj.load(data.replace(b"tests.Pair", b"tests.PaiX"))


def test_complex_arguments_and_results():
    x = jnp.asarray([1 + 2j, 3 - 1j], jnp.complex64)
    loaded = nj.load(saved.exported(lambda x: (x * x, jnp.real(x)), x)).compile()
    assert_same(loaded(x), (x * x, jnp.real(x)))


@pytest.mark.slow
def test_saved_programs_take_typed_keys():
    def draw(key: jax.Array) -> Any:
        first, second = jax.random.split(key)
        return first, jax.random.bits(second, (5,))

    key = jax.random.key(3)
    loaded = nj.load(saved.exported(draw, key)).compile()
    assert_same(loaded(key), nj.jit(draw)(key))


@pytest.mark.slow
def test_the_platform_of_several_is_neuron():
    def which(x: jax.Array) -> jax.Array:
        return jax.lax.platform_dependent(
            x, cpu=lambda x: x + 1, neuron=lambda x: x * 2, default=lambda x: x - 1
        )

    for platforms in (("cpu", "neuron"), ("neuron", "cuda", "tpu"), ("neuron",)):
        lowered = nj.load(saved.exported(which, X, platforms=platforms))
        assert_same(lowered.compile()(X), X * 2)
        assert ("case" in lowered.as_text()) == (len(platforms) == 1)
    assert_same(
        nj.load(saved.exported(which, X, platforms=("cuda", "cpu"))).compile()(X), X - 1
    )


@pytest.mark.slow
def test_gradients_of_an_artifact_that_holds_its_derivative():
    def loss(params: dict, x: jax.Array) -> jax.Array:
        return jnp.sum(x * params["w"] * params["w"] * params["n"])

    params = {"w": Y * 3, "n": jnp.int32(3), "unused": X}
    data = saved.exported(loss, params, X, vjp_order=1)
    gradient = jax.grad(nj.load(data).compile(), allow_int=True)
    found = gradient(params, X)
    assert jax.tree.structure(found) == jax.tree.structure(params)
    assert_same(found["w"], X * 18)
    assert found["n"].dtype == jax.dtypes.float0
    assert_same(found["unused"], jnp.zeros(4))
    assert_same(op_by_op(gradient, params, X), found)


# ---- Under JAX's transformations.


@pytest.mark.slow
def test_inside_an_outer_jit_a_scan_and_op_by_op(small):
    compiled = nj.load(small).compile()
    wanted = compiled(X, Y)
    assert_same(jax.jit(compiled)(X, Y), wanted)
    assert_same(op_by_op(compiled, X, Y), wanted)
    mapped = jax.lax.map(lambda x: compiled(x, Y), jnp.stack([X, Y]))
    assert_same(mapped[0], wanted)


def test_transformations_that_need_a_derivative(small):
    compiled = nj.load(small).compile()
    for transformed, what in (
        (jax.jacrev(compiled), "without a derivative.*vjp_order"),
        (jax.jacfwd(compiled), "without a derivative"),
        (nj.jit(jax.grad(lambda x, y: compiled(x, y).sum())), "without a derivative"),
    ):
        with pytest.raises(nj.UnsupportedError, match=f"(?s){what}"):
            transformed(X, Y)


@pytest.mark.slow
def test_stochastic_rounding(artifact):
    policy = nj.Policy(rounding="stochastic", seed=3, auto_cast="matmult")
    compiled = nj.load(artifact, policy=policy).compile()
    step = nj.jit(saved.network, policy=policy)
    seeded = step.with_rounding_seed(1)(*ARGS, **KWARGS)
    assert_same(compiled.with_rounding_seed(1)(*ARGS, **KWARGS), seeded)
    first, second = (compiled(*ARGS, **KWARGS) for _ in range(2))  # calls 0 and 1
    assert_same(second, seeded)
    assert_same(first, step.with_rounding_seed(0)(*ARGS, **KWARGS))
    traced = jax.jit(lambda i: compiled.with_rounding_seed(i)(*ARGS, **KWARGS))
    assert_same(traced(1), seeded)
    with pytest.raises(nj.InvalidProgramError, match="with_rounding_seed"):
        jax.jit(lambda: compiled(*ARGS, **KWARGS))()


@pytest.mark.slow
def test_delayed_scaling(artifact):
    policy = dataclasses.replace(nj.Policy.preset("fp8"), scaling="delayed")
    step = nj.jit(saved.network, policy=policy)
    lowered = nj.load(artifact, policy=policy)
    compiled, history = lowered.compile(), lowered.init_amax_history()
    with pytest.raises(nj.InvalidProgramError, match="init_amax_history"):
        compiled(*ARGS, **KWARGS)
    found = compiled.with_amax_history(history)(*ARGS, **KWARGS)
    assert_same(found, step.with_amax_history(history)(*ARGS, **KWARGS))


# ---- Wrong calls.


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ((X,), "takes 2 positional arguments, 1 were given"),
        ((X, Y, Y), "3 were given"),
        ((X, jnp.ones(3)), r"argument y is float32\[3\].*float32\[4\]"),
        ((X, jnp.ones(4, jnp.bfloat16)), r"argument y is bfloat16\[4\]"),
        ((X, "text"), "argument y is a str"),
        ((X, 1.0), r"argument y is float32\[\]"),
    ],
)
def test_wrong_arguments_of_a_flat_program(args, message, program):
    text = saved.lowered(add, X, Y)
    compiled = nj.load(saved.FORMATS["mlirbc"](text)).compile()
    with pytest.raises(nj.InvalidProgramError, match=f"(?s){message}"):
        compiled(*args)


def test_numbers_and_numpy_arrays_are_arguments(artifact, small):
    compiled = nj.load(artifact).compile()
    assert_same(
        compiled(*jax.tree.map(np.asarray, ARGS), scale=1.5),
        compiled(*ARGS, **KWARGS),
    )
    with pytest.raises(nj.InvalidProgramError, match="keywords y"):
        nj.load(small).compile()(X, y=Y)


def test_calls_with_other_pytrees_are_refused(artifact):
    compiled = nj.load(artifact).compile()
    with pytest.raises(
        nj.InvalidProgramError, match=r"(?s)is called with.*saved structure"
    ):
        compiled(*ARGS)
    params = {**ARGS[0], "b": jnp.arange(8)}
    with pytest.raises(nj.InvalidProgramError, match=r"params/b is int32\[8\]"):
        compiled(params, ARGS[1], **KWARGS)


def test_64_bit_types_need_x64():
    data = mlir(
        "  %r = stablehlo.add %x, %x : tensor<4xi64>",
        "%x: tensor<4xi64>",
        "tensor<4xi64>",
    )
    lowered = nj.load(data)
    with pytest.raises(nj.InvalidProgramError, match="enable_x64"):
        lowered.compile()
    with jax.enable_x64(True):
        x = jnp.arange(4) + (1 << 40)
        assert_same(lowered.compile()(x), x + x)


# ---- Normal form.


def ones(*shape: int) -> jax.Array:
    return jnp.arange(float(np.prod(shape))).reshape(shape)


@pytest.mark.slow_cases("deprecated batched einsum")
@pytest.mark.parametrize(
    ("data", "args", "wanted"),
    [
        pytest.param(
            mlir(
                "%r = stablehlo.dot %a, %x : (tensor<4x4xf32>, tensor<4xf32>) "
                "-> tensor<4xf32>",
                "%x: tensor<4xf32>, %a: tensor<4x4xf32>",
            ),
            (X, ones(4, 4)),
            ones(4, 4) @ X,
            id="deprecated dot",
        ),
        pytest.param(
            mlir(
                '%r = "stablehlo.einsum"(%a, %x) {einsum_config = "ab,b->a"} : '
                "(tensor<4x4xf32>, tensor<4xf32>) -> tensor<4xf32>",
                "%x: tensor<4xf32>, %a: tensor<4x4xf32>",
            ),
            (X, ones(4, 4)),
            ones(4, 4) @ X,
            id="deprecated einsum",
        ),
        pytest.param(
            mlir(
                '%r = "stablehlo.einsum"(%x, %y) {einsum_config = "bmk,bkn->nbm"} : '
                "(tensor<2x3x4xf32>, tensor<2x4x5xf32>) -> tensor<5x2x3xf32>",
                "%x: tensor<2x3x4xf32>, %y: tensor<2x4x5xf32>",
                "tensor<5x2x3xf32>",
            ),
            (ones(2, 3, 4), ones(2, 4, 5)),
            jnp.einsum("bmk,bkn->nbm", ones(2, 3, 4), ones(2, 4, 5)),
            id="deprecated batched einsum",
        ),
        pytest.param(
            mlir(
                "%r = stablehlo.broadcast %x, sizes = [2] : (tensor<4xf32>) "
                "-> tensor<2x4xf32>",
                results="tensor<2x4xf32>",
            ),
            (X,),
            jnp.stack([X, X]),
            id="deprecated broadcast",
        ),
        pytest.param(
            mlir(
                """%s = stablehlo.constant dense<2> : tensor<2xi32>
  %d = stablehlo.dynamic_reshape %x, %s : (tensor<4xf32>, tensor<2xi32>)
    -> tensor<?x?xf32>
  %e = stablehlo.add %d, %d : tensor<?x?xf32>
  %r = stablehlo.dynamic_reshape %e, %s : (tensor<?x?xf32>, tensor<2xi32>)
    -> tensor<2x2xf32>""",
                results="tensor<2x2xf32>",
            ),
            (X,),
            2 * X.reshape(2, 2),
            id="constant shapes",
        ),
        pytest.param(
            mlir(
                """%t = stablehlo.tuple %x, %x : tuple<tensor<4xf32>, tensor<4xf32>>
  %r = stablehlo.get_tuple_element %t[1] :
    (tuple<tensor<4xf32>, tensor<4xf32>>) -> tensor<4xf32>"""
            ),
            (X,),
            X,
            id="tuple",
        ),
        pytest.param(
            mlir(
                '%r = "mhlo.add"(%x, %x) : (tensor<4xf32>, tensor<4xf32>) '
                "-> tensor<4xf32>"
            ),
            (X,),
            X + X,
            id="mhlo",
        ),
        pytest.param(
            b"""func.func private @twice(%x: tensor<4xf32>) -> tensor<4xf32> {
  %0 = stablehlo.add %x, %x : tensor<4xf32>
  return %0 : tensor<4xf32>
}
func.func public @entry(%x: tensor<4xf32> {mhlo.sharding = "{replicated}"})
    -> tensor<4xf32> {
  %0 = call @twice(%x) : (tensor<4xf32>) -> tensor<4xf32>
  return %0 : tensor<4xf32>
}""",
            (X,),
            X + X,
            id="entry of another name",
        ),
    ],
)
def test_normal_form(data, args, wanted):
    assert_same(nj.load(data).compile()(*args), wanted)


@pytest.mark.parametrize(
    "op",
    [
        "chlo.erf %x : tensor<4xf32> -> tensor<4xf32>",
        "mhlo.erf %x : tensor<4xf32>",
        "stablehlo.custom_call @mhlo.erf(%x) {mhlo.attributes = {}, mhlo.version = 1 : "
        "i64} : (tensor<4xf32>) -> tensor<4xf32>",
    ],
)
def test_elementary_functions_stay_whole(op):
    lowered = nj.load(mlir(f"%r = {op}"))
    assert [o.name for o in lowered.program.walk()] == ["chlo.erf"]


def test_top_k_of_hlo_stays_whole():
    program = saved.lowered(lambda x: jax.lax.top_k(x, 2), X)
    data = saved.FORMATS["hlo proto"](program)
    code = parsing.parse(data, "HLO proto")
    assert b"top_k" in code
    assert b"mhlo.topk" not in code


# ---- Programs that are refused.


DYNAMIC = mlir(
    "%r = stablehlo.add %x, %x : tensor<?xf32>", "%x: tensor<?xf32>", "tensor<?xf32>"
)
REFUSED = [
    (b"", "is empty"),
    (b"\x00\x01\x02 nothing known", "format is not known"),
    (b"\x89PNG\r\n\x1a\n" + bytes(200), "format is not known"),
    (b"some text", "MLIR text cannot be read"),
    (b"HloModule m\n nothing", "HLO text cannot be read"),
    (b"module {}", "no function main, and 0 functions"),
    (b"func.func private @main(tensor<4xf32>) -> tensor<4xf32>", "has no body"),
    (mlir("%r = call @main(%x) : (tensor<4xf32>) -> tensor<4xf32>"), "calls itself"),
    (mlir("%r = stablehlo.add %x, %y : tensor<4xf32>"), "undeclared SSA value"),
    (
        b"func.func @a() { return }\nfunc.func @b() { return }",
        "2 functions are public: a, b",
    ),
    (
        b"func.func @main() {\n cf.br ^bb1\n^bb1:\n return\n}",
        "region has 2 blocks",
    ),
    (
        mlir(
            "%r = stablehlo.constant dense<1.0> : tensor<99999x99999xf32>",
            results="tensor<99999x99999xf32>",
        ),
        r"has 4e\+10 bytes",
    ),
    (b"ML\xefR\rStableHLO_v999.0.0\x00rest", "999.0.0; this jaxlib reads up to"),
    (b"ML\xefR\x99\x99", "MLIR bytecode"),
    (b"module {" * 10_000, "crashes jaxlib's parser|cannot be read"),
    (DYNAMIC, "dynamic dimension"),
    (
        mlir(
            "%r = stablehlo.add %x, %x : tensor<4xf64>",
            "%x: tensor<4xf64>",
            "tensor<4xf64>",
        ),
        "float64",
    ),
]


@pytest.mark.parametrize(("data", "message"), REFUSED, ids=[m for _, m in REFUSED])
def test_unreadable_programs_are_refused_with_a_remedy(data, message):
    with pytest.raises(nj.NeuronJaxError, match=message) as caught:
        nj.load(data)
    assert caught.value.remedy


def test_load_refuses_what_is_not_a_program(tmp_path):
    for source, message in (
        (tmp_path / "nothing.mlir", "No such file"),
        (tmp_path, "Is a directory"),
        ("func.func @main() { return }", "No such file"),
        ("\0", "null"),
        (3, "cannot load a int"),
    ):
        with pytest.raises(nj.InvalidProgramError, match=message):
            nj.load(source)


(_DEBUG,) = jax.make_jaxpr(lambda: jax.debug.print(""))().effects
_Effect: Any = type(_DEBUG).__base__


class Printing(_Effect):
    """An effect that JAX can save: its class makes equal ones without arguments."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Printing)

    def __hash__(self) -> int:
        return 0


def test_artifacts_that_are_refused():
    pure = export.export(jax.jit(add), platforms=["cpu"])(X, Y)
    effectful = dataclasses.replace(pure, unordered_effects=(Printing(),))
    with pytest.raises(nj.UnsupportedError, match="effect Printing"):
        nj.load(bytes(effectful.serialize()))


def test_symbolic_sizes_have_no_program_without_arguments():
    symbolic = export.symbolic_shape("b, 4")
    dynamic = jax.ShapeDtypeStruct(symbolic, jnp.float32)
    data = saved.exported(add, dynamic, dynamic)
    with pytest.raises(
        nj.UnsupportedError, match="symbolic sizes, which only arguments decide"
    ):
        artifacts.read_artifact(data)


def test_optimized_hlo_is_refused_by_name():
    compiled = jax.jit(lambda x: jnp.tanh(x * 2 + 1) * 3).lower(X).compile()
    with pytest.raises(nj.NeuronJaxError) as caught:
        nj.load((compiled.as_text() or "").encode())
    assert caught.value.remedy


def test_an_artifact_whose_signature_is_another_programs(artifact):
    other = saved.exported(lambda x: x * 2, X)
    wanted = export.deserialize(bytearray(other))
    for found in (artifacts.read_exported(other), artifacts.read_exported(artifact)):
        assert found.in_tree is not None
    assert artifacts.read_exported(other).in_tree == wanted.in_tree
    assert artifacts.read_exported(other).module == wanted.mlir_module_serialized


# ---- The other process.


@pytest.mark.slow
def test_a_crash_and_a_timeout_leave_a_working_loader(small, monkeypatch):
    crash = b"module {" * 10_000
    for data in (crash, small, crash):
        if data is small:
            assert nj.load(data).compile()(X, Y) is not None
            continue
        with pytest.raises(nj.InvalidProgramError):
            nj.load(data)
    monkeypatch.setattr(parsing, "SECONDS", 0.02)
    slow = b"module {" + b"func.func private @f()\n" * 200_000 + b"}"
    with pytest.raises(nj.InvalidProgramError, match=r"CPU seconds|redefinition"):
        nj.load(slow)
    monkeypatch.undo()
    assert nj.load(small).instructions


def test_threads_share_the_process(small):
    found: list[int] = []

    def work() -> None:
        found.extend(len(nj.load(small).instructions) for _ in range(5))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 20


SCRIPT = """
import os, sys, json
import neuronjax as nj
data = open(sys.argv[1], "rb").read()
assert nj.load(data).instructions
from neuronjax.capture import parsing
child = parsing._workers[0]._process.pid
if (pid := os.fork()) == 0:
    assert not parsing._workers
    assert nj.load(data).instructions
    parsing.stop()
    os._exit(0)
assert os.waitpid(pid, 0)[1] == 0
assert nj.load(data).instructions and parsing._workers[0]._process.pid == child
print(child)
"""


@pytest.mark.slow
def test_forks_and_exits_leave_no_process(tmp_path, small):
    """From a script on standard input: `__main__` is not importable."""
    path = tmp_path / "program"
    path.write_bytes(small)
    done = subprocess.run(
        [str(sys.executable), "-W", "ignore", "-", str(path)],
        input=SCRIPT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert not Path(f"/proc/{json.loads(done.stdout)}").exists()


def test_private_names_of_jaxlib_exist():
    """Those that `parse_child` uses; a public name takes their place when they move."""
    for module, names in {
        "jaxlib._jax": ["mlir"],
        "jaxlib._hlo": ["hlo_module_from_text"],
        "jaxlib.mlir._mlir_libs._jax_mlir_ext": ["register_dialects"],
        "jaxlib.mlir.dialects.mhlo": ["register_mhlo_dialect"],
    }.items():
        found = importlib.import_module(module)
        assert all(hasattr(found, name) for name in names)
    functions = importlib.import_module("jaxlib._jax").mlir
    assert functions.hlo_to_stablehlo
    assert functions.mhlo_to_stablehlo
