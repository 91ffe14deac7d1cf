"""The line of an op: the innermost of the user's own, however calls are nested."""

import pytest
from jax.extend.mlir import ir
from jax.interpreters.mlir import make_ir_context

from neuronjax.capture.decode import decode_location

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
