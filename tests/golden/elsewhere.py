"""The bits of goldens and of wild values, in a process with flags of XLA of its own.

`python -m tests.golden.elsewhere` prints {name: SHA-256} as JSON: of the outputs of
every stored program, and of functions over values from the smallest to NaN. Run with
`--no-kernels` it leaves out the kernels that are compiled for the host's processor.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from neuronjax.numerics.host_kernels import choice
from neuronjax.testing import golden_file
from neuronjax.testing.golden_run import run, stored_inputs, stored_program
from tests import compilation_cache
from tests.conformance.bits import digest

FOLDER = Path(__file__).with_name("golden")
NAMES = sorted(path.stem for path in FOLDER.glob("*.json"))
POLICIES = ("fp32", "bf16", "fp8", "mxfp8")


def wild(x: jax.Array, w: jax.Array) -> dict[str, jax.Array]:
    """What flags of a compiler could reorder, contract or approximate."""
    y = x * 0.3 + x[::-1]
    return {
        "functions": jnp.tanh(y) + jnp.exp(-y * y) + jax.lax.erf(x) + jnp.log1p(x),
        "quotients": x / (jnp.abs(y) + 1.5) + jax.lax.rsqrt(jnp.abs(x)),
        "sums": jnp.stack([x.sum(1), x.mean(1), jnp.cumsum(x, 1)[:, -1]]),
        "dots": jax.nn.softmax(x @ w) @ w.T,
        "largest": jnp.maximum(x, y) - jnp.minimum(-x, y),
        "rounded": jnp.round(x * 7).astype(jnp.int32) // 3,
    }


def values() -> tuple[np.ndarray, np.ndarray]:
    """Of many magnitudes, with zeros of both signs, subnormals, Infs and NaNs."""
    draw = np.random.default_rng(9)
    x = draw.normal(size=(32, 256)) * 2.0 ** draw.integers(-12, 12, (32, 256))
    x[:2] *= 2.0 ** draw.integers(-130, 120, (2, 256))
    x[2, :6] = 0.0, -0.0, 1e-42, np.inf, -np.inf, np.nan
    return x.astype(np.float32), draw.normal(size=(256, 64)).astype(np.float32)


def digests() -> Iterator[tuple[str, str]]:
    """Yield the name and SHA-256 of each result of this process."""
    for name in NAMES:
        stored = golden_file.read(FOLDER / name)
        how = stored.target, stored.policy, stored.rounding_seed
        yield name, digest(run(stored_program(stored), *how, stored_inputs(stored)))
    for policy in POLICIES:
        step = nj.jit(wild, target="trn3", policy=policy)
        yield f"wild {policy}", digest(step(*values()))


def digests_elsewhere(
    *options: str, processors: int = 0, **environment: str
) -> Mapping[str, str]:
    """Of a process of its own, which compiles what it runs.

    Args:
        options: of the command line.
        processors: that it may use; 0 for all.
        environment: variables that it has beside this process's.
    """
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, sys.path)])

    def limit() -> None:
        if processors:
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:processors])

    done = subprocess.run(
        [sys.executable, "-m", "tests.golden.elsewhere", *options],
        cwd=root,
        env={
            **os.environ,
            "PYTHONPATH": path,
            **compilation_cache.WITHOUT,
            **environment,
        },
        preexec_fn=limit,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    choice.enabled = "--no-kernels" not in sys.argv
    print(json.dumps(dict(digests())))
