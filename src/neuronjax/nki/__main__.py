"""`python -m neuronjax.nki script.py [args]`: a runner of unmodified kernel scripts.

In the script, and in the processes that it starts, `import nki` imports neuronjax.
Those processes also find a `neuron-profile` command, see `children`. `-m module` in
place of the script runs a module.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

from neuronjax.errors import NeuronJaxError
from neuronjax.nki.children import for_children
from neuronjax.nki.install import install

_USAGE = "usage: python -m neuronjax.nki (script.py | -m module) [arguments]"


def main() -> int:
    arguments = sys.argv[1:]
    if not arguments or arguments[0] in ("-h", "--help") or arguments == ["-m"]:
        print(_USAGE)
        return 0 if arguments[:1] in (["-h"], ["--help"]) else 2
    try:
        install()
    except NeuronJaxError as error:
        print(error, file=sys.stderr)
        return 2
    with for_children():
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            sys.path.insert(0, str(Path.cwd()))
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
            return 0
        return _run_script(arguments)


def _run_script(arguments: list[str]) -> int:
    script = Path(arguments[0])
    if not script.is_file():
        print(f"{script}: no such file\n{_USAGE}", file=sys.stderr)
        return 2
    sys.argv = arguments
    sys.path.insert(0, str(script.resolve().parent))
    runpy.run_path(str(script), run_name="__main__")
    return 0


if __name__ == "__main__":
    sys.exit(main())
