"""The line of an op: the innermost of the user's own, however calls are nested."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

import neuronjax as nj
from neuronjax.capture.decode import decode_location
from neuronjax.execution.transformations import Emulation

USER, CALLER = "/home/u/model.py", "/home/u/train.py"
LIBRARY = "/site-packages/jax/_src/lax/lax.py"


def at(file: str, line: int) -> ir.Location:
    return ir.Location.name("f", ir.Location.file(file, line, 1))


def called(callee: ir.Location, *callers: ir.Location) -> ir.Location:
    return ir.Location.callsite(callee, list(callers))


@pytest.mark.parametrize(
    ("make", "line"),
    [
        (lambda: at(USER, 4), 4),
        (lambda: called(at(LIBRARY, 9), at(USER, 5), at(CALLER, 6)), 5),
        # In the body of a scan, as JAX 0.12 has it: a call site of call sites.
        (lambda: called(called(at(USER, 4), at(USER, 7)), at(CALLER, 8)), 4),
        (lambda: called(called(at(LIBRARY, 9), at(LIBRARY, 3)), at(USER, 7)), 7),
    ],
)
def test_the_innermost_frame_of_the_users(make, line):
    with make_ir_context():
        found = decode_location(ir.Location.name("jit(f)/while/body/mul", make()))
    assert (found.scope, found.file, found.line) == (
        "jit(f)/while/body/mul",
        USER,
        line,
    )


def test_without_a_line_of_the_users_the_librarys():
    with make_ir_context():
        found = decode_location(called(at(LIBRARY, 9), at(LIBRARY, 3)))
        assert (found.file, found.line) == (LIBRARY, 9)
        assert decode_location(ir.Location.unknown()).file == ""


EMULATOR = str(Path(nj.__file__).parent / "execution/transformations.py")


def test_a_line_of_the_emulator_is_never_the_users():
    with make_ir_context():
        found = decode_location(called(at(EMULATOR, 1), at(EMULATOR, 2)))
        library = decode_location(called(at(EMULATOR, 1), at(LIBRARY, 3)))
    assert (found.file, found.line) == ("", 0)
    assert (library.file, library.line) == (LIBRARY, 3)


@jax.custom_vjp
def bent(x):
    return jnp.sin(x)  # line of the primal


def _forward(x):
    return bent(x), x


def _backward(x, ct):
    return (jnp.exp(x) * ct,)


bent.defvjp(_forward, _backward)


def loss(x):
    return jnp.sum(bent(x) * x)  # line of the calls


def in_a_scan(x):
    return jax.lax.scan(lambda c, _: (bent(c), None), x, None, 2)[0].sum()


@pytest.mark.slow_except("<lambda>1-loss", "<lambda>5-in_a_scan")
@pytest.mark.parametrize("function", [loss, in_a_scan])
@pytest.mark.parametrize(
    "derived",
    [
        lambda f: jax.grad(nj.jit(f)),
        lambda f: jax.jit(jax.grad(nj.jit(f))),
        lambda f: jax.vmap(jax.grad(nj.jit(f))),
        lambda f: jax.grad(lambda x: jax.vmap(nj.jit(f))(x).sum()),
        lambda f: jax.jacrev(jax.grad(nj.jit(f))),
        lambda f: nj.jit(jax.grad(f)),
    ],
)
def test_ops_of_a_derivative_have_the_lines_of_the_function(
    derived, function, monkeypatch
):
    seen = []

    def lower(self, program, _lower=Emulation.lower):
        seen.extend(program.walk())
        return _lower(self, program)

    monkeypatch.setattr(Emulation, "lower", lower)
    derived(function)(jnp.ones((3, 3)))
    own = {op.location.file for op in seen}
    assert own <= {__file__, ""}
    named = [
        op for op in seen if op.name in {"stablehlo.sine", "stablehlo.exponential"}
    ]
    assert named
    assert all(op.location.file == __file__ for op in named)


def test_an_error_in_a_derivative_names_the_users_line():
    @jax.custom_vjp
    def root(x):
        return jnp.tanh(x)

    root.defvjp(
        lambda x: (root(x), x),
        lambda x, ct: (jnp.linalg.eigvals(x).real * ct,),
    )
    with pytest.raises(nj.UnsupportedError, match=r"at: .*test_locations.py:\d+"):
        jax.grad(nj.jit(lambda x: root(x).sum()))(jnp.eye(4))


def summed(x):
    return jax.lax.scan(lambda total, row: (total + row, total), x[0], x)  # summed


def doubled(x):
    _, first = jax.lax.scan(lambda total, row: (total, row * 2), x[0], x)  # doubled
    _, second = jax.lax.scan(lambda total, row: (total, row * 3), x[0], x)  # tripled
    return first, second


def lines_of(function, name):
    """What stands at the end of the lines that ops of a name have."""
    compared = nj.compare(function, policy="bf16")(jnp.ones((4, 3)))
    places = [o.source.rpartition(":")[2] for o in compared.ops if o.op == name]
    text = Path(__file__).read_text().splitlines()
    return [text[int(line) - 1].rpartition("# ")[2] for line in places]


@pytest.mark.parametrize("op", ["dynamic_slice", "dynamic_update_slice"])
def test_a_scan_has_its_own_lines_after_one_like_it(op):
    """JAX keeps what it traced of its own functions, with lines of the first caller."""
    name = f"stablehlo.{op}"
    assert lines_of(summed, name) == ["summed"]
    assert lines_of(doubled, name) == ["doubled", "tripled"]
