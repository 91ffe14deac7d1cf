"""Switch the garbage collector off while programs are built, traced or planned.

This work makes many small objects without cycles, about ten per op. The collector would
visit them and all objects of JAX again and again and find nothing, which takes up to
half of the time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Collecting this many young objects takes milliseconds.
MANY = 50_000


@contextmanager
def no_collection() -> Iterator[None]:
    """Switch the cyclic collector off, and on again if it was on.

    If many objects were made meanwhile, they are moved to the old generation, so that
    the collector does not visit all of them at once. If few were made, they stay young,
    so that garbage is collected in time when small programs are planned in a loop. If
    several threads do this at once, the first that ends switches the collector on for
    all of them, which is only slower.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            young = gc.get_count()[0]
            if (
                young > MANY and not gc.get_freeze_count()
            ):  # unfreeze() would also thaw the caller's objects
                gc.freeze()
                gc.unfreeze()
            gc.enable()
