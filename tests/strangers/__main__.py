"""`python -m tests.strangers [WORD ...]`: one line of verdict for every program.

Words choose the programs in whose library or title one of them stands. The exit status
is 1 if a program differs from `jax.jit`, or ends in an error that is not ours. The
scripts for many devices come last; their library is JAX.
"""

from __future__ import annotations

import collections
import importlib
import sys
import time

from tests.strangers.program import FAILURES, PROGRAMS, Program, judge
from tests.strangers.scripted import SCRIPTS, Script, judge_script

MODULES = (
    "flax_networks",
    "vision_models",
    "vision_transformers",
    "language_models",
    "encoder_models",
    "ppo",
    "networks",
    "training",
    "torch_modules",
    "probability",
    "solvers",
    "worlds",
)


def main(words: list[str]) -> int:
    """Judges the programs, and prints."""
    for module in MODULES:
        importlib.import_module(f"tests.strangers.{module}")
    counts: collections.Counter[str] = collections.Counter()
    for program in (*PROGRAMS, *SCRIPTS):
        if words and not any(word in _name(program) for word in words):
            continue
        start = time.perf_counter()
        is_script = isinstance(program, Script)
        verdict = judge_script(program) if is_script else judge(program)
        counts[verdict.word] += 1
        text = f"{verdict.word} {verdict.why}".strip().split("\n")[0]
        seconds = time.perf_counter() - start
        print(f"{_name(program)}: {text} [{seconds:.0f} s]", flush=True)
    total = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    print(f"{counts.total()} programs: {total}")
    return int(any(counts[word] for word in FAILURES))


def _name(program: Program | Script) -> str:
    return f"{program.library} {program.version or '-'}: {program.title}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
