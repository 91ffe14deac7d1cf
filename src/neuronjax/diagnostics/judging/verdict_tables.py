"""Tables of a verdict's plain data, as a terminal shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from neuronjax.hardware import resolve_target
from neuronjax.report.places import place
from neuronjax.report.quantities import binary, percent, seconds
from neuronjax.report.setting import kernel_line
from neuronjax.report.tables import NAME, NUMBER, TEXT, WORD, new_table

_KINDS = {
    "limits": ("Limits and refusals", "bold red"),
    "hazards": ("Left to chance", "yellow"),
    "advice": ("Documented, but not enforced by compilers", "cyan"),
}
_STYLES = {"accepted": "bold green", "undecided": "bold yellow", "refused": "bold red"}


def page(word: str, verdict: Mapping[str, Any]) -> Group:
    parts: list[RenderableType] = [_headline(word, verdict)]
    if verdict["undecided"]:
        parts.append(Text(verdict["undecided"]))
    for field, (title, style) in _KINDS.items():
        if verdict[field]:
            parts.append(_problems(title, style, verdict[field]))
    if verdict["seeds"]:
        parts.append(_seeds(verdict))
    if verdict["times"] is not None:
        columns, figures = {"": NAME, "value": TEXT}, _figures(verdict)
        parts.append(new_table("Predicted", columns, figures, show_header=False))
        changes = verdict["times"]["changes"]
        rows = ((f"{c['saves_ms']:.3g} ms", c["what"]) for c in changes)
        columns = {"saves at most": NUMBER, "if": TEXT}
        parts.append(new_table("What would save most", columns, rows))
    parts.append(Text(f"judged in {seconds(verdict['judging_seconds'])}", style="dim"))
    return Group(*parts)


def _headline(word: str, verdict: Mapping[str, Any]) -> Text:
    told = {True: "correct", False: "wrong", None: "not compared"}[verdict["correct"]]
    told = "correctness unknown" if verdict["undecided"] else told
    line = f"{word}: {place(verdict['candidate'])}"
    setting = kernel_line(resolve_target(verdict["target"]), nki=verdict["nki"])
    line += f", {verdict['kernel'] or 'no kernel'} on {setting}, {told}"
    return Text(line, style=_STYLES[word])


def _problems(
    title: str, style: str, problems: Sequence[Mapping[str, Any]]
) -> RenderableType:
    table = new_table(title, {"line": WORD, "what, and what to do": TEXT})
    for p in problems:
        times = f" ({p['count']} times)" if p["count"] > 1 else ""
        text = Text(f"{p['rule']}: ", style=style)
        text.append(f"{p['message']}{times}", style="default")
        if p["remedy"]:
            text.append(f"\n{p['remedy']}", style="dim")
        table.add_row(place(p["location"]), text)
    return table


def _seeds(verdict: Mapping[str, Any]) -> RenderableType:
    columns = {"seed": NUMBER, "relative L2": NUMBER, "allowed": NUMBER, "": TEXT}
    rows = (
        (
            str(s["seed"]),
            f"{s['relative_l2']:.3g}",
            f"{s['allowed']:.3g}",
            _furthest(s) if s["correct"] else f"{s['why']}\n{_furthest(s)}",
        )
        for s in verdict["seeds"]
    )
    caption = f"tolerance: {verdict['tolerance']}"
    if mutants := verdict["mutants"]:
        passed = [m["what"] for m in mutants if not m["caught"]]
        caption += f"\nThe tolerance catches {len(mutants) - len(passed)} of "
        caption += f"{len(mutants)} wrong kernels"
        caption += f", but not these: {'; '.join(passed)}" if passed else ""
    return new_table("Against the reference", columns, rows, caption)


def _furthest(seed: Mapping[str, Any]) -> str:
    worst = seed["worst"]
    if worst is None:
        return "equal" if seed["correct"] else ""
    where = ", ".join(map(str, worst["index"]))
    which = f" of result {worst['result']}" if worst["result"] else ""
    is_, wanted = worst["actual"], worst["expected"]
    return f"[{where}]{which}: {is_:.9g}, the reference {wanted:.9g}"


def _figures(verdict: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    times = verdict["times"]
    span = ""
    if times["low_ms"] is not None:
        span = f", {times['low_ms']:.3g} to {times['high_ms']:.3g} likely"
    yield "time", f"{times['predicted_ms']:.4g} ms{span}"
    if times["speedup"] is not None:
        yield "speedup", f"{times['speedup']:.3g} times as fast as the baseline"
    active = sorted(times["engine_activity"].items(), key=lambda kv: -kv[1])
    yield "active", ", ".join(f"{q} {percent(s)}" for q, s in active if s >= 0.005)
    read, written = times["hbm_read_bytes"], times["hbm_write_bytes"]
    spilled = times["spill_bytes"]
    moved = f"{binary(read)} read, {binary(written)} written"
    yield "HBM", moved + (f", {binary(spilled)} spilled" if spilled else "")
    yield "MFU", percent(times["mfu"])
    labels = verdict["fidelity"].items()
    counted = ", ".join(f"{count:,} {label}" for label, count in labels)
    yield "instructions", f"{times['instructions']:,}; {counted}"
