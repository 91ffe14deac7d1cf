"""`python -m benchmarks.page` writes docs/benchmarks.md and images/bench_*.png."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks import results_file
from benchmarks.page import faults, judged, plots, sections, silicon, text
from benchmarks.page.summary import verdicts

ROOT = Path(__file__).parents[2]
Found = Mapping[str, Any]

#: Name of the results file -> (title, section).
SECTIONS: dict[str, tuple[str, Callable[[Found], str]]] = {
    "native": ("Against native `jax.jit`", sections.native),
    "peers": ("Against what you would use instead", sections.peers),
    "scaling": ("How cost grows", sections.scaling),
    "time_model": ("How good the time model is", sections.time_model),
    "validate_kernels": ("Kernels that others measured", sections.kernels),
    "leave_one_out": ("The same with each op left out", sections.leave_one_out),
    "validate_numerics": ("Numbers that others measured", silicon.numerics),
    "fp32_models": ("What trn2 does with FP32 operands", silicon.fp32_models),
    "judge_kernels": ("Public kernels, judged", judged.kernels),
    "faults": ("Numerical faults, found and not", faults.tables),
    "regression": ("Bits that are pinned", sections.regression),
}
PLOTS: dict[str, Callable[[Found], Figure]] = {
    "native": lambda found: plots.native(found["entries"]),
    "peers": lambda found: plots.peers(verdicts(found["entries"])),
    "scaling": lambda found: plots.scaling(found["entries"]),
    "time_model": plots.time_model,
}

_QUICK = "a quick run of some of the rows"
_INTRODUCTION = """# Benchmarks

`python -m benchmarks.page` writes this page from `benchmarks/results/*.json`; do not
edit it by hand. `make bench-all` measures everything again. Most sections measure
host time, which is what the emulation costs you. The sections on the time model
compare predicted times of a chip with published ones. Click on the title of a long
table to open it."""


def load(folder: Path) -> dict[str, dict[str, Any] | None]:
    """Return every results file, or None for a missing one."""
    paths = {name: folder / f"{name}.json" for name in SECTIONS}
    return {
        name: results_file.read(path) if path.exists() else None
        for name, path in paths.items()
    }


def page(results: Mapping[str, Found | None]) -> str:
    """Return the whole page."""
    parts = [_INTRODUCTION, sections.summary(results)]
    for name, (title, section) in SECTIONS.items():
        found = results[name]
        parts.append(f"## {title}")
        command = f"`python -m benchmarks.{name}`"
        if found is None:
            parts.append(f"This was not measured; {command} writes the results.")
        else:
            quick = f", **{_QUICK}**" if found["quick"] else ""
            parts += [f"{command}, {found['started'][:10]}{quick}.", section(found)]
    parts.append(_circumstances(results))
    return "\n\n".join(parts) + "\n"


def _circumstances(results: Mapping[str, Found | None]) -> str:
    head = ("", "begun", "took", "versions", "machine", "load before", "thoroughness")
    rows = [_circumstance(name, found) for name, found in results.items() if found]
    return f"## Machine and versions\n\n{text.table(head, rows)}"


def _circumstance(name: str, found: Found) -> tuple[str, ...]:
    machine, versions = found["machine"], found["versions"]
    load = machine.get("load_at_start")
    return (
        f"`{name}`",
        found["started"].replace("T", " ").replace("+00:00", " UTC"),
        f"{found['seconds']:,.0f} s",
        ", ".join(f"{key} {value}" for key, value in versions.items()),
        f"{machine['processor']}, {text.plural(machine['threads'], 'thread')}",
        "" if load is None else f"{load:.1f}",
        f"**{_QUICK}**" if found["quick"] else "full",
    )


def pictures(results: Mapping[str, Found | None]) -> Iterator[tuple[str, Figure]]:
    """Yield (file name, figure) for the results that exist."""
    for name, draw in PLOTS.items():
        if found := results[name]:
            yield f"bench_{name}.png", draw(found)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if there are no results at all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page")
    parser.add_argument("--results", type=Path, default=results_file.RESULTS)
    parser.add_argument("--docs", type=Path, default=ROOT / "docs")
    options = parser.parse_args(arguments)
    results = load(options.results)
    if not any(results.values()):
        print(f"no results in {options.results}", file=sys.stderr)
        return 1
    options.docs.mkdir(parents=True, exist_ok=True)
    (options.docs / "benchmarks.md").write_text(page(results))
    for name, figure in pictures(results):
        plots.save(figure, options.docs / "images" / name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
