"""Pytrees compared bit by bit, and the two ways of running an emulated function.

Every leaf counts: parameters, optimizer states, integers, PRNG keys, and the patterns
of NaNs and zeros. `python -m tests.conformance.bits program:policy ...` prints a digest
of what programs of the zoo return, for runs in another process (section 5 of the
design).
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import neuronjax as nj
from tests import compilation_cache

PyTree = Any

POLICIES: dict[str, nj.Policy] = {
    **{
        name: nj.Policy.preset(name) for name in ("fp32", "bf16", "fp16", "tf32", "fp8")
    },
    "bf16_stochastic": nj.Policy(
        auto_cast="matmult", auto_cast_type="bf16", rounding="stochastic", seed=11
    ),
    "bf16_all": nj.Policy(auto_cast="all", auto_cast_type="bf16"),
    "mxfp8": nj.Policy.preset("mxfp8"),
    "mxfp4": nj.Policy.preset("mxfp4"),
    "sparse": nj.Policy(auto_cast="matmult", sparsity="4:16"),
}
#: Of stochastic rounding in all tests; any number serves.
CALL_INDEX = 7


def leaves(tree: PyTree) -> dict[str, np.ndarray]:
    """Path -> array, for every leaf; typed keys as their data."""
    found = jax.tree.flatten_with_path(tree)[0]
    return {jax.tree_util.keystr(path) or "output": _raw(leaf) for path, leaf in found}


def _raw(leaf: Any) -> np.ndarray:
    dtype = getattr(leaf, "dtype", None)
    if dtype is not None and jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def shapes(tree: PyTree) -> PyTree:
    """The tree with (dtype, shape) in place of every leaf."""
    return jax.tree.map(lambda leaf: (jnp.result_type(leaf), jnp.shape(leaf)), tree)


def assert_same(actual: PyTree, expected: PyTree, what: str = "") -> None:
    """Equal structure, dtypes, shapes and bits."""
    assert jax.tree.structure(actual) == jax.tree.structure(expected), what
    wanted = leaves(expected)
    for path, got in leaves(actual).items():
        want = wanted[path]
        assert (got.dtype, got.shape) == (want.dtype, want.shape), f"{what} {path}"
        if got.tobytes() != want.tobytes():
            raise AssertionError(f"{what} {path}: {_difference(got, want)}")


def _difference(got: np.ndarray, want: np.ndarray) -> str:
    size = max(got.dtype.itemsize, 1)
    as_bytes = [
        np.frombuffer(a.tobytes(), np.uint8).reshape(-1, size) for a in (got, want)
    ]
    wrong = np.flatnonzero((as_bytes[0] != as_bytes[1]).any(axis=1))
    first = int(wrong[0])
    return (
        f"{len(wrong)} of {got.size} elements differ; element {first} is "
        f"{got.reshape(-1)[first]!r}, expected {want.reshape(-1)[first]!r}"
    )


def op_by_op(function: Callable[..., PyTree], *args: PyTree, **kwargs: Any) -> PyTree:
    """The function with every instruction a program of its own."""
    with jax.disable_jit():
        return function(*args, **kwargs)


def same_both_ways(
    function: Callable[..., PyTree], *args: PyTree, what: str = "", **kwargs: Any
) -> PyTree:
    """What the function returns, compiled; asserts that op by op it is the same."""
    compiled = function(*args, **kwargs)
    assert_same(compiled, op_by_op(function, *args, **kwargs), what)
    return compiled


def emulated(
    function: Callable[..., PyTree], policy: str, target: str = "trn2"
) -> Callable[..., PyTree]:
    """`nj.jit` under a policy of `POLICIES`, with a call index where it needs one."""
    step = nj.jit(function, target=target, policy=POLICIES[policy])
    if POLICIES[policy].rounding == "stochastic":
        return step.with_rounding_seed(CALL_INDEX)
    return step


def relative_errors(actual: PyTree, expected: PyTree) -> dict[str, float]:
    """Path -> |actual - expected| / |expected| in the 2-norm, for the float leaves.

    Elements that are not finite in `expected` do not count; one that is not finite in
    `actual` alone gives an error of inf.
    """
    wanted = leaves(expected)
    return {
        path: _relative_error(got, wanted[path])
        for path, got in leaves(actual).items()
        if got.size and got.dtype.kind not in "iub"
    }


def _relative_error(got: np.ndarray, want: np.ndarray) -> float:
    got, want = got.astype(np.float64), want.astype(np.float64)
    finite = np.isfinite(want)
    if not np.isfinite(got[finite]).all():
        return np.inf
    difference = np.linalg.norm(got[finite] - want[finite])
    # Gradients that are zero but for rounding have no relative error.
    negligible = 1e-5 * np.sqrt(want.size)
    return float(difference / max(np.linalg.norm(want[finite]), negligible))


# ---- Another process.


def digest(tree: PyTree) -> str:
    """SHA-256 of the paths, dtypes, shapes and bits of all leaves."""
    state = hashlib.sha256()
    for path, array in leaves(tree).items():
        state.update(f"{path} {array.dtype} {array.shape} ".encode())
        state.update(array.tobytes())
    return state.hexdigest()


def digests_elsewhere(
    programs: Sequence[tuple[str, str]], *options: str
) -> Mapping[str, str]:
    """The digests of (program, policy) pairs in a fresh process; see `main`."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join([str(root), *filter(None, sys.path)])
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.conformance.bits",
            *options,
            *map(":".join, programs),
        ],
        cwd=root,
        # Compiled there: an entry of the cache is what this process compiled.
        env={**os.environ, "PYTHONPATH": path, **compilation_cache.WITHOUT},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    """Prints {"program:policy": digest} as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--threads", type=int, help="let JAX use so many processors")
    parser.add_argument("--no-kernels", action="store_true", help="none of the host's")
    parser.add_argument("programs", nargs="+", metavar="program:policy")
    options = parser.parse_args()
    if options.threads:  # before JAX makes its thread pool
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: options.threads])

    from neuronjax.numerics.host_kernels import choice
    from tests.zoo import PROGRAMS

    choice.enabled = not options.no_kernels
    found = {}
    for pair in options.programs:
        name, policy = pair.split(":")
        function, args = PROGRAMS[name].make(0)
        found[pair] = digest(emulated(function, policy)(*args))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
