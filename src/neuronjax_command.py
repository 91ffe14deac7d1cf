"""The `neuronjax` command, with a message if loading takes long.

The package imports little, and a command imports its own file when it is used. That
file needs JAX, whose import takes seconds without output on the terminal.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator

#: Seconds without output after which the message is shown.
_PATIENCE_SECONDS = 1.0
_CLEAR = "\r\x1b[K"


def main() -> None:
    """Run the command."""
    if sys.argv[1:2] == ["judge"]:
        # A reference multiplies small matrices, or large ones that the judge cuts into
        # parts: threads of BLAS would mostly wait for one another. NumPy reads the
        # variable only when it is imported.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from neuronjax.cli import app

    app()


@contextlib.contextmanager
def loading() -> Iterator[None]:
    """Show a line on a terminal's standard error while a long block runs."""
    # A copy of `neuronjax.report.progress`, whose import would take long.
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
