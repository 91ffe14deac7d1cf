"""The pictures of the page, one function each, drawn from results alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.page.summary import Verdict, outcome

WIN, LOSS, EVEN, INK = "#009E73", "#D55E00", "#7F7F7F", "#333333"  # Okabe, Ito
MEMORY, COLLECTIVES = "#0072B2", "#E69F00"
Entries = Sequence[Mapping[str, Any]]


def _figure(width: float, height: float, title: str) -> Figure:
    figure = Figure(figsize=(width, height), dpi=120, layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=11, color=INK)
    return figure


def _plain(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)
    axes.grid(color="#e4e4e4", linewidth=0.6)
    axes.set_axisbelow(True)


#: First word of a row -> the heading of its group in the picture of `native`.
GROUPS = {
    "gpt_step": "a GPT's training step",
    "quickstart": "the quickstart's step",
    "large": "a GPT of 100 million parameters",
    "collect_gpt": "a step that collects statistics",
    "chips": "64 emulated devices",
    "gpt_compile": "compiling the GPT's step",
    "scan": "compiling a scan of so many steps",
    "convolutions": "convolutions",
    "matmul": "a matmul",
    "nki": "an NKI kernel",
    "mx": "quantizing to MX",
    "cast": "casts to nearest, against astype",
    "cast_stochastic": "stochastic casts, against nearest",
    "sum": "sums",
    "function": "functions of 4 million numbers",
    "elementary": "functions of 1 million numbers",
}


def native(entries: Entries) -> Figure:
    """Draw emulated over native time of every row that is such a ratio, by group."""
    rows = [e for e in entries if e.get("unit") == "x" and e["status"] == "measured"]
    groups: dict[str, list[Mapping[str, Any]]] = {name: [] for name in GROUPS}
    for entry in sorted(rows, key=lambda e: e["value"]):
        groups.setdefault(entry["name"].partition("/")[0], []).append(entry)
    lines: list[tuple[str, Mapping[str, Any] | None]] = []
    for name, own in groups.items():
        if own:
            lines.append((GROUPS.get(name, name), None))
            lines += [(_words(entry["name"]), entry) for entry in own]
    title = "Emulated over native time (1 = as fast as native)"
    figure = _figure(8, 1.2 + 0.19 * len(lines), title)
    axes = figure.subplots()
    _plain(axes)
    for y, (_, entry) in enumerate(lines):
        if entry is not None:
            _draw_native(axes, y, entry)
    axes.axvline(1, color=INK, linewidth=0.8)
    axes.set_yticks(range(len(lines)), [words for words, _ in lines])
    for label, (_, entry) in zip(axes.get_yticklabels(), lines, strict=True):
        label.set_fontweight("bold" if entry is None else "normal")
    axes.set_ylim(len(lines) - 0.4, -0.6)
    axes.set_xscale("log")
    limits = axes.get_xlim()
    axes.set_xticks([0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50])
    axes.set_xlim(limits)
    _decimal(axes)
    axes.set_xlabel(
        "emulated / native time; dot: median of pairs, bar: quartiles, tick: target\n"
        "green: target reached, orange: missed, grey: there is none",
        fontsize=8,
    )
    return figure


def _words(name: str) -> str:
    return name.partition("/")[2].replace("_", " ")


def _draw_native(axes: Axes, y: int, entry: Mapping[str, Any]) -> None:
    target = entry["target"]
    color = EVEN if target is None else WIN if entry["reached"] else LOSS
    axes.plot(entry["samples"]["quartiles"], [y, y], color=color, linewidth=2)
    axes.plot(entry["value"], y, "o", color=color, markersize=5)
    if target is not None:
        axes.plot(target, y, "|", color=INK, markersize=8)


def _decimal(axes: Axes, *, both: bool = False) -> None:
    for axis in (axes.xaxis, axes.yaxis) if both else (axes.xaxis,):
        axis.set_major_formatter(lambda x, _: f"{x:,.10g}")
        axis.set_minor_formatter(lambda x, _: "")


def peers(verdicts: Sequence[Verdict]) -> Figure:
    """Draw a peer's time over ours, a dot for each format and size."""
    title = "A peer's time over neuronjax's (right of 1: neuronjax is faster)"
    figure = _figure(9, 1.2 + 0.21 * len(verdicts), title)
    axes = figure.subplots()
    _plain(axes)
    for y, verdict in enumerate(verdicts):
        ratios = verdict.ratios
        axes.plot(ratios, [y] * len(ratios), color=EVEN, alpha=0.4, linewidth=1.5)
        for ratio in ratios:
            color = {"faster": WIN, "slower": LOSS, "even": EVEN}[outcome(ratio)]
            axes.plot(ratio, y, "o", color=color, markersize=4.5)
    axes.axvline(1, color=INK, linewidth=0.8)
    names = [f"{verdict.kind}: {verdict.peer}" for verdict in verdicts]
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    axes.set_xscale("log")
    _decimal(axes)
    axes.set_xlabel(
        "the peer's time / neuronjax's time; a dot for each format and size\n"
        "green: neuronjax is faster, orange: the peer is, grey: within 10 %",
        fontsize=8,
    )
    return figure


AXES = {
    "parameters": "parameters of a GPT, one sequence of 64 tokens",
    "tokens": "tokens of the sequence, one million parameters",
    "devices": "emulated devices, one million parameters",
    "ops": "ops of a program without loops",
}


def scaling(entries: Entries) -> Figure:
    """Draw run time, compile time and memory over native, a panel for each sweep."""
    title = "Emulated over native (1 = as native): what grows, and what does not"
    figure = _figure(9, 6, title)
    panels = figure.subplots(2, 2).flat
    for axes, (sweep, label) in zip(panels, AXES.items(), strict=True):
        own = [e for e in entries if e["sweep"] == sweep and "ratio" in e]
        _plain(axes)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.axhline(1, color=INK, linewidth=0.8)
        for name, color, marker, of in _LINES:
            if name == "memory" and sweep == "devices":
                continue  # the native side holds one device
            axes.plot(
                [e["value"] for e in own],
                [of(e) for e in own],
                marker=marker,
                color=color,
                label=name,
                markersize=4.5,
                linewidth=1.3,
            )
        axes.set_xlabel(label, fontsize=8)
        axes.set_ylabel("emulated / native", fontsize=8)
        _decimal(axes, both=True)
        values = [e["value"] for e in own]
        axes.set_xticks(values, map(_short, values))
        axes.set_yticks([0.5, 1, 2, 5, 10, 20])
        axes.set_ylim(0.4, 30)
    figure.axes[0].legend(fontsize=8, frameon=False)
    return figure


def _short(value: float) -> str:
    """Write a count in few characters: 836,736 as "0.837 M"."""
    return f"{value / 1e6:.3g} M" if value >= 1e5 else f"{value:,}"


_LINES = (
    ("run time", WIN, "o", lambda e: e["ratio"]),
    (
        "compile time",
        LOSS,
        "s",
        lambda e: e["emulated_compile_seconds"] / e["native_compile_seconds"],
    ),
    (
        "memory",
        MEMORY,
        "^",
        lambda e: e["emulated_planned_bytes"] / e["native_planned_bytes"],
    ),
)

FAMILIES = ("instructions and DMA", "programs", "collectives")


def family(group: str) -> str:
    """Return the family of a group of rows, one of the three in `FAMILIES`."""
    if group.startswith("collectives"):
        return "collectives"
    return group if group == FAMILIES[0] else "programs"


def time_model(found: Mapping[str, Any]) -> Figure:
    """Draw predicted and published times, and the band of rows that are not missed."""
    figure = _figure(7, 6, "Time model: predicted against published")
    axes = figure.subplots()
    _plain(axes)
    entries = [entry for entry in found["entries"] if entry["counts"]]
    band = 1 + found["band"]
    ends = [
        min(e["published_seconds"] for e in entries) / 2,
        max(e["published_seconds"] for e in entries) * 2,
    ]
    lower = [end * (2 - band) for end in ends]
    axes.fill_between(
        ends,
        lower,
        [end * band for end in ends],
        color="#dfe7e2",
        label=f"within {found['band']:.0%}",
        linewidth=0,
    )
    axes.plot(ends, ends, color=INK, linewidth=0.8)
    for name, color in zip(FAMILIES, (MEMORY, WIN, COLLECTIVES), strict=True):
        for held in (False, True):
            own = [
                e
                for e in entries
                if family(e["group"]) == name and e["held_out"] is held
            ]
            if own:
                axes.plot(
                    [e["published_seconds"] for e in own],
                    [e["predicted_seconds"] for e in own],
                    "o",
                    markersize=5,
                    color=color,
                    markerfacecolor="white" if held else color,
                    alpha=0.8,
                    label=name + (", held out" if held else ""),
                )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("published, seconds", fontsize=9)
    axes.set_ylabel("predicted, seconds", fontsize=9)
    axes.legend(fontsize=8, frameon=False)
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a PNG without the time and version, which would change its bytes."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": None})
