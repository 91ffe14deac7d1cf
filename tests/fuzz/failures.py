"""A failing program as a file that runs by itself, the smallest one last.

Hypothesis shrinks what fails by running smaller programs; every one that still fails
is written over the one before, so that what is left is what it reports.
"""

from __future__ import annotations

import os
from pathlib import Path

from tests.fuzz.program import PRELUDE, Program
from tests.fuzz.values import literal

FOLDER = Path(__file__).parents[2] / ".cache" / "fuzz"

_SCRIPT = '''\
"""{error}

Run it from the checkout, where `tests` is: PYTHONPATH=src:. python {name}
"""
{prelude}

{source}


from tests.fuzz.program import TRANSFORMATIONS
from tests.fuzz.ways import WAYS, emulated
from tests.conformance import bits

jax.config.update("jax_enable_x64", {x64})
args = [
{arguments}
]
function = program
{loss}
def transformed(f):
    return TRANSFORMATIONS[{transformation!r}](f, {floats})


def emulate(f):
    return emulated(f, {target!r}, {policy!r})


step = {step}
expected = bits.op_by_op(step, *args)
bits.assert_same(WAYS[{way!r}](step, args), expected, {way!r})
print("no difference")
'''
_LOSS = '''\


def function(*args):
    """The sum of the means of the float results."""
    means = [
        jnp.mean(r.astype(jnp.float32))
        for r in program(*args)
        if jnp.issubdtype(r.dtype, jnp.floating)
    ]
    return sum(means, jnp.float32(0))

'''


def folder() -> Path:
    """Where failing programs are written: FUZZ_FAILURES, or in the checkout's cache."""
    return Path(os.environ.get("FUZZ_FAILURES", FOLDER))


def write(
    program: Program, policy: str, outside: bool, way: str, seed: int, error: Exception
) -> Path:
    """Writes the program, and says where."""
    path = folder() / f"{policy}-{seed}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script(program, policy, outside, way, error, path.name))
    return path


def script(
    program: Program,
    policy: str,
    outside: bool,
    way: str,
    error: Exception,
    name: str = "it",
) -> str:
    """Python that runs the program op by op and the other way, and compares."""
    arrays = [literal(a) for a in program.argument_arrays()]
    lines = str(error).splitlines() or [type(error).__name__]
    return _SCRIPT.format(
        error=lines[0].replace('"', "'").replace("\\", "/"),
        name=name,
        prelude=PRELUDE,
        source=program.source(),
        arguments="\n".join(f"    jnp.asarray({text})," for text in arrays),
        loss=_LOSS if "grad" in program.transformation else "",
        transformation=program.transformation,
        floats=tuple(i for i, v in enumerate(program.inputs) if v.kind == "f"),
        target=program.target,
        policy=policy,
        x64=program.x64,
        way=way,
        step="transformed(emulate(function))"
        if outside
        else "emulate(transformed(function))",
    )
