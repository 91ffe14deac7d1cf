"""`neuronjax study`: tests whether a loop trains under each policy, and prices it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

import neuronjax as nj
from neuronjax.api.study import study as study_training
from neuronjax.cli.application import CacheOption, JsonOption, check_folders, show
from neuronjax.cli.money import AGAINST, INSTANCES
from neuronjax.cli.options import Offer, options_of
from neuronjax.cli.sources import FunctionSource, find, program
from neuronjax.errors import InvalidProgramError


def read_policies(given: Sequence[str]) -> list[str | nj.Policy]:
    """Return two policies for "native,bf16", one for "bf16,rounding=stochastic"."""
    policies: list[str | nj.Policy] = []
    for text in given:
        if "=" in text:
            policies.append(replace(nj.Policy.resolve(text), name=text))
        else:
            policies += text.split(",")
    return policies


_POLICIES = Offer(
    metavar="P[,P]",
    help='Required. "native" (jax.jit), a policy ("bf16"), a policy on one target '
    '("trn3/mxfp8"), or a policy with changed fields ("bf16,rounding=stochastic").',
    repeated=True,
    read=read_policies,
)
_TARGETS = Offer(
    flag="--target",
    metavar="T",
    help="The chip, instance or UltraServer (instances joined by AWS) to emulate. "
    "Default: trn2.",
    repeated=True,
)
_INSTANCES = replace(
    INSTANCES,
    help="With --at: the instance or UltraServer whose price is used. Default: the "
    "step's target; if the target is a chip, the largest instance with this chip; if "
    "the step has no target, trn2.48xlarge.",
)
_AGAINST = replace(
    AGAINST,
    help="With --at: a machine that you measured, as NAME=SECONDS,USD: seconds per "
    "step, dollars per hour.",
)


@options_of(
    study_training,
    *("margin", "until_sure", "folder", "if_changed", "baseline"),
    policies=_POLICIES,
    seeds=Offer(help="The number of seeds: 5 means the seeds 0 to 4."),
    find_fault=Offer(flag="--find-fault/--no-find-fault"),
    targets=_TARGETS,
    instance=_INSTANCES,
    steps=Offer(help="With --at: number of training steps of the full-size baseline."),
    against=_AGAINST,
)
def study(
    source: Annotated[
        str,
        typer.Argument(
            help="The loop: `file.py` with a function `train`, or `file.py:function`.",
            show_default=False,
        ),
    ],
    at: Annotated[
        str | None,
        typer.Option(
            metavar="FUNCTION",
            help="The training step of the full-size model, `file.py:function`. The "
            "command then also predicts the cost of training this model.",
        ),
    ] = None,
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            "--at-args",
            metavar="SHAPES",
            help="With --at: the step's arguments, 'f32[8,16] i32[4]'. Repeatable. "
            "Default: the step's attribute example_args.",
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write a plot of the losses.")
    ] = None,
    cache: CacheOption = True,
    *,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Train a model under several policies, and compare the losses.

    A policy states how numbers are cast and rounded. The loop is a generator function
    `train(jit, seed)`, which compiles its step with `jit` and yields every step's loss.

    Examples:

        neuronjax study train.py --policies native,bf16,fp8 --seeds 5
        neuronjax study train.py --policies native,bf16,fp8,mxfp8 --target trn3
            --seeds 8 --until-sure --folder runs --output curves.png
        neuronjax study train.py --policies native,bf16,fp8 --at model.py:step
            --steps 100000 --instance trn2.48xlarge --against 'H100 x 8=0.21,55'
    """
    check_folders([output])
    if cache:
        nj.keep_compiled()
    train = find(source if ":" in source else f"{source}:train")
    if not isinstance(train, FunctionSource):
        raise InvalidProgramError(
            f"{source} is a saved program, not a training loop",
            remedy="give a Python file with a generator function train(jit, seed)",
        )
    if at is not None:
        step, arguments = program(at, shapes)
        keywords["at"] = (step, *arguments)
    results = study_training(train.function, **keywords)
    show(results, results.as_dict, as_json)
    if output:
        results.plot().savefig(output)
        Console(stderr=True, soft_wrap=True).print(f"Curves: {output}", highlight=False)
