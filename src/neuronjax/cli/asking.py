"""The commands `check`, `compare`, `tolerance`, `compare-dump` and `search`.

Each calls a public function of neuronjax, its *verb*, on a program. The decorator
`asks` declares the options for the program, the target and the arguments, which all
these commands have. The decorated command receives `ask`, a function that calls the
verb, and the values of the other options.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from neuronjax.api.check import check as check_function
from neuronjax.api.compare import compare as compare_function
from neuronjax.api.compare_dump import compare_dump as compare_with_dump
from neuronjax.api.keep_compiled import keep_compiled
from neuronjax.api.search_precision import search_precision
from neuronjax.api.tolerance import tolerance as tolerance_of
from neuronjax.cli import application, sources
from neuronjax.cli.options import CommandConsole, Offer, options_of

#: A function that calls the verb with keywords, and returns the result of the verb.
Ask = Callable[..., Any]
Command = Callable[..., None]


def _of_types(
    source: sources.SourceArgument,
    target: application.OwnTargetOption = None,
    policy: application.PolicyOption = None,
    shapes: sources.ShapesOption = None,
    *,
    as_json: application.JsonOption = False,
) -> Ask:
    """Return an `Ask` that calls a verb with a program's arguments, or their types."""

    def ask(verb: Callable[..., Any], **keywords: Any) -> Any:
        function, arguments = sources.program(source, shapes)
        return verb(function, **keywords)(*arguments)

    return ask


def _of_values(
    source: sources.SourceArgument,
    target: application.OwnTargetOption = None,
    policy: application.PolicyOption = None,
    shapes: sources.ShapesOption = None,
    inputs: sources.InputsOption = None,
    seed: sources.SeedOption = 0,
    *,
    cache: application.CacheOption = True,
    as_json: application.JsonOption = False,
) -> Ask:
    """Return an `Ask` that calls a verb with a program's arguments as arrays."""
    if cache:
        keep_compiled()

    def ask(verb: Callable[..., Any], **keywords: Any) -> Any:
        named_source = sources.find(source)
        asked = verb(named_source.function, **keywords)
        arguments, named = named_source.values(shapes, inputs, seed)
        return asked(*arguments, **named)

    return ask


def asks(
    verb: Callable[..., Any],
    *keywords: str,
    how: Callable[..., Ask] = _of_values,
    **offers: Offer,
) -> Callable[[Command], Command]:
    """Return a decorator for commands that call a verb on a program.

    Args:
        verb: the public function.
        *keywords: as in `options_of`.
        how: the function that reads the program. Its parameters are options of the
            command too.
        **offers: as in `options_of`.
    """
    shared = dict(inspect.signature(how, eval_str=True).parameters)
    of_verb = {"target", "policy"} & inspect.signature(verb).parameters.keys()

    def decorate(command: Command) -> Command:
        _, *rest = inspect.signature(command, eval_str=True).parameters.values()
        own = [p for p in rest if p.name not in shared]

        @functools.wraps(command)
        def asked(**given: Any) -> None:
            mine = {p.name: given.pop(p.name) for p in own}
            read = {name: given.pop(name) for name in shared if name in given}
            given |= {name: read[name] for name in of_verb}
            ask = functools.partial(how(**read), verb, **given)
            command(ask, as_json=read["as_json"], **mine)

        source, *others = (
            p for name, p in shared.items() if name != "policy" or name in of_verb
        )
        ordered = sorted(
            [source, *own, *others], key=lambda p: (p.kind, p.default is not p.empty)
        )
        vars(asked)["__signature__"] = inspect.Signature(ordered)
        return options_of(verb, *keywords, **offers)(asked)

    return decorate


@asks(check_function, "sdk", how=_of_types)
def check(ask: Ask, *, as_json: bool) -> None:
    """List what AWS's compiler would refuse or change in a program.

    The command executes nothing. Every finding is an error, a warning or an info, with
    the line of your program and what to write instead. The exit status is 0 if there is
    no error, 1 if there is one, and 2 if the program cannot be read.

    Examples:

        neuronjax check model.mlirbc --target trn1
        neuronjax check train.py:step --args 'f32[8,16] i32[8]'
        neuronjax check package.model:forward --sdk 2.29 --json
    """
    report = ask()
    application.show(report, report.as_dict, as_json)
    raise typer.Exit(0 if report.ok else 1)


@asks(compare_function, "reference", "tolerance")
def compare(
    ask: Ask,
    *,
    against: Annotated[
        str | None,
        typer.Option(help="A second program, which should give the same results."),
    ] = None,
    sort: Annotated[
        str,
        typer.Option(
            help='The order of the ops: by "isolation" (the column "isolated"), by '
            '"accumulation" (the column "in run"), or by "order" (the column "#").'
        ),
    ] = "isolation",
    as_json: bool,
) -> None:
    """Find a program's wrong results, the line that causes them, and a remedy.

    The column "isolated" has the error of each op on the operands of the reference, and
    "in run" its error after the errors of earlier ops. The exit status is 0 if nothing
    is wrong; 1 if a result is wrong or differs from that of --against, an op is at
    fault, or an error in the run exceeds --tolerance; 2 if a program cannot be read.

    Examples:

        neuronjax compare train.py:step --policy fp8 --args 'f32[8,16] i32[8]'
        neuronjax compare model.mlirbc --policy bf16 --reference float32 --json
        neuronjax compare train.py:step --against train.py:faster --args 'f32[8,16]'
        neuronjax compare train.py:step --against old.mlirbc --args 'f32[8,16]'
    """
    if against is not None:
        result = ask(against=sources.find(against).function)
        application.show(result, result.to_json_dict, as_json)
        raise typer.Exit(0 if result.is_same else 1)
    result = ask()
    application.show(result, result.to_json_dict, as_json)
    if sort != "isolation" and not as_json:
        CommandConsole().print(result.table(sort))
    raise typer.Exit(1 if result.faults or result.first_divergence else 0)


@asks(tolerance_of, "functions", "failure", "samples")
def tolerance(ask: Ask, *, as_json: bool) -> None:
    """Compute how large an error a correct result may have on a chip.

    The command prints error bounds for each result. A chip that adds in another order,
    and whose elementary functions have the errors of --functions, stays within them. A
    program that omits a term exceeds them, unless the rounding errors are larger.

    Examples:

        neuronjax tolerance train.py:step --policy bf16 --args 'f32[8,16] i32[8]'
        neuronjax tolerance model.mlirbc --policy fp8 --json
    """
    result = ask()
    application.show(result, result.to_json_dict, as_json)


@asks(compare_with_dump, "functions", "failure", "samples")
def compare_dump(
    ask: Ask,
    dump: Annotated[
        Path, typer.Argument(help="A .npy, .npz or .safetensors file, or .npy folder.")
    ],
    *,
    as_json: bool,
) -> None:
    """Compare tensors of a chip or framework with ours; name the first wrong op.

    A tensor belongs to the program's value of the same name, or else of the same shape.
    The exit status is 0 if every tensor is within its error bounds, 1 if one is not or
    none was compared, and 2 if an input cannot be read.

    Examples:

        neuronjax compare-dump train.py:step device.safetensors --inputs batch.npz
        neuronjax compare-dump model.mlirbc tensors/ --inputs batch.npz
    """
    result = ask(dump=dump)
    application.show(result, result.to_json_dict, as_json)
    raise typer.Exit(0 if result.is_legal else 1)


@asks(
    search_precision,
    *("tolerance", "groups", "strategy", "objective", "metric"),
    *("max_evaluations", "margin", "variations"),
    outputs=Offer(metavar="PATTERN"),
    candidates=Offer(metavar="PRESET,...", read=lambda given: given.split(",")),
)
def search(
    ask: Ask,
    *,
    plot: Annotated[
        Path | None, typer.Option(help="Write a plot of predicted time against error.")
    ] = None,
    as_json: bool,
) -> None:
    """Find, for each layer, the cheapest format that keeps the error below a limit.

    The search gives cheaper formats to one group of ops after the other, as long as the
    error of the outputs, compared with FP32, stays within --tolerance. It prints the
    format of each group, why the group has no cheaper one, and the policy as Python.

    Examples:

        neuronjax search train.py:step --tolerance 0.01 --args 'f32[8,16] i32[8]'
        neuronjax search train.py:loss --tolerance 1e-3 --target trn3 --groups scope
    """
    application.check_folders([plot])
    result = ask(progress=not as_json)
    if plot is not None:
        result.plot().savefig(plot)
    application.show(result, result.to_json_dict, as_json)
    if not as_json:
        CommandConsole().print(result.as_code(), highlight=False, markup=False)
