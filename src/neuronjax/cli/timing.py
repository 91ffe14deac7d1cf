"""`neuronjax profile`, `compare-targets` and `constants`: the time model."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from neuronjax.api.asked import own_setting
from neuronjax.api.profile import profile as profile_step
from neuronjax.cli import application
from neuronjax.cli.options import CommandConsole, Offer, options_of
from neuronjax.cli.sources import ShapesOption, SourceArgument, program
from neuronjax.errors import InvalidProgramError, NeuronJaxError
from neuronjax.execution import stages
from neuronjax.hardware import CHIPS
from neuronjax.policy import Policy
from neuronjax.policy.values import check_word
from neuronjax.report.profile_tables import QUEUE_TITLES, metrics_table
from neuronjax.report.quantities import binary, percent, seconds
from neuronjax.report.setting import numerics_of
from neuronjax.report.tables import NAME, NUMBER, PLAIN
from neuronjax.timing.assumptions import (
    COLLECTIVE_CONSTANTS as COLLECTIVES,
    CONSTANTS as RULES,
    PLANNING_CONSTANTS as PLANNING,
    Constant,
)
from neuronjax.timing.hbm import capacity_bytes, check_fits

_TARGETS = tuple(name for name, chip in CHIPS.items() if not chip.projected)


def _peak(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text


def _turns(text: str) -> tuple[str, int]:
    """Return the line and the number of iterations in "train.py:12=100"."""
    line, _, number = text.rpartition("=")
    if not line or not number.isdecimal():
        raise InvalidProgramError(
            f"cannot read --trips {text}", remedy="write FILE:LINE=N: train.py:12=100"
        )
    return line, int(number)


#: The values of --by, which decides what a row of a profile stands for.
_GROUPS = ("op", "source", "module", "phase")


@options_of(
    profile_step,
    "lnc",
    peak=Offer(read=_peak),
    batch_argnums=Offer(
        flag="--batch",
        metavar="N",
        help="With --limits: also predict the time of other batch sizes. N, from 0, is "
        "the position of an argument whose leading axis is the batch.",
        repeated=True,
    ),
    trips=Offer(
        metavar="FILE:LINE=N",
        repeated=True,
        read=lambda given: dict(map(_turns, given)),
    ),
)
def profile(
    source: SourceArgument,
    target: application.OwnTargetOption = None,
    policy: application.PolicyOption = None,
    shapes: ShapesOption = None,
    *,
    by: Annotated[
        str,
        typer.Option(
            help=f"The rows of the table: {', '.join(_GROUPS)} (forward, backward, "
            "optimizer)."
        ),
    ] = "op",
    rows: Annotated[int, typer.Option(min=1, help="The largest number of rows.")] = 12,
    metrics: Annotated[
        bool,
        typer.Option("--metrics", help="Also print the metrics of AWS's profiler."),
    ] = False,
    limits: Annotated[
        bool, typer.Option(help="Predict the time that changes would save.")
    ] = True,
    plot: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the plots to a file.")
    ] = None,
    perfetto: Annotated[
        Path | None,
        typer.Option(dir_okay=False, help="Write the timeline for ui.perfetto.dev."),
    ] = None,
    csv: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write the timeline as CSV.")
    ] = None,
    as_json: application.JsonOption = False,
    **keywords: Any,
) -> None:
    """Predict where the time of a program goes, and what would make it faster.

    The command predicts from shapes alone the time on one logical core (one or more
    cores that work as one). `neuronjax constants` lists the figures that it uses.

    Examples:

        neuronjax profile model.mlirbc --target trn3 --plot profile.png
        neuronjax profile train.py:step --args 'f32[8,16] i32[8]' --by source
        neuronjax profile train.py:step --policy fp8 --perfetto step.pftrace
        neuronjax profile kernels.py:kernel --args 'bf16[1024,1024]' --by source
    """
    application.check_folders([plot, perfetto, csv])
    check_word("--by", by, _GROUPS)
    with stages.watching(source, "loading"):
        function, arguments = program(source, shapes)
        profiled = profile_step(function, target=target, policy=policy, **keywords)
        result = profiled(*arguments)
        stages.stage("pricing changes")
        priced = result.limits() if limits else ()
        stages.stage("writing")
        if plot:
            result.plot().savefig(plot)
        if perfetto:
            result.to_perfetto(perfetto)
        if csv:
            result.to_csv(csv)
    if as_json:
        changes = [dataclasses.asdict(change) for change in priced]
        application.print_json({**result.as_dict(), "limits": changes})
        return
    console = CommandConsole()
    console.print(result.headline())
    console.print(getattr(result, f"by_{by}")().table(rows))
    console.print(result.confidence_table())
    if metrics:
        console.print(metrics_table(result.metrics))
    if limits:
        console.print(result.limits_table())
    for note in result.notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    error = check_fits(result.memory, result.core)
    if error is not None:
        console.print(f"warning: {error}", markup=False, highlight=False)


def compare_targets(
    source: SourceArgument,
    targets: Annotated[
        list[str] | None,
        typer.Option(
            "--target",
            help=f"A chip. Repeatable. Default: {', '.join(_TARGETS)}.",
            metavar="T",
        ),
    ] = None,
    policy: application.PolicyOption = None,
    shapes: ShapesOption = None,
    as_json: application.JsonOption = False,
) -> None:
    """Predict the time of a program on several chips, and whether it fits in memory.

    The times are for one logical core of each chip, and chips differ in their number of
    cores. If a chip cannot run the program, the table has the reason.

    Examples:

        neuronjax compare-targets model.mlirbc
        neuronjax compare-targets train.py:step --args 'f32[8,16]' --policy bf16
    """
    with stages.watching(source, "loading"):
        function, arguments = program(source, shapes)
        numerics = Policy.resolve(policy or own_setting(function).get("policy"))
        names = targets or _TARGETS
        rows = [_row(function, arguments, name, numerics) for name in names]
    if as_json:
        application.print_json(rows)
    else:
        Console().print(_comparison(f"{source}, {numerics_of(numerics)}", rows))


def _row(
    function: Any, arguments: tuple[Any, ...], target: str, policy: Policy
) -> dict[str, Any]:
    try:
        result = profile_step(function, target=target, policy=policy)(*arguments)
    except NeuronJaxError as error:
        return {"target": target, "error": str(error)}
    needed, capacity = result.memory.hbm.bytes, capacity_bytes(result.core)
    return {
        "target": target,
        "lnc": result.core.lnc,
        "seconds": result.total_seconds,
        "interval_seconds": result.confidence
        and (result.confidence.low_seconds, result.confidence.high_seconds),
        "knows_chip": result.confidence and result.confidence.knows_chip,
        "mfu": result.metrics["mfu_estimated_percent"],
        "mbu": result.metrics["mbu_estimated_percent"],
        "bound": result.bound,
        "busiest": result.busiest,
        "busiest_share": result.timeline.busy_seconds(result.busiest)
        / result.total_seconds,
        "hbm_bytes": needed,
        "hbm_capacity_bytes": capacity,
        "fits": needed <= capacity,
    }


def _comparison(title: str, found: list[dict[str, Any]]) -> Table:
    rows = application.table(
        title,
        {"target": NAME}
        | dict.fromkeys(("LNC", "time", "× first", "MFU", "MBU"), NUMBER)
        | {"busiest queue": PLAIN, "HBM needed": NUMBER},
    )
    known = [row for row in found if "error" not in row]
    for row in known:
        share = percent(row["hbm_bytes"] / row["hbm_capacity_bytes"])
        memory = Text(f"{binary(row['hbm_bytes'])}, ")
        memory.append(share, "" if row["fits"] else "red")
        rows.add_row(
            row["target"],
            str(row["lnc"]),
            seconds(row["seconds"]),
            f"{row['seconds'] / known[0]['seconds']:.2f}",
            percent(row["mfu"]),
            percent(row["mbu"]),
            f"{QUEUE_TITLES[row['busiest']]} {percent(row['busiest_share'])}",
            memory,
        )
    failed = [
        f"80 % interval, {row['target']}: {' to '.join(map(seconds, interval))}"
        + ("" if row["knows_chip"] else " (no similar program ran on this chip)")
        for row in known
        if (interval := row["interval_seconds"])
    ]
    failed += [escape(f"{r['target']}: {r['error']}") for r in found if "error" in r]
    rows.caption = "\n".join(failed) or None
    return rows


def constants(
    text: Annotated[
        str, typer.Argument(metavar="FILTER", help="List only names with this text.")
    ] = "",
    assumptions: Annotated[
        bool, typer.Option("--assumptions", help="List only unpublished figures.")
    ] = False,
    as_json: application.JsonOption = False,
) -> None:
    """List the constants of the time model, except those of a chip's data sheet.

    A figure marked ASSUMPTION is not published. "fitted to" names the measurement that
    we fitted a figure to. `neuronjax ls CHIP` lists the facts of a chip.

    Examples:

        neuronjax constants
        neuronjax constants dma
        neuronjax constants --assumptions --json
    """
    every = (*RULES.values(), *PLANNING.values(), *COLLECTIVES.values())
    chosen = [c for c in every if text.lower() in c.name.lower()]
    chosen = [c for c in chosen if c.is_assumption or not assumptions]
    if not chosen:
        raise InvalidProgramError(
            f"no constant has {text!r} in its name",
            remedy="list all: neuronjax constants",
        )
    assumed = sum(constant.is_assumption for constant in chosen)
    title = f"The time model: {len(chosen)} figures, {assumed} of them assumptions"
    shown = constants_table(title, chosen)
    application.show(shown, lambda: [*map(vars, chosen)], as_json)


def constants_table(title: str, chosen: Sequence[Constant]) -> Table:
    """Return a table of figures with their sources."""
    rows = application.table(
        title,
        {
            "name": {"style": "bold", "overflow": "fold", "max_width": 24},
            "value": NUMBER,
            "source": {"overflow": "fold"},
        },
        leading=1,
    )
    for constant in chosen:
        value = f"{constant.value:.6g} {constant.unit}"
        value = seconds(constant.value) if constant.unit == "s" else value
        mark = [("ASSUMPTION", "yellow"), ": "] if constant.is_assumption else []
        fitted = f" (fitted to {constant.fitted_to})" if constant.fitted_to else ""
        source = Text.assemble(*mark, constant.source, fitted)
        rows.add_row(constant.name, value, source)
    return rows
