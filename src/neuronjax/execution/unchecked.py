"""What `jax_debug_nans` and `jax_debug_infs` do not look at.

They stop at the first result that is a NaN or an Inf. Op by op every instruction has
results, constants too: the -Inf that a maximum starts from, the NaN that `jnp.var` may
choose. Those are no result of anybody's arithmetic, nor is a copy of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax


@contextlib.contextmanager
def unchecked() -> Iterator[None]:
    """Constants and copies are made inside; what is computed of them is checked."""
    with jax.debug_nans(False), jax.debug_infs(False):
        yield
