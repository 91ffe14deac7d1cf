"""`neuronjax cc-test`: nccom-test's table, from the time model."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from neuronjax.api.collective_bench import collective_bench
from neuronjax.cli.application import JsonOption, TargetOption, show
from neuronjax.cli.options import Offer, options_of
from neuronjax.cli.timing import constants_table
from neuronjax.errors import InvalidProgramError
from neuronjax.timing.assumptions import COLLECTIVE_CONSTANTS as CONSTANTS


@options_of(
    collective_bench, "algorithm", ranks=Offer(short="-r"), dtype=Offer(short="-d")
)
def cc_test(
    op: Annotated[
        str | None,
        typer.Argument(help="all_reduce, all_gather, ...; in short allr, allg, ..."),
    ] = None,
    target: TargetOption = "trn2.48xlarge",
    smallest: Annotated[
        str, typer.Option("--min", "-b", "--minbytes", help="The smallest size.")
    ] = "1K",
    largest: Annotated[
        str, typer.Option("--max", "-e", "--maxbytes", help="The largest size.")
    ] = "1G",
    factor: Annotated[
        int, typer.Option("--factor", "-f", "--stepfactor", help="Ratio of sizes.")
    ] = 2,
    *,
    constants: Annotated[
        bool, typer.Option("--constants", help="Only list the time model's constants.")
    ] = False,
    as_json: JsonOption = False,
    **keywords: Any,
) -> None:
    """Predict how long a collective takes, by size, as AWS's nccom-test prints it.

    The command executes nothing. Options and columns are named as in nccom-test, AWS's
    benchmark of collectives. A size is the bytes of a rank's data before or after the
    collective, whichever are more; K, M and G are binary.

    Examples:

        neuronjax cc-test all_reduce --target trn2.48xlarge
        neuronjax cc-test all_gather --target trn2.48xlarge:4 --min 1M --dtype fp32
        neuronjax cc-test -r 64 -b 1M -e 1G -f 4 -d bf16 allr
        neuronjax cc-test --constants
    """
    if constants:
        figures = list(CONSTANTS.values())
        title = "Figures of the time model of collectives"
        show(constants_table(title, figures), lambda: [*map(vars, figures)], as_json)
        return
    if op is None:
        raise InvalidProgramError(
            "cc-test needs a collective", remedy="write: cc-test all_reduce"
        )
    sizes = f"{smallest}:{largest}:x{factor}"
    bench = collective_bench(op, target, sizes=sizes, **keywords)
    print(bench.to_json() if as_json else bench)
