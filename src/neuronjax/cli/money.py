"""`neuronjax estimate` and `estimate-serving`: what training and serving would cost."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from rich.console import Console

from neuronjax.api.estimate import (
    Estimate,
    Machine,
    ServingChipWarning,
    estimate as estimate_step,
)
from neuronjax.api.estimate_serving import estimate_serving as estimate_served
from neuronjax.cli.application import JsonOption, print_json
from neuronjax.cli.sources import FunctionSource, ShapesOption, SourceArgument, find
from neuronjax.errors import InvalidProgramError
from neuronjax.timing.money import Terms

InstancesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--instance",
        metavar="I",
        help="An instance or UltraServer; repeatable. Default: trn2.48xlarge.",
    ),
]
PoliciesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--policy",
        metavar="P",
        help="The numerics; repeatable. Default: the SDK's.",
    ),
]
PricesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--price",
        metavar="[I=]USD",
        help="Dollars per hour of the whole instance; repeatable. "
        "Default: the list price.",
    ),
]
TermsOption = Annotated[
    str | None,
    typer.Option(help="Of list prices: 'on demand' or 'Capacity Block'."),
]
DevicesOption = Annotated[
    int | None, typer.Option(help="Logical cores in use. Default: all.")
]
WattsOption = Annotated[
    float | None, typer.Option(help="Of the whole instance, on average.")
]
LncOption = Annotated[
    int | None,
    typer.Option("--lnc", help="Physical cores per logical core; default: the chip's."),
]


def estimate(
    source: SourceArgument,
    instances: InstancesOption = None,
    policies: PoliciesOption = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps until the model is trained.")
    ] = None,
    tokens: Annotated[
        float | None, typer.Option(help="Instead: tokens to train on, such as 2e9.")
    ] = None,
    tokens_per_step: Annotated[
        float | None, typer.Option(help="Tokens in the arguments of one call.")
    ] = None,
    prices: PricesOption = None,
    terms: TermsOption = None,
    devices: DevicesOption = None,
    watts: WattsOption = None,
    lnc: LncOption = None,
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
        lnc=lnc,
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


def estimate_serving(
    prefill: Annotated[
        str, typer.Argument(help="Reads a prompt into a KV cache.", show_default=False)
    ],
    decode: Annotated[
        str,
        typer.Argument(help="Makes one token per sequence.", show_default=False),
    ],
    prompt_tokens: Annotated[
        int, typer.Option(help="Of one request.", show_default=False)
    ],
    output_tokens: Annotated[
        int, typer.Option(help="Of one answer.", show_default=False)
    ],
    batch: Annotated[
        int, typer.Option(help="Sequences that DECODE works on.", show_default=False)
    ],
    prefill_batch: Annotated[
        int, typer.Option(help="Sequences that PREFILL works on.")
    ] = 1,
    instances: InstancesOption = None,
    policies: PoliciesOption = None,
    prices: PricesOption = None,
    terms: TermsOption = None,
    devices: DevicesOption = None,
    watts: WattsOption = None,
    lnc: LncOption = None,
    utilization: Annotated[
        float, typer.Option(help="Share of the rented time in which copies are full.")
    ] = 1.0,
    prefill_shapes: Annotated[
        str | None,
        typer.Option(
            "--prefill-args",
            metavar="SHAPES",
            help="The arguments of PREFILL: 'f32[8,16] i32[4]'. "
            "Default: its attribute example_args.",
        ),
    ] = None,
    decode_shapes: Annotated[
        str | None,
        typer.Option("--decode-args", metavar="SHAPES", help="Those of DECODE."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Predicts latency, throughput and price of served tokens.

    PREFILL and DECODE are saved programs, or functions (`file.py:function`), over the
    same weights and KV cache. Every logical core serves a batch of its own. Nothing is
    run: seconds are those of `neuronjax profile`.

    Examples:

        neuronjax estimate-serving serve.py:prefill serve.py:decode --batch 8
            --prompt-tokens 1024 --output-tokens 256 --instance inf2.48xlarge
        neuronjax estimate-serving prefill.mlirbc decode.mlirbc --batch 8
            --prompt-tokens 1024 --output-tokens 256 --price 30 --watts 9000
    """
    first, first_arguments = _program(prefill, prefill_shapes)
    then, then_arguments = _program(decode, decode_shapes)
    priced = estimate_served(
        first,
        then,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        batch=batch,
        prefill_batch=prefill_batch,
        instance=instances or None,
        policy=policies or None,
        price_per_hour=_prices(prices or []),
        terms=cast("Terms | None", terms),
        devices=devices,
        watts=watts,
        lnc=lnc,
        utilization=utilization,
    )(first_arguments, then_arguments)
    if as_json:
        print_json(priced.as_dict())
    else:
        Console().print(priced)


def _program(source: str, shapes: str | None) -> tuple[Any, tuple[Any, ...]]:
    """What to estimate, and the arguments of its call."""
    found = find(source)
    if isinstance(found, Path):
        return found, ()
    return found.function, found.arguments(shapes)


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
