"""`neuronjax run` on sharded scripts that begin as public runners do."""

from __future__ import annotations

import pytest

from tests.strangers.scripted import SCRIPTS, Script, compare_texts, judge_script

#: Explicit axes and `reshard`; a KV cache under `set_mesh`; `jax.distributed`.
CHOSEN = ("explicit_reshard", "kv_cache", "distributed_guard")


@pytest.mark.slow
@pytest.mark.parametrize("name", CHOSEN)
def test_a_sharded_script_prints_what_python_prints(name):
    """With the same types and shardings, and numbers that are near."""
    [script] = [script for script in SCRIPTS if script.path.stem == name]
    verdict = judge_script(script)
    assert verdict.word == "agrees", verdict.why


BEGINS = """
import jax
jax.config.update("jax_num_cpu_devices", 6)
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P, reshard, set_mesh

set_mesh(jax.make_mesh((3, 2), ("x", "y")))
a = jax.device_put(jnp.arange(12.0).reshape(6, 2), P("x", "y"))
f = jax.jit(lambda a: reshard(a * 2, P("y", None)).max(1))
print(jax.typeof(a + 1), type(f).__name__, jax.typeof(f(a)), f(a))
"""


@pytest.mark.slow
def test_a_script_says_how_many_devices_there_are(tmp_path):
    path = tmp_path / "begins.py"
    path.write_text(BEGINS)
    run = Script(path).run("-m", "neuronjax", "run", "--target", "trn2.48xlarge")
    assert run.returncode == 0, run.stderr
    types = "float32[6@x,2@y] Emulated float32[6@y]"
    assert run.stdout == f"{types} [ 2.  6. 10. 14. 18. 22.]\n"


@pytest.mark.parametrize(
    ("actual", "word"),
    [
        ("P('d',) f32[8@d] 1.00001\n", "agrees"),
        ("[Gloo] Rank 3 is connected\nP('d',) f32[8@d] 1.0\n", "agrees"),
        ("P('d',) f32[8@d] 1.01\n", "differs"),
        ("P('d',) f32[4@d] 1.0\n", "differs"),
        ("P() f32[8@d] 1.0\n", "differs"),
        ("P('d',) f32[8@d] 1.0\nmore\n", "differs"),
        ("P('d',) f32[8@d] nan\n", "differs"),
    ],
)
def test_what_counts_as_the_same_text(actual, word):
    assert compare_texts(actual, "P('d',) f32[8@d] 1.0\n").word == word
