"""Tracebacks: the user's lines and the message, in scripts and in a real kernel."""

from __future__ import annotations

import re
import textwrap
import traceback

import jax
import jax.numpy as jnp
import nbformat
import pytest
from nbclient import NotebookClient

import neuronjax as nj

X = jnp.ones((4, 8))
#: More lines than that hide the user's on the first screen.
MOST_LINES = 25


def of_another_shape(x):
    return x @ x


def of_no_core(x):
    return jnp.linalg.qr(x)[0]


def interrupted(x):
    raise KeyboardInterrupt


def files(call):
    """The files of the traceback of an error, and the error."""
    with pytest.raises((Exception, KeyboardInterrupt)) as found:
        call()
    frames = traceback.extract_tb(found.value.__traceback__)
    return {frame.filename for frame in frames}, found.value


CALLS = {
    "call": lambda: nj.jit(of_another_shape)(X),
    "a verb": lambda: nj.compare(of_another_shape)(X),
    "unsupported": lambda: nj.jit(of_no_core)(X),
    "lower": lambda: nj.jit(of_no_core).lower(X),
    "under grad": lambda: jax.grad(lambda x: nj.jit(of_no_core)(x).sum())(X),
    "interrupt": lambda: nj.jit(interrupted)(X),
    "a policy": lambda: nj.jit(of_no_core, policy="bf61"),
    "a target": lambda: nj.profile(of_no_core, target="trn9")(X),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_frames_are_the_users(call):
    shown, _ = files(call)
    assert {f for f in shown if "/neuronjax/" in f or "/jax/_src/" in f} == set()
    assert __file__ in shown


def test_an_error_of_ours_comes_alone_and_quotes_the_line():
    _, error = files(CALLS["unsupported"])
    assert error.__cause__ is None
    assert error.__suppress_context__
    assert "    return jnp.linalg.qr(x)[0]\n  remedy:" in str(error)


LIBRARY = """
def interrupted(x):
    raise KeyboardInterrupt
def of_another_shape(x):
    return x @ x
"""


def test_an_interrupt_shows_no_library():
    """It may come anywhere, such as in a compiler that is called from here."""
    library, path = {}, "/usr/site-packages/llvmlite/ffi.py"
    exec(compile(LIBRARY, path, "exec"), library)
    shown, _ = files(lambda: nj.jit(library["interrupted"])(X))
    assert shown == {__file__}
    shown, _ = files(lambda: nj.jit(library["of_another_shape"])(X))
    assert shown == {__file__, path}


def test_jaxs_switch_shows_all():
    jax.config.update("jax_traceback_filtering", "off")
    try:
        shown, error = files(CALLS["unsupported"])
    finally:
        jax.config.update("jax_traceback_filtering", "auto")
    assert any("/neuronjax/lowering/" in f for f in shown)
    assert error.__cause__ is not None


# -- in a kernel -----------------------------------------------------------------------

DEFINITIONS = """
import jax, jax.numpy as jnp, neuronjax as nj
from flax import nnx
x = jnp.ones((4, 8))
def own(x):
    return x @ x
def qr(x):
    return jnp.linalg.qr(x)[0]
def codes(x):
    return x.astype(jnp.float8_e4m3b11fnuz) * 1
def interrupted(x):
    raise KeyboardInterrupt
class Net(nnx.Module):
    def __init__(self):
        self.a = nnx.Linear(8, 16, rngs=nnx.Rngs(0))
    def __call__(self, x):
        return self.a(x) @ self.a(x)
net = Net()
applied = lambda net, x: net(x)
"""
#: A cell of ours, and the native cell whose traceback is no shorter.
CELLS = {
    "nj.jit(own)(x)": "jax.jit(own)(x)",
    "nj.compare(own)(x)": "jax.jit(own)(x)",
    "nj.jit(applied)(net, x)": "nnx.jit(applied)(net, x)",
    "nj.jit(nnx.jit(applied))(net, x)": "nnx.jit(applied)(net, x)",
    "nj.jit(interrupted)(x)": "jax.jit(interrupted)(x)",
    "nj.jit(qr)(x)": None,
    "nj.jit(qr).lower(x)": None,
    "nj.profile(qr)(x)": None,
    "jax.grad(lambda x: nj.jit(qr)(x).sum())(x)": None,
    "nj.jit(lambda x: x @ x.T, target='trn1', policy='mxfp8')(x)": None,
    "nj.jit(codes)(x)": None,
    "nj.study(lambda jit, seed: [jit(qr)(x)], policies=['bf16'])": None,
}


@pytest.mark.slow
def test_tracebacks_in_a_kernel_fit_on_a_screen():
    cells = [DEFINITIONS, *CELLS, *filter(None, CELLS.values())]
    made = [nbformat.v4.new_code_cell(textwrap.dedent(c)) for c in cells]
    notebook = nbformat.v4.new_notebook(cells=made)
    NotebookClient(notebook, timeout=600, allow_errors=True).execute()
    texts = {
        cell.source: re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(output.traceback))
        for cell in notebook.cells
        for output in cell.outputs
        if output.output_type == "error"
    }
    lines = {source: len(text.splitlines()) for source, text in texts.items()}
    for source, native in CELLS.items():
        assert lines[source] <= (lines[native] if native else MOST_LINES), source
    for source, text in texts.items():
        if "(qr)" in source:
            assert "at: In[1]:7\n      return jnp.linalg.qr(x)[0]\n" in text
            assert "/ipykernel_" not in text
