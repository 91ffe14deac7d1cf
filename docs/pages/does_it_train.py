"""Tables of docs/does-it-train.md, made from the runs that benchmarks/results holds."""

from __future__ import annotations

import dataclasses
import importlib
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import neuronjax as nj
from neuronjax.cli.quickstart.model import GPTConfig
from neuronjax.cli.quickstart.train import REAL, priced
from neuronjax.report.money_tables import dollars, duration
from neuronjax.report.quantities import seconds

from .markdown import table

ROOT = Path(__file__).parents[2]
_NOT_RUN = "not run"
#: Of the baseline, at the real size.
_STEPS = 100_000
#: The GPT of `attention_table`, and the tokens of one of its steps.
_WIDE = GPTConfig(vocab_size=50_304, layers=12, heads=16, width=2048, hidden=5632)
_TOKENS = 8192


def _runs() -> Any:
    if str(ROOT) not in sys.path:  # mkdocs runs from the folder of its own script
        sys.path.insert(0, str(ROOT))
    return importlib.import_module("benchmarks.does_it_train")


def _studies() -> Iterator[tuple[Any, Any, nj.Study | None]]:
    runs = _runs()
    for model in runs.MODELS:
        for size in runs.SIZES:
            yield model, size, runs.studied(model, size)


def verdicts_table() -> str:
    """Return the verdict of every row on every model and size."""
    found = [
        (f"{model.name} {size.name}", study.verdicts() if study else {})
        for model, size, study in _studies()
    ]
    rows = [
        (
            row.name,
            row.target if row.policy else "host",
            *(_short(verdicts.get(row.name)) for _, verdicts in found),
        )
        for row in _runs().ROWS
    ]
    runs = sum(len(verdicts) for _, verdicts in found)
    told = f"{runs} of these {len(rows) * len(found)} combinations were run so far."
    heads = ("number format", "target", *(name for name, _ in found))
    return f"{table(heads, rows)}\n{told}\n"


def _short(verdict: Any) -> str:
    if verdict is None:
        return _NOT_RUN
    short = {
        "like": "like native",
        "slower": f"{verdict.steps_ratio} × the steps",
        "diverges": f"**diverges** in {len(verdict.diverged)} runs",
    }
    said = short.get(verdict.kind) or verdict.words("native")
    seeds = verdict.seeds + len(verdict.diverged)
    most = max(_runs().SEEDS.values())
    return said if seeds == most else f"{said} ({seeds} seeds)"


def sizes_table() -> str:
    """Return what was trained."""
    runs = _runs()
    rows = [
        (
            f"{model.name} {size.name}",
            f"{runs.parameters(model, size):,}",
            size.layers,
            size.width,
            size.steps,
            f"{size.rate:g}",
            _processor_time(runs.seconds(model, size)),
        )
        for model in runs.MODELS
        for size in runs.SIZES
    ]
    heads = ("model", "parameters:", "layers:", "width:", "steps:", "peak rate:")
    return table((*heads, "seconds of a run:"), rows)


def _processor_time(found: list[float]) -> str:
    return f"{statistics.median(found):.0f}" if found else "-"


def losses_tables() -> str:
    """Return the losses of every model of which there are runs, by row."""
    parts = []
    for model, size, study in _studies():
        if study is not None:
            rows = [_losses(row) for row in study.final()]
            heads = (
                "number format",
                "seeds:",
                "loss:",
                "− native:",
                "steps ×:",
                "verdict",
            )
            margin = study.final()[0]["margin"]
            told = f"The margin is {margin:.2g}."
            title = f"### {model.name} {size.name}"
            parts.append(f"{title}\n\n{told}\n\n{table(heads, rows)}")
    return "\n".join(parts)


def _losses(row: Mapping[str, Any]) -> tuple[object, ...]:
    return (
        row["machine"],
        row["seeds"],
        f"{row['mean']:.3f} ± {row['std']:.3f}",
        _interval(row, "difference", "+.4f") if row["difference_low"] else "",
        _interval(row, "steps_ratio", ".3f") if row["steps_ratio"] else "",
        row["verdict"],
    )


def _interval(row: Mapping[str, Any], name: str, spec: str) -> str:
    half = (row[f"{name}_high"] - row[f"{name}_low"]) / 2
    return f"{row[name]:{spec}} ± {half:{spec.removeprefix('+')}}"


def faults_list() -> str:
    """Return what statistics saw before a row diverged."""
    lines = [
        f"- {model} {size}, {row}: {text}"
        for (model, size, row), text in _runs().seen().items()
    ]
    return "\n".join(lines) + "\n"


def prices_table() -> str:
    """Return dollars to the same loss at the real size, on trn2. The ratio of steps is
    that of the largest GPT that was trained with the policy."""
    step, *arguments = priced()
    machine = {"instance": "trn2.48xlarge", "steps": _STEPS}
    found = {}
    for size, study in _runs().largest().items():
        if {*study.numerics} & {
            row.name for row in _runs().ROWS if row.target == "trn2"
        }:
            for row in study.costs(step, **machine)(*arguments).records:
                found[row["policy"]] = (
                    row["policy"],
                    f"GPT {size}",
                    _ends(row, "step_seconds", seconds),
                    "-" if row["steps"] is None else f"{row['steps']:,.0f}",
                    duration(row["hours"]),
                    _ends(row, "dollars", dollars),
                )
    rows = [found[row.name] for row in _runs().ROWS if row.name in found]
    heads = (
        "policy",
        "trained",
        "one step (interval)",
        "steps:",
        "time:",
        "cost (interval)",
    )
    compared = nj.estimate(step, policy=["bf16", "fp8"], **machine)(*arguments)
    notes = [f"- {note}\n" for note in compared.notes if " with fp8 and " in note]
    return f"{table(heads, rows)}\n{''.join(notes)}"


def trn3_table() -> str:
    """Return the time of a step of the real size on trn3, of which no price is known,
    and the time to the same loss beside BF16."""
    step, *arguments = priced()
    studies = _runs().largest().items()
    trained = {name: (x, study) for x, study in studies for name in study.numerics}
    times = {}
    for name in ("BF16", "MXFP8", "MXFP4 weights"):
        policy = trained[name][1].numerics[name]
        profile = nj.profile(step, target="trn3", policy=policy)(*arguments)
        times[name] = profile.total_seconds
    rows = []
    for name, time in times.items():
        size, study = trained[name]
        ratio = study.verdicts()[name].steps_ratio
        steps = ratio.estimate if ratio else None
        rows.append(
            (
                name,
                f"GPT {size}",
                seconds(time),
                "-" if steps is None else f"{steps:.3f}",
                "-" if steps is None else f"{steps * time / times['BF16']:.2f}",
            )
        )
    heads = ("policy", "trained", "one step:", "steps ×:", "time ÷ BF16's:")
    return table(heads, rows)


def attention_table() -> str:
    """Return the time of a step of the quickstart's GPT at width 2048 on trn2 in BF16,
    in FP8, and in FP8 with attention's two products in BF16."""
    fp8 = nj.Policy.preset("fp8")
    products = nj.Rule(module="^blocks$", auto_cast_type="bf16", scaling="none")
    policies = ("bf16", fp8, dataclasses.replace(fp8, rules=(products,)))
    rows = []
    for length in (512, 1024, 2048, 4096):
        recipe = dataclasses.replace(
            REAL, model=_WIDE, batch=_TOKENS // length, length=length
        )
        step, *arguments = priced(recipe)
        found = (nj.profile(step, target="trn2", policy=p) for p in policies)
        times = [profiled(*arguments).total_seconds for profiled in found]
        rows.append((length, *map(seconds, times)))
    heads = ("tokens per sequence", "BF16:", "FP8:", "FP8, attention in BF16:")
    return table(heads, rows)


def _ends(row: Mapping[str, Any], name: str, shown: Callable[[Any], str]) -> str:
    """Return an estimate with the ends of its interval."""
    if row[name] is None:
        return "-"
    low, high = (shown(row[f"{name}_{end}"]) for end in ("low", "high"))
    return f"{shown(row[name])} ({low} to {high})"
