"""`neuronjax judge`, for a kernel or all kernels of a folder; and `nki-diff`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from neuronjax.api.judge import judge as judge_kernel
from neuronjax.api.judge_all import judge_all
from neuronjax.api.nki_diff import nki_diff as diff_of_kernel
from neuronjax.cli.application import JsonOption, TargetOption, show
from neuronjax.cli.options import Offer, options_of
from neuronjax.diagnostics.judging.verdict import EXIT_STATUS, KernelVerdict
from neuronjax.errors import InvalidProgramError, NeuronJaxError

_FORGETS_AFTER = 20


def _numbers(given: str) -> tuple[int, ...]:
    """Return the integers in "1,2", or in Typer's text of a default, "(1, 2)"."""
    try:
        return tuple(int(n) for n in given.strip("()").split(",") if n.strip())
    except ValueError:
        raise InvalidProgramError(
            f"{given!r} is no list of integers",
            remedy="write integers with commas between them: 0,21,42",
        ) from None


@options_of(
    judge_kernel,
    "baseline",
    "kernel",
    "nki",
    "timeout",
    reference=Offer(
        help="A file with get_inputs(), forward(*inputs) in NumPy and, if a kernel has "
        "other layouts, transform_to_nki_inputs() and transform_nki_outputs(). Without "
        "this file, results are not judged."
    ),
    grid=Offer(read=_numbers, metavar="N,M"),
    seeds=Offer(read=_numbers, metavar="N,N,..."),
    tolerance=Offer(read=float),
)
def judge(
    candidate: Annotated[
        Path | None,
        typer.Argument(help="A file with a kernel, or a folder of such files."),
    ] = None,
    target: TargetOption = "trn2",
    *,
    jobs: Annotated[int, typer.Option(min=1, help="Kernels to judge at once.")] = 1,
    serve: Annotated[
        bool, typer.Option(help="Judge the file that each line of stdin names.")
    ] = False,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Judge whether an NKI kernel is legal and correct, and how fast it is.

    The kernel's code runs in a child process, without access to the reference. The
    exit status is 0 if the kernel is accepted, 1 if it is refused, 2 if one of your
    files cannot be read, and 3 (undecided) if the tolerance is so wide that wrong
    kernels would pass. For a folder, it is 0 if any kernel is accepted, else 3 if any
    is undecided, else 1.

    Examples:

        neuronjax judge candidate.py --reference reference.py --baseline first.py
        neuronjax judge candidates/ --reference reference.py --jobs 2
        neuronjax judge candidate.py --reference reference.py --json
        neuronjax judge --serve --reference reference.py
        neuronjax judge candidate.py --nki 0.4
    """
    if (candidate is None) != serve:
        raise InvalidProgramError(
            "a candidate and --serve are given" if serve else "no candidate is given",
            op="judge",
            remedy="name a file; or give --serve, and lines of paths on standard input",
        )
    if candidate is None:
        _serve(lambda path: judge_kernel(path, target=target, **keywords))
        return
    if candidate.is_dir():
        found = judge_all(
            candidate, jobs=jobs, shown=_progress, target=target, **keywords
        )
        show(found, found.as_dict, as_json)
        raise typer.Exit(EXIT_STATUS[found[0].word])
    verdict = judge_kernel(candidate, target=target, **keywords)
    show(verdict, verdict.as_dict, as_json)
    raise typer.Exit(EXIT_STATUS[verdict.word])


def _serve(judged: Callable[[str], KernelVerdict]) -> None:
    """Print a line of JSON for every line of the input: a verdict or {"error": why}."""
    for number, line in enumerate(sys.stdin, start=1):
        try:
            answer = judged(line.strip()).to_json(indent=None)
        except NeuronJaxError as error:
            answer = json.dumps({"error": str(error)})
        print(answer, flush=True)
        if number % _FORGETS_AFTER == 0:
            jax.clear_caches()  # drop compiled kernels: none is used again


@options_of(
    diff_of_kernel,
    old=Offer(flag="--from", metavar="RELEASE"),
    new=Offer(flag="--to", metavar="RELEASE"),
)
def nki_diff(
    candidate: Annotated[Path, typer.Argument(help="A file with a kernel.")],
    *,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """List what would change for a kernel in another NKI release.

    The exit status is 1 if the kernel uses a feature that the other release lacks, 0 if
    not, and 2 if the file cannot be read.

    Examples:

        neuronjax nki-diff candidate.py
        neuronjax nki-diff candidate.py --from neuronxcc-2.26 --to 0.4
        neuronjax nki-diff candidate.py --json
    """
    diff = diff_of_kernel(candidate, **keywords)
    show(diff, diff.as_dict, as_json)
    raise typer.Exit(1 if diff.lost else 0)


def _progress(verdict: KernelVerdict) -> None:
    """Print a line on standard error, because verdicts of a folder take a while."""
    print(f"{Path(verdict.candidate).name}: {verdict.word}", file=sys.stderr)
