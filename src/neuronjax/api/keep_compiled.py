"""`keep_compiled`: programs compiled in one process start quickly in the next."""

from __future__ import annotations

import os
from pathlib import Path

import jax

from neuronjax.numerics.host_kernels.kept_files import cache_folder, host_fingerprint

#: A program that compiles in less time is not stored: reading it would save nothing.
LEAST_SECONDS = 0.1
_FOLDER = "jax_compilation_cache_dir"


def keep_compiled(folder: str | os.PathLike[str] | None = None) -> Path:
    """Keep compiled programs on disk, in JAX's persistent compilation cache.

    Call this before the first program is compiled. A later process on a machine
    of the same type reads stored programs instead of compiling them; the bits of their
    results are the same. Capture and lowering are repeated in every process.

    Args:
        folder: the folder of the cache; None for `NEURONJAX_CACHE_DIR`, otherwise the
            user's cache folder. A cache that was chosen before, by
            `JAX_COMPILATION_CACHE_DIR` or `jax.config`, is left as it is.

    Returns:
        The folder in use, one for each jaxlib, processor, number of threads and
        `XLA_FLAGS`, because compiled code depends on them.
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
