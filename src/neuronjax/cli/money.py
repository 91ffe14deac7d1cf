"""`neuronjax estimate`: what it would cost to train with a program."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from neuronjax.cli.application import JsonOption, print_json
from neuronjax.cli.sources import FunctionSource, ShapesOption, SourceArgument, find
from neuronjax.errors import InvalidProgramError
from neuronjax.estimating import Estimate, Machine, ServingChipWarning
from neuronjax.estimating import estimate as estimate_step


def estimate(
    source: SourceArgument,
    instances: Annotated[
        list[str] | None,
        typer.Option(
            "--instance",
            metavar="I",
            help="An instance or UltraServer; repeatable. Default: trn2.48xlarge.",
        ),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policy",
            metavar="P",
            help="The numerics; repeatable. Default: the SDK's.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps until the model is trained.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Instead: tokens to train on, such as 2e9.")
    ] = None,
    tokens_per_step: Annotated[
        float | None, typer.Option(help="Tokens in the arguments of one call.")
    ] = None,
    prices: Annotated[
        list[str] | None,
        typer.Option(
            "--price",
            metavar="[I=]USD",
            help="Dollars per hour of the whole instance; repeatable. "
            "Default: the list price.",
        ),
    ] = None,
    terms: Annotated[
        str | None,
        typer.Option(help="Of list prices: 'on demand' or 'Capacity Block'."),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(help="Logical cores in use. Default: all.")
    ] = None,
    watts: Annotated[
        float | None, typer.Option(help="Of the whole instance, on average.")
    ] = None,
    utilization: Annotated[
        float, typer.Option(help="Share of the rented time in which steps run.")
    ] = 1.0,
    against: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=SECONDS,USD[,TOKENS]",
            help="A machine you measured: seconds of a step, dollars per hour, tokens "
            "of a step; repeatable.",
        ),
    ] = None,
    shapes: ShapesOption = None,
    as_json: JsonOption = False,
) -> None:
    """Predicts what it costs to train with a program, on one instance or several.

    Every logical core runs a copy of the program with a batch of its own, and the
    gradients are added up. Nothing is run: seconds are those of `neuronjax profile`.

    Examples:

        neuronjax estimate train.py:step --instance trn1.32xlarge --steps 10000
        neuronjax estimate train.py:step --policy bf16 --policy fp8 --tokens 2e9
            --tokens-per-step 8192 --instance trn1.32xlarge --instance trn2.48xlarge
        neuronjax estimate step.mlirbc --price 30 --against 'H100 x 8=0.21,55'
    """
    found = find(source)
    options: dict[str, Any] = dict(
        instance=instances or None,
        policy=policies or None,
        steps=steps,
        tokens=tokens,
        tokens_per_step=tokens_per_step,
        price_per_hour=_prices(prices or []),
        terms=terms,
        devices=devices,
        watts=watts,
        utilization=utilization,
        against=tuple(map(_machine, against or ())),
    )
    priced = _estimate(found, shapes, options)
    if as_json:
        print_json(priced.as_dict())
    else:
        Console().print(priced)


def _estimate(
    found: FunctionSource | Path, shapes: str | None, options: dict[str, Any]
) -> Estimate:
    with warnings.catch_warnings():
        # The estimate's notes say the same.
        warnings.simplefilter("ignore", ServingChipWarning)
        if isinstance(found, Path):
            return estimate_step(found, **options)()
        return estimate_step(found.function, **options)(*found.arguments(shapes))


def _prices(given: list[str]) -> float | dict[str, float] | None:
    """ "30" for all, or "trn2.48xlarge=30" by name."""
    if len(given) == 1 and "=" not in given[0]:
        return _number("--price", given[0])
    named = (text.rpartition("=") for text in given)
    found = {name: _number("--price", usd) for name, _, usd in named}
    if "" in found:
        raise InvalidProgramError(
            f"--price {' --price '.join(given)}",
            remedy="write one price, or INSTANCE=USD for each",
        )
    return found or None


def _machine(text: str) -> Machine:
    """ "NAME=SECONDS,USD" or "NAME=SECONDS,USD,TOKENS"."""
    name, _, figures = text.rpartition("=")
    numbers = [_number("--against", part) for part in figures.split(",")]
    if not name or len(numbers) not in (2, 3):
        raise InvalidProgramError(
            f"--against {text}", remedy="write NAME=SECONDS,USD, as 'H100 x 8=0.21,55'"
        )
    seconds, usd, *rest = numbers
    return Machine(
        name=name,
        step_seconds=seconds,
        price_per_hour=usd,
        tokens_per_step=rest[0] if rest else None,
    )


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidProgramError(
            f"{option}: {text!r} is no number", remedy="write it as 12.5"
        ) from None
