"""The `neuronjax` command: it says so where loading takes long.

The package imports little, and a command its own file when it is asked for. What that
file needs imports JAX, which takes seconds in which a terminal would show nothing.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

#: From when on somebody may wonder whether it has begun.
_PATIENCE_SECONDS = 1.0
_CLEAR = "\r\x1b[K"


def main() -> None:
    """The entry point of the command."""
    if sys.argv[1:2] == ["judge"]:
        # A reference multiplies small matrices, or large ones that the judge cuts into
        # parts: threads of BLAS would mostly wait for one another. NumPy reads the
        # variable only when it is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from neuronjax.cli import main as command

    command()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """A line on a terminal's standard error after a while, gone at the end."""
    # As in `neuronjax.report.progress`, which is not to be imported here.
    if not sys.stderr.isatty() or os.environ.get("NEURONJAX_PROGRESS") == "0":
        yield
        return
    ended = threading.Event()

    def show() -> None:
        if not ended.wait(_PATIENCE_SECONDS):
            print("neuronjax: loading JAX", end="", file=sys.stderr, flush=True)
            ended.wait()
            print(_CLEAR, end="", file=sys.stderr, flush=True)

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield
    finally:
        ended.set()
        shown.join()


if __name__ == "__main__":
    main()
