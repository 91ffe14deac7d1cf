"""The sections of the page, each made from one results file."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.leave_one_out import FIGURES
from benchmarks.page import text
from benchmarks.page.summary import Verdict, verdicts
from benchmarks.validate_kernels import CLOSE, FEWEST_OF_AN_ORDER, order_of

Found = Mapping[str, Any]

# ---- Summary.


def summary(results: Mapping[str, Found | None]) -> str:
    """Return the tables at the top of the page."""
    parts = ["## What wins, what loses", _SUMMARY]
    if peers := results["peers"]:
        found = verdicts(peers["entries"])
        for outcome, title in _OUTCOMES:
            own = [v for v in found if v.outcome == outcome]
            if own:
                if outcome == "faster":
                    own.reverse()
                parts += [f"**{title}**", _verdict_table(own)]
    parts += ["**Beyond time**", "\n".join(f"- {line}" for line in _facts(results))]
    return "\n\n".join(parts)


_SUMMARY = """Each peer (another library for the same task) ran in turn with neuronjax,
in one process, on one machine. Each run of neuronjax forms a pair with a run of the
peer, and the factor is the median ratio of the times in these pairs. A range shows that
the factor differs between formats and sizes. The last column compares the peer's
numbers with ours, because a faster answer to another question is not better. [Every
pair](#every-pair) defines the words that it uses."""
_OUTCOMES = (
    ("slower", "neuronjax loses"),
    ("even", "Even, within 10 %"),
    ("faster", "neuronjax wins"),
)


def _verdict_table(found: Sequence[Verdict]) -> str:
    head = ("task", "against", "neuronjax is", "the peer's numbers, compared with ours")
    return text.table(head, [(v.kind, v.peer, v.times, v.numerics) for v in found])


def _facts(results: Mapping[str, Found | None]) -> Iterator[str]:
    """Yield sentences about results without a peer."""
    if native := results["native"]:
        rows = {e["name"]: e for e in native["entries"] if e["status"] == "measured"}
        aimed = [e for e in rows.values() if e["target"] is not None]
        missed = [e["name"] for e in aimed if not e["reached"]]
        yield (
            f"Of {text.plural(len(aimed), 'target')} against native `jax.jit`,"
            f" {len(missed)} {'is' if len(missed) == 1 else 'are'} missed"
            + (f": {', '.join(f'`{name}`' for name in missed)}." if missed else ".")
        )
    if scaling := results["scaling"]:
        yield from _scaling_facts(scaling)
    if model := results["time_model"]:
        total = model["summary"][-1]
        yield (
            f"The time model misses {total['missed']} of {total['rows']} published"
            f" times by more than {model['band']:.0%}; the median error is"
            f" {text.percent(total['median'])}."
        )
    if regression := results["regression"]:
        counts = _counts(regression)
        verdicts_of = (f"{count} {name}" for name, count in counts.items())
        yield (
            "We compared the bits of whole programs with pinned bits; the verdicts are:"
            f" {', '.join(verdicts_of)}."
        )


def _scaling_facts(scaling: Found) -> Iterator[str]:
    own = [e for e in scaling["entries"] if "ratio" in e]
    for sweep, noun in (("parameters", "parameters"), ("devices", "devices")):
        points = [e for e in own if e["sweep"] == sweep]
        if points:
            first, last = points[0], points[-1]
            yield (
                f"From {first['value']:,} to {last['value']:,} {noun} the run time"
                f" goes from {text.digits(first['ratio'])} to"
                f" {text.digits(last['ratio'])} × native."
            )
    worst = max(
        own,
        key=lambda e: e["emulated_compile_seconds"] / e["native_compile_seconds"],
    )
    times = worst["emulated_compile_seconds"] / worst["native_compile_seconds"]
    yield (
        f"Compile time is up to {text.digits(times)} × native"
        f" ({worst['sweep']} {worst['value']:,})."
    )


# ---- Against native JAX.


def native(found: Found) -> str:
    """Return the section with every row of `make bench`."""
    head = ("row", "native", "emulated", _RATIO, "target", "reached", "runs")
    table = text.table(head, map(_native_row, found["entries"]))
    return "\n\n".join(
        [
            "![Emulated over native time](images/bench_native.png)",
            "`gpt_step` is a whole training step. `benchmarks/README.md` describes each"
            f" row. {_PAIRED} In `dispatch`, this figure is the time that a call takes"
            " in addition to `jax.jit`'s, and in `gpt_lowering` the time for each op."
            " *Target* is in the unit of the column before it.",
            text.folded(f"All {len(found['entries'])} rows", table),
        ]
    )


_RATIO = "emulated / native, median of pairs"
_PAIRED = """Both sides run in turn, so that other work on the machine slows both sides
of a pair. The ratio is the median over the pairs, with its quartiles where they are
shown; it is not the quotient of the two medians in the row. A row without a ratio shows
its own figure in that column, with its unit."""


def _native_row(entry: Found) -> tuple[str, ...]:
    target = "" if entry["target"] is None else f"{entry['target']:g}"
    if entry["status"] != "measured":
        return (f"`{entry['name']}`", "", "", entry["status"], target, "", "")
    times = (entry[f"{side}_seconds"] for side in ("native", "emulated"))
    return (
        f"`{entry['name']}`",
        *(text.seconds(t["median"]) if t else "" for t in times),
        f"{text.digits(entry['value'])} {entry['unit'].replace('x', '×')}",
        target,
        {None: "", True: "yes", False: "**no**"}[entry["reached"]],
        str(entry["samples"]["runs"]),
    )


# ---- Against peers.


def peers(found: Found) -> str:
    """Return pictures and tables of the comparison, and peers that could not be run."""
    names = found["peer_versions"].items()
    installed = ", ".join(f"{n} {v}" for n, v in names if v)
    missing = [name for name, version in names if not version]
    parts = [
        "![A peer's time over neuronjax's](images/bench_peers.png)",
        f"Peers: {installed}."
        + (f" Not installed, and skipped: {', '.join(missing)}." if missing else ""),
        "### What each emulates at all",
        _abilities(found),
        "### Every pair",
        _PAIRS,
        text.folded("A table for every task", *_task_tables(found["entries"])),
        "### The order in which a matmul adds",
        _ORDERS,
        _orders(found["entries"]),
        "### Not run",
        "\n".join(f"- {name}: {why}" for name, why in found["not_run"].items()),
    ]
    return "\n\n".join(parts)


_PAIRS = """A ratio above 1 means that neuronjax is faster. *Differ* counts results that
are not equal to neuronjax's:

- For casts, it counts the results for inputs in the format's range. FP32 subnormals are
  counted separately, because neuronjax's engines read them as zeros (a modelled
  choice). "overflow to 0 (ours 6)" means that the peer returns 0 for a number beyond
  the range, and that neuronjax returns 6.
- For MX, it counts the elements that differ under one of our scale rules. We use the
  rule under which the fewest elements differ, and name it.
- For pruning, matmuls and train steps, it counts the elements.

A stochastic cast must return one of the two representable numbers next to its input.
*Not neighbours* counts the results that are neither. *Bias* is the mean error of all
results, in units of its own standard deviation.

Quantized matmuls have scales and formats of their own, so a difference is not a defect
there. Their *error* is the relative L2 distance from the float64 product."""
_ORDERS = """`nj.reveal_order` found these orders from the results alone, for one row of
256 BF16 products. The host's order is the library's, for this shape and machine.
neuronjax's order is that of the modelled chip, and is the same on every machine."""


def _abilities(found: Found) -> str:
    names = list(found["abilities"])
    rows = [
        (question, *(found["abilities"][name][i] for name in names))
        for i, question in enumerate(found["questions"])
    ]
    return text.table(("", *names), rows)


def _task_tables(entries: Sequence[Found]) -> Iterator[str]:
    measured = [e for e in entries if e["status"] != "revealed"]
    for task in dict.fromkeys(entry["task"] for entry in measured):
        own = [entry for entry in measured if entry["task"] == task]
        yield f"**{task}**"
        yield text.table(_PAIR_HEAD, map(_pair, own))


_PAIR_HEAD = (
    "peer", "size", "neuronjax", "peer takes", "peer / neuronjax, median of pairs",
    "numerics",
)  # fmt: skip


def _pair(entry: Found) -> tuple[str, ...]:
    if entry["status"] == "skipped":
        return (entry["peer"], "", "", "", "", f"skipped: {entry['why']}")
    return (
        entry["peer"],
        text.size(entry["sizes"]),
        text.seconds(entry["neuronjax_seconds"]["median"]),
        text.seconds(entry["peer_seconds"]["median"]),
        text.digits(entry["ratio"]["median"]),
        _numbers(entry) + (f" ({entry['caveat']})" if entry["caveat"] else ""),
    )


def _numbers(entry: Found) -> str:
    """Return the numerics of one entry as text."""
    found = entry["numerics"]
    if "special" in found:
        return _cast(found)
    if "bias_sigmas" in found:
        ours = found["ours"]
        return (
            f"{found['not_a_neighbour']} not neighbours, bias"
            f" {found['bias_sigmas']:+.1f} sigma (ours {ours['not_a_neighbour']},"
            f" {ours['bias_sigmas']:+.1f})"
        )
    if "scale_rule" in found:
        return (
            f"{found['differ']:,} of {found['compared']:,} differ from"
            f" `{found['scale_rule']}`; a block with an Inf becomes"
            f" {found['block_with_inf']} (ours {found['ours_block_with_inf']})"
        )
    if "relative_l2" in found:
        return (
            f"{found['differ']:,} of {found['compared']:,} differ; error"
            f" {found['relative_l2']:.2g} (ours {found['ours_relative_l2']:.2g})"
        )
    if "ours_loss" in found:
        return f"loss {found['loss']:.5f} (ours {found['ours_loss']:.5f})"
    extra = found.get("native_differs")
    return f"{found['differ']:,} of {found['compared']:,} differ" + (
        "" if extra is None else f" (native XLA: {extra:,})"
    )


def _cast(found: Found) -> str:
    normal = found["differ"] - found["differ_subnormal_inputs"]
    words = f"{normal:,} of {found['compared']:,} differ"
    if found["differ_subnormal_inputs"]:
        words += f", and {found['differ_subnormal_inputs']:,} of FP32 subnormals"
    pairs = [
        f"{name} to {value} (ours {found['ours_special'][name]})"
        for name, value in found["special"].items()
        if value != found["ours_special"][name]
    ]
    return "; ".join([words, *pairs])


def _orders(entries: Sequence[Found]) -> str:
    own = [entry for entry in entries if entry["task"] == "order of addition"]
    rows = [(e["peer"], f"`{e['order']}`" if "order" in e else e["why"]) for e in own]
    return text.table(("matmul of", "order of its sum"), rows)


# ---- Scaling.


def scaling(found: Found) -> str:
    """Return the section on scaling, with the picture and every point."""
    head = (
        "what grows", "to", "native", "emulated", f"{_RATIO} (quartiles)",
        "native compile", "emulated compile", "emulated / native compile",
        "planned memory",
    )  # fmt: skip
    return "\n\n".join(
        [
            "![Emulated over native, by size](images/bench_scaling.png)",
            f"{_SCALING} {_PAIRED}" + _cut(found["cut"]),
            text.table(head, map(_point, found["entries"])),
        ]
    )


def _cut(names: Sequence[str]) -> str:
    if not names:
        return ""
    return f"\n\nThe time limit cut these short: {', '.join(names)}."


_SCALING = """The program is a GPT's train step with Adam, with target trn2 and policy
bf16. The compile time is the time of one compilation: tracing, lowering and XLA. The
memory is what XLA plans for arguments, results and temporaries, first of the native and
then of the emulated program. With many devices, the native side runs one device's step
once for each device, and its memory is that of one device."""


def _point(entry: Found) -> tuple[str, ...]:
    head = (entry["sweep"], f"{entry['value']:,}")
    if "not_compiled" in entry:
        return (*head, "", "", "not compiled", "", entry["not_compiled"], "", "")
    own, other = (entry[f"{s}_compile_seconds"] for s in ("native", "emulated"))
    memory = (entry[f"{s}_planned_bytes"] for s in ("native", "emulated"))
    low, high = map(text.digits, entry["ratio_quartiles"])
    return (
        *head,
        text.seconds(entry["native_seconds"]),
        text.seconds(entry["emulated_seconds"]),
        f"{text.digits(entry['ratio'])} ({low} to {high})",
        text.seconds(own),
        text.seconds(other),
        text.digits(other / own),
        " to ".join(f"{size / 2**20:,.0f}" for size in memory) + " MiB",
    )


# ---- The time model.


def time_model(found: Found) -> str:
    """Return the section on the time model: picture, medians by group, missed rows."""
    head = ("", "rows", "median error", "mean", "held out", "median", "mean")
    rows = [
        (
            row["group"],
            str(row["rows"]),
            text.percent(row["median"]),
            text.percent(row["mean"]),
            str(row["held_out_rows"] or ""),
            text.percent(row["held_out_median"]),
            text.percent(row["held_out_mean"]),
            str(row["missed"] or ""),
            text.percent(row["worst"]),
        )
        for row in found["summary"]
    ]
    missed = [e for e in found["entries"] if e["counts"] and _is_missed(e, found)]
    return "\n\n".join(
        [
            "![Predicted against published times](images/bench_time_model.png)",
            _TIME_MODEL,
            text.table((*head, "missed", "worst"), rows),
            f"Missed by more than {found['band']:.0%}:",
            text.table(
                ("row", "group", "published", "predicted", "error"),
                map(_missed, sorted(missed, key=lambda e: -abs(e["error"]))),
            ),
        ]
    )


def kernels(found: Found) -> str:
    """Return medians and orders by op, then every kernel."""
    by_op: dict[tuple[str, str], list[Found]] = {}
    for entry in found["entries"]:
        by_op.setdefault((entry["chip"], entry["op"]), []).append(entry)
    head = ("chip", "op", "kernels", "median error", "mean", "within 30 %", *_ORDER)
    sums = [_kernels_of(chip, op, own) for (chip, op), own in by_op.items()]
    for chip in dict.fromkeys(chip for chip, _ in by_op):
        every = [e for e in found["entries"] if e["chip"] == chip]
        sums.append((*_kernels_of(chip, "all", every)[:6], "", "", ""))
    rows = map(_kernel, found["entries"])
    columns = ("kernel", "chip", "measured", "predicted", "error", *_ACTIVE)
    every = text.folded("Every kernel", text.table(columns, rows))
    return "\n\n".join([_KERNELS, text.table(head, sums), every])


_ACTIVE = ("tensor", "vector", "scalar", "dma")
_ORDER = ("order", "regret", "pairs")
_KERNELS = """These are NKI kernels of kda-for-trainium and of NKIBench (AccelOpt),
whose authors measured them on one core. `make validate-kernels` states what to fetch,
and also prints bytes of HBM. The published times of kda-for-trainium are shorter than a
core can achieve, so we compare with twice the published time. We did not double two of
them (silu_v2_k3 and silu_v2_pingpong). For these, the published time, multiplied
by ScalarE's share according to the profiler, is the time that ScalarE needs. The
published time is therefore complete.

- *Order* is Spearman's correlation of measured and predicted times.
- *Regret* states how much longer the kernel that is predicted to be the fastest takes
  than the kernel that is the fastest.
- *Pairs* considers the pairs of kernels whose measured times differ by more than 5 %,
  and is the share of these pairs that are predicted in the right order.
- A cell in the column of an engine shows two times in milliseconds: first the predicted
  one, then the time in which the engine was active according to the profiler, where
  this is published.

Some figures of the model were fitted to these kernels. The rate of DMA was fitted to
rows of silu and adamw. Two figures were fitted to bmm: the engine that executes an
instruction if the kernel names none, and the decay of TensorE's limit while the array
is used little. The kernels of gqa_full led to two mechanisms of the model: the order in
which TensorE executes its instructions, and the zeros in PSUM. No figure was fitted to
mamba or to the matmuls with RMSNorm. [How sure the times are](times.md) lists what is
not explained."""


def leave_one_out(found: Found) -> str:
    """Return the errors of each op under the figures that the other ops choose."""
    head = ("op", "kernels", "median error", "mean", "left out", "mean")
    own = {figure.name: figure.values[0] for figure in FIGURES}
    rows = (
        (
            e["op"],
            str(e["kernels"]),
            text.percent(e["median_error"]),
            text.percent(e.get("mean_error")),
            text.percent(e["left_out_error"]),
            text.percent(e.get("left_out_mean_error")),
            ", ".join(f"{n} {v:g}" for n, v in e["chosen"].items() if v != own[n]),
        )
        for e in found["entries"]
    )
    head = (*head, "figures that differ")
    return "\n\n".join([_LEFT_OUT, text.table(head, rows)])


_LEFT_OUT = """For each op, every figure that was fitted to kernels takes the value
that suits the other ops best, and *left out* is the error of the op with these values.
The figures are the rate of DMA in a stream, the number of tensors that VectorE reads in
one cycle, the decay of TensorE's limit (`THROTTLE_SINKING`), and the number of
instructions among which a compiler reorders (`REORDER_WINDOW`). The last column lists
figures whose value differs from the model's own. Kernels of more than 30,000
instructions are not included."""


def _kernels_of(chip: str, op: str, found: Sequence[Found]) -> tuple[str, ...]:
    errors = [abs(e["error"]) for e in found]
    order = ("", "", "")
    if len(found) >= FEWEST_OF_AN_ORDER:
        times = [(e["measured_seconds"], e["predicted_seconds"]) for e in found]
        known = order_of(times)
        order = f"{known.spearman:.2f}", f"{known.regret:.1%}", f"{known.pairs:.0%}"
    close = sum(e <= CLOSE for e in errors) / len(errors)
    middle = map(text.percent, (statistics.median(errors), statistics.fmean(errors)))
    return (chip, op, str(len(found)), *middle, f"{close:.0%}", *order)


def _kernel(entry: Found) -> tuple[str, ...]:
    return (
        entry["kernel"].rpartition("/")[2].removesuffix(".py"),
        entry["chip"],
        text.seconds(entry["measured_seconds"]),
        text.seconds(entry["predicted_seconds"]),
        f"{entry['error']:+.0%}",
        *(_active(entry, engine) for engine in _ACTIVE),
    )


def _active(entry: Found, engine: str) -> str:
    share = entry["active"].get(engine)
    if share is None:
        return ""
    predicted = entry["busy_seconds"].get(engine, 0.0)
    return f"{predicted * 1e3:.2f} / {share * entry['measured_seconds'] * 1e3:.2f}"


_TIME_MODEL = """Published times come from the vendor and from third parties, for
hardware that we have not used. `make validate` prints the sources, and the reasons
for missed rows. We fitted nothing to held-out rows. While we made the model, we did
not look at those of trn2, except those of MLP prefill, but we did look at those of trn3
(docs/times.md). The table omits rows that
the model was fitted to, slower variants of a measured workload, published upper bounds
and targets, and figures that look entered by hand. Means are means of absolute
percentage errors. The names T1 to T16 of collectives are those of the published series
in `benchmarks/validate_collectives.py`."""


def _is_missed(entry: Found, found: Found) -> bool:
    return abs(entry["error"]) > found["band"]


def _missed(entry: Found) -> tuple[str, ...]:
    return (
        entry["name"],
        entry["group"],
        text.seconds(entry["published_seconds"]),
        text.seconds(entry["predicted_seconds"]),
        f"{entry['error']:+.0%}",
    )


# ---- Pinned bits.


def regression(found: Found) -> str:
    """Return the table of every hash and its verdict."""
    head = ("program:policy:target", "SHA-256 of the results", "verdict")
    rows = [
        (f"`{e['name']}`", f"`{e['bits'][:16]}`", e["verdict"])
        for e in found["entries"]
    ]
    return f"{_REGRESSION}\n\n{text.folded('Every hash', text.table(head, rows))}"


_REGRESSION = """`python -m benchmarks.regression` runs whole programs, most of them
train steps, and compares the SHA-256 of every output leaf with
`benchmarks/golden_hashes.json`. The last rows are the stored programs of
`tests/golden`. A hash shows that bits do not change over time, machines and
versions. It does not show that they are right; the oracles of the tests do. The verdict
*other program* means that this version of JAX translates the function into a StableHLO
program other than the pinned one."""


def _counts(found: Found) -> dict[str, int]:
    own = [entry["verdict"] for entry in found["entries"]]
    return {name: own.count(name) for name in dict.fromkeys(own)}
