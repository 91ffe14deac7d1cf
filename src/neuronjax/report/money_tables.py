"""The cost of training and serving, as tables of at most 80 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from rich.console import Group
from rich.table import Table
from rich.text import Text

from neuronjax.report.quantities import binary, decimal, percent, seconds
from neuronjax.report.tables import NUMBER, new_table
from neuronjax.timing.money import TrainingCost
from neuronjax.timing.serving_money import ServingCost

_NOBODY = "-"
#: MJ in a kWh, so that kWh per million tokens become joules per token.
_MEGAJOULES = 3.6
_Cost = TypeVar("_Cost", TrainingCost, ServingCost)


def dollars(value: float | None) -> str:
    """Return dollars as text: "$1,234", "$12.34", "$0.0123"; "-" for None."""
    if value is None:
        return _NOBODY
    if value >= 1000:
        return f"${value:,.0f}"
    return f"${value:,.2f}" if value >= 1 or value == 0 else f"${value:.3g}"


def duration(hours: float | None) -> str:
    """Return hours as text: "12.5 s", "34 min", "1.5 h", "12.3 d"; "-" for None."""
    if hours is None:
        return _NOBODY
    if hours < 1 / 60:
        return seconds(hours * 3600)
    if hours < 1:
        return f"{hours * 60:.3g} min"
    return f"{hours:.3g} h" if hours < 48 else f"{hours / 24:,.3g} d"


def _count(value: float | None) -> str:
    return _NOBODY if value is None else decimal(value)


def _energy(value: float | None, share: float = 1.0) -> str:
    return _NOBODY if value is None else f"{value * share:.3g}"


def _per_million(value: float | None) -> str:
    """Return dollars without the dollar sign, since the heading has it."""
    return dollars(value).removeprefix("$")


def _hbm(cost: TrainingCost | ServingCost) -> Text:
    share = percent(cost.hbm_bytes / cost.hbm_capacity_bytes)
    return Text(share, "" if cost.fits else "red")


def _table(
    title: str,
    costs: Sequence[_Cost],
    columns: Mapping[str, Callable[[_Cost], str | Text]],
    caption: str | None = None,
) -> Table:
    """Return a table of costs, without the columns that are unknown in all rows."""
    # Long names break after hyphens.
    names: dict[str, Callable[[_Cost], str | Text]] = {
        "machine": lambda c: textwrap.fill(c.machine, 17, break_long_words=False)
    }
    if len({cost.policy for cost in costs if cost.policy}) > 1:
        names["policy"] = lambda cost: cost.policy or _NOBODY
    cells = {heading: list(map(cell, costs)) for heading, cell in columns.items()}
    known = {h: c for h, c in cells.items() if any(cell != _NOBODY for cell in c)}
    named = [map(cell, costs) for cell in names.values()]
    return new_table(
        title,
        {name: {"style": "bold", "overflow": "fold"} for name in names}
        | dict.fromkeys(known, NUMBER),
        zip(*named, *known.values(), strict=True),
        caption,
    )


# The explanation of `timing.collectives.queued_launch_seconds`.
_LAUNCH = (
    "wait: starting the next call (the launch) takes longer than the chips compute, so "
    "they wait for it in each step; the steps of one jax.lax.scan need only one launch"
)


def training_tables(
    title: str, costs: Sequence[TrainingCost], remarks: Sequence[str]
) -> Group:
    """Return a table of a run's time and money, one of a step's parts, and remarks."""
    columns: dict[str, Callable[[TrainingCost], str | Text]] = {
        "step": lambda cost: seconds(cost.step_seconds),
        "tok/s": lambda cost: _count(cost.tokens_per_second),
        "time": lambda cost: duration(cost.hours),
        "kWh": lambda cost: _count(cost.energy_kwh),
        "cost": lambda cost: dollars(cost.dollars),
        "$/Mtok": lambda cost: _per_million(cost.dollars_per_million_tokens),
        # The price of the same amount of data, relative to the first row.
        "× first": lambda cost: (
            f"{cost.dollars_per_batch / costs[0].dollars_per_batch:.2f}"
        ),
    }
    parts: dict[str, Callable[[TrainingCost], str | Text]] = {
        "copies": lambda cost: f"{cost.copies:,}",
        "compute": lambda cost: seconds(cost.time.compute_seconds),
        "reduce": lambda cost: seconds(cost.time.all_reduce_seconds),
        "exposed": lambda cost: seconds(cost.time.exposed_seconds),
        "wait": lambda cost: seconds(cost.time.launch_seconds),
        "HBM used": _hbm,
    }
    own = [cost for cost in costs if cost.devices]
    tables = [_table(title, costs, columns)]
    if own:
        tables.append(_table("Parts of a step", own, parts, _LAUNCH))
    return Group(*tables, *map(Text, remarks))


def serving_tables(
    title: str, costs: Sequence[ServingCost], remarks: Sequence[str]
) -> Group:
    """Return tables of latency and money, memory, and energy if known; and remarks."""
    speed: dict[str, Callable[[ServingCost], str | Text]] = {
        "TTFT": lambda cost: seconds(cost.time_to_first_token_seconds),
        "ITL": lambda cost: seconds(cost.inter_token_seconds),
        "ITL, busy": lambda cost: seconds(cost.loaded_inter_token_seconds),
        "tok/s": lambda cost: _count(cost.output_tokens_per_second),
        "$/Mtok in": lambda cost: _per_million(cost.dollars_per_million_input_tokens),
        "out": lambda cost: _per_million(cost.dollars_per_million_output_tokens),
    }
    memory: dict[str, Callable[[ServingCost], str | Text]] = {
        "copies": lambda cost: f"{cost.copies:,}",
        "weights": lambda cost: binary(cost.weights_bytes),
        "KV cache": lambda cost: binary(cost.kv_cache_bytes),
        "HBM used": _hbm,
        "largest batch": lambda cost: (
            _NOBODY if cost.max_batch is None else f"{cost.max_batch:,}"
        ),
        "$/Mtok": lambda cost: _per_million(cost.dollars_per_million_tokens),
    }
    held = "Memory of one logical core; dollars per million tokens, in and out averaged"
    tables = [_table(title, costs, speed), _table(held, costs, memory)]
    if any(cost.kwh_per_million_tokens is not None for cost in costs):
        energy: dict[str, Callable[[ServingCost], str | Text]] = {
            "kWh/Mtok": lambda cost: _energy(cost.kwh_per_million_tokens),
            "J/token": lambda cost: _energy(cost.kwh_per_million_tokens, _MEGAJOULES),
        }
        tables.append(_table("Energy of all tokens, prompts included", costs, energy))
    return Group(*tables, *map(Text, remarks))
