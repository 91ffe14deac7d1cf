"""`keep_compiled`: what was compiled in one process starts quickly in the next."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from neuronjax.numerics.host_kernels.kept_files import cache_folder, host_fingerprint

#: What compiles faster is compiled again: reading would save nothing.
LEAST_SECONDS = 0.1
_FOLDER = "jax_compilation_cache_dir"


def keep_compiled(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keeps compiled programs on disk, in JAX's persistent compilation cache.

    Call it before the first program is compiled. A later process that compiles the same
    program for the same kind of machine reads it instead; the bits are the same, for it
    is the same machine code. Programs are captured and lowered in every process anew.

    Args:
        folder: where to; None for `NEURONJAX_CACHE_DIR`, else the user's cache folder.
            A cache that was chosen before, by `JAX_COMPILATION_CACHE_DIR` or
            `jax.config`, is left as it is.

    Returns:
        The folder in use: one for each jaxlib, processor, number of threads and
        `XLA_FLAGS`, for compiled code is that of a machine.
    """
    chosen = getattr(jax.config, _FOLDER)
    if chosen and folder is None:
        return Path(chosen)
    base = cache_folder() if folder is None else Path(folder)
    path = base / f"xla-{host_fingerprint()}"
    jax.config.update(_FOLDER, str(path))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    return path
