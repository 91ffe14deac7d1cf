"""`neuronjax estimate` and `estimate-serving`: predict what training and serving
cost."""

from __future__ import annotations

import warnings
from typing import Annotated, Any

import typer

from neuronjax.api.estimate import ServingChipWarning, estimate as estimate_step
from neuronjax.api.estimate_serving import estimate_serving as estimate_served
from neuronjax.cli.application import JsonOption, show
from neuronjax.cli.options import Offer, options_of
from neuronjax.cli.sources import ShapesOption, SourceArgument, program
from neuronjax.errors import InvalidProgramError
from neuronjax.execution import stages


def _prices(given: list[str]) -> float | dict[str, float]:
    """Return the price in ["30"], or prices by name for ["trn2.48xlarge=30"]."""
    if len(given) == 1 and "=" not in given[0]:
        return _number("--price", given[0])
    named = (text.rpartition("=") for text in given)
    prices = {name: _number("--price", usd) for name, _, usd in named}
    if "" in prices:
        raise InvalidProgramError(
            f"cannot read --price {' --price '.join(given)}",
            remedy="write one price, or INSTANCE=USD for each",
        )
    return prices


def _machine(text: str) -> dict[str, Any]:
    """Return the fields of the machine that "NAME=SECONDS,USD[,TOKENS]" describes."""
    name, _, figures = text.rpartition("=")
    numbers = [_number("--against", part) for part in figures.split(",")]
    if not name or len(numbers) not in (2, 3):
        raise InvalidProgramError(
            f"cannot read --against {text}", remedy="write NAME=SECONDS,USD"
        )
    fields = ("step_seconds", "price_per_hour", "tokens_per_step")
    return {"name": name, **dict(zip(fields, numbers, strict=False))}


def _number(option: str, text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidProgramError(
            f"{option}: {text!r} is no number", remedy="write a number such as 12.5"
        ) from None


INSTANCES = Offer(metavar="I", repeated=True)
_POLICIES = Offer(metavar="P", repeated=True)
_PRICES = Offer(flag="--price", metavar="[INSTANCE=]USD", repeated=True, read=_prices)
AGAINST = Offer(
    metavar="MACHINE",
    help="A machine that you measured, as NAME=SECONDS,USD[,TOKENS]: for the whole "
    "machine, seconds per step, dollars per hour and tokens per step.",
    repeated=True,
    read=lambda given: tuple(map(_machine, given)),
)


@options_of(
    estimate_step,
    *("steps", "tokens", "tokens_per_step", "terms", "devices", "watts", "lnc"),
    "utilization",
    instance=INSTANCES,
    policy=_POLICIES,
    price_per_hour=_PRICES,
    against=AGAINST,
)
def estimate(
    source: SourceArgument,
    shapes: ShapesOption = None,
    *,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Predict, from a training step, the cost of training on one or more instances.

    Every copy of the step has its own batch, and runs on one logical core or, with a
    mesh, on several. The gradients of all copies are added. Nothing is executed. The
    time of a step is that of `neuronjax profile`, plus the part of the addition that
    does not overlap with the backward pass. If the next call takes longer to start than
    the step takes, the difference is added.

    Examples:

        neuronjax estimate train.py:step --instance trn1.32xlarge --steps 10000
        neuronjax estimate train.py:step --policy bf16 --policy fp8 --tokens 2e9
            --tokens-per-step 8192 --instance trn1.32xlarge --instance trn2.48xlarge
        neuronjax estimate step.mlirbc --price 30 --against 'H100 x 8=0.21,55'
    """
    with stages.watching(source, "loading"), warnings.catch_warnings():
        # The estimate's notes contain this warning.
        warnings.simplefilter("ignore", ServingChipWarning)
        step, arguments = program(source, shapes)
        priced = estimate_step(step, **keywords)(*arguments)
    show(priced, priced.as_dict, as_json)


@options_of(
    estimate_served,
    *("prompt_tokens", "output_tokens", "batch", "prefill_batch"),
    *("terms", "devices", "watts", "lnc", "utilization"),
    instance=INSTANCES,
    policy=_POLICIES,
    price_per_hour=_PRICES,
)
def estimate_serving(
    prefill: Annotated[
        str, typer.Argument(help="The program that reads a prompt.", show_default=False)
    ],
    decode: Annotated[
        str, typer.Argument(help="The program that makes a token.", show_default=False)
    ],
    *,
    prefill_shapes: Annotated[
        str | None,
        typer.Option(
            "--prefill-args",
            metavar="SHAPES",
            help="The arguments of PREFILL, 'f32[8,16] i32[4]'. "
            "Default: the program's attribute example_args.",
        ),
    ] = None,
    decode_shapes: Annotated[
        str | None,
        typer.Option("--decode-args", metavar="SHAPES", help="DECODE's arguments."),
    ] = None,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Predict the latency, the throughput and the price per token of a served model.

    PREFILL and DECODE are saved programs, or functions (`file.py:function`). They use
    the same weights and the same KV cache. Every logical core serves a batch of its
    own. The command executes nothing: the times are those of `neuronjax profile`.

    Examples:

        neuronjax estimate-serving serve.py:prefill serve.py:decode --batch 8
            --prompt-tokens 1024 --output-tokens 256 --instance inf2.48xlarge
        neuronjax estimate-serving prefill.mlirbc decode.mlirbc --batch 8
            --prompt-tokens 1024 --output-tokens 256 --price 30 --watts 9000
    """
    with stages.watching(f"{prefill} and {decode}", "loading"):
        first, first_arguments = program(prefill, prefill_shapes)
        then, then_arguments = program(decode, decode_shapes)
        estimated = estimate_served(first, then, **keywords)
        priced = estimated(first_arguments, then_arguments)
    show(priced, priced.as_dict, as_json)
