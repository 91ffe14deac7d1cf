"""The garbage collector, out of the way while programs are built, traced or planned.

All these make many small objects without cycles, some ten per op. The collector would
visit them, and all that JAX holds, again and again and find nothing: up to half of the
time.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

#: Young objects that take the collector milliseconds.
MANY = 50_000


@contextmanager
def no_collection() -> Iterator[None]:
    """Switches the cyclic collector off, and on again if it was on.

    If much was made meanwhile it is old then, for it would be visited at once
    otherwise; of little it stays young, so that whoever plans small programs in a loop
    has the garbage of others collected in time. Of threads that do this at the same
    time the first that ends switches it on, for all of them: they are slower then.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            young = gc.get_count()[0]
            if young > MANY and not gc.get_freeze_count():  # or the caller's would thaw
                gc.freeze()
                gc.unfreeze()
            gc.enable()
