"""Run a benchmark by its name: `python -m benchmarks NAME`, or `make NAME`.

Without a name, the names are listed. `bench-all` runs what docs/benchmarks.md shows and
writes that page.
"""

from __future__ import annotations

import runpy
import subprocess
import sys

#: Command -> its module and its purpose.
COMMANDS = {
    "bench": ("run", "how long emulation takes, against JAX alone; --quick, --filter"),
    "native": ("native", "the same GPT step natively, by itself"),
    "peers": ("peers", "speed beside other libraries; those not installed are skipped"),
    "scaling": ("scaling", "time and memory as models and meshes grow"),
    "time-model": ("time_model", "the picture of predicted and published times"),
    "regression": ("regression", "whether a bit of a fixed set of programs changed"),
    "page": ("page", "docs/benchmarks.md from the results that are kept"),
    "faults": ("faults", "how many planted faults `compare` finds; an hour"),
    "does-it-train": (
        "does_it_train",
        "models trained in every format; hours, goes on where it stopped",
    ),
    "healthy-steps": ("healthy_steps", "how many healthy steps `compare` accuses"),
    "validate": ("validation", "predicted times against published ones"),
    "validate-collectives": ("validate_collectives", "the same for collectives"),
    "validate-kernels": ("validate_kernels", "the same for public kernels: CORPUS"),
    "validate-numerics": (
        "validate_numerics",
        "and their numbers: CORPUS; hours",
    ),
    "judge-kernels": ("judge_kernels", "these kernels judged: CORPUS; an hour or two"),
    "vendor-tests": ("vendor_tests", "the vendor's own tests of kernels: CORPUS"),
    "leave-one-out": ("leave_one_out", "how the times generalise to other ops: CORPUS"),
}
#: The commands whose results docs/benchmarks.md shows, in order of execution.
ALL = ("native", "peers", "scaling", "time-model", "regression", "page")


def main() -> int:
    """Run one command, or list the commands; return the exit code."""
    name, arguments = "".join(sys.argv[1:2]), sys.argv[2:]
    if name == "bench-all":
        codes = [_apart(command, arguments * (command != "page")) for command in ALL]
        return max(codes)
    if name not in COMMANDS:
        width = max(map(len, COMMANDS))
        lines = [f"  {n:<{width}}  {about}" for n, (_, about) in COMMANDS.items()]
        print("\n".join(["python -m benchmarks NAME", *lines]))
        return 2 if name else 0
    module = f"benchmarks.{COMMANDS[name][0]}"
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
    return 0


def _apart(name: str, arguments: list[str]) -> int:
    """Run a command in a new process, with its own memory and caches."""
    return subprocess.call([sys.executable, "-m", "benchmarks", name, *arguments])


if __name__ == "__main__":
    sys.exit(main())
