"""Prints every operation of the zoo: count, programs, and the shortest sample.

python -m tests.zoo
"""

from __future__ import annotations

import collections
from typing import Any

import jax

from tests.zoo import PROGRAMS
from tests.zoo.operations import full_name, lower, operations, trace


def _text(operation: Any, width: int = 800) -> str:
    text = " ".join(str(operation).split())
    return text if len(text) <= width else text[:width] + " ..."


def main() -> None:
    counts: collections.Counter[str] = collections.Counter()
    programs = collections.defaultdict(set)
    samples: dict[str, str] = {}
    for program in PROGRAMS.values():
        for operation in operations(lower(trace(*program.make(0)))):
            name, text = full_name(operation), _text(operation)
            counts[name] += 1
            programs[name].add(program.name)
            samples[name] = min(samples.get(name, text), text, key=len)
    print(f"# jax {jax.__version__}, {len(PROGRAMS)} programs, size tiny")
    for name, count in sorted(counts.items()):
        print(
            f"{name}  x{count}  in {len(programs[name])} programs, such as",
            ", ".join(sorted(programs[name])[:4]),
        )
        print(f"    {samples[name]}")


if __name__ == "__main__":
    main()
