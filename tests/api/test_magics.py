"""`%emulate` in a shell that only keeps what it is told, and in a real kernel."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace

import jax
import nbformat
import pytest
from IPython.core.error import UsageError
from nbclient import NotebookClient

import neuronjax as nj


class Shell:
    """Runs a cell as Python."""

    def __init__(self):
        self.names, self.execution_count = {}, 2
        nj.load_ipython_extension(self)

    def register_magic_function(self, function, kind):
        assert kind == "line_cell"
        self.emulate = function

    def run_cell(self, source):
        self.source = source
        failed = True
        with contextlib.suppress(Exception):
            exec(source, self.names)
            failed = False
        return SimpleNamespace(success=not failed)


@pytest.fixture
def shell():
    made = Shell()
    yield made
    made.emulate("off")


def policy_of_jit():
    return getattr(getattr(jax.jit(lambda x: x), "policy", None), "name", None)


def test_from_here_on_until_it_is_off(shell):
    shell.emulate("trn2 fp8")
    assert policy_of_jit() == "fp8"
    shell.emulate("trn1 bf16")
    assert policy_of_jit() == "bf16"
    shell.emulate("off")
    assert policy_of_jit() is None


def test_a_cell_alone(shell):
    shell.emulate("trn1 bf16")
    shell.emulate("trn2 fp8", "import jax\nmade = jax.jit(lambda x: x)\n")
    assert shell.names["made"].policy.name == "fp8"
    assert shell.source.startswith("#\nimport")  # lines are those of the notebook
    assert policy_of_jit() == "bf16"
    with pytest.raises(UsageError, match="cell failed"):
        shell.emulate("trn2 fp8", "unknown")


@pytest.mark.parametrize(
    ("line", "told"), [("", "TARGET"), ("trn9", "trn2"), ("trn2 fp9", "fp8")]
)
def test_what_is_no_setting_is_a_line_and_changes_nothing(shell, line, told):
    shell.emulate("trn1 bf16")
    with pytest.raises(UsageError, match=told):
        shell.emulate(line)
    assert policy_of_jit() == "bf16"


CELLS = """
%load_ext neuronjax
%emulate trn2 fp8
import jax, jax.numpy as jnp
x = jnp.linspace(0, 1, 16).reshape(4, 4)
rough = jax.jit(lambda x: x @ x)(x)
%emulate off
bool((rough != jax.jit(lambda x: x @ x)(x)).any())
---
%%emulate trn2 bf16
def qr(x):
    return jnp.linalg.qr(x)[0]
jax.jit(qr)(x)
---
import neuronjax as nj
nj.profile(lambda x: x @ x)(x).plot("timeline")
---
import neuronjax as nj
nj.profile(lambda x: x @ x)(x).plot("timeline")
print("below")
---
import matplotlib.pyplot as plt
figure = nj.profile(lambda x: x @ x)(x).plot("timeline")
plt.show()
---
nj.profile(lambda x: x @ x)(x).plot("timeline")
---
nj.profile(lambda x: x @ x)(x).by_op()
"""


@pytest.mark.slow
def test_in_a_kernel():
    cells = [*map(nbformat.v4.new_code_cell, CELLS.strip().split("\n---\n"))]
    notebook = nbformat.v4.new_notebook(cells=cells)
    NotebookClient(notebook, timeout=600, allow_errors=True).execute()
    emulated, failed, *pictures, groups = notebook.cells
    assert emulated.outputs[-1].data["text/plain"] == "True"
    first = next(o for o in failed.outputs if o.output_type == "error")
    assert "In[2]:3" in first.evalue  # as the notebook counts them
    for cell in pictures:  # each once, wherever it is made
        images = [o for o in cell.outputs if "image/png" in o.get("data", {})]
        assert len(images) == 1
    assert "<table" in groups.outputs[0].data["text/html"]
    assert "defaultdict" not in str(groups.outputs)
    pages = [o.data.get("text/html", "") for o in groups.outputs]
    assert not any("\x1b" in page for page in pages)
