"""`neuronjax run`: runs a program on an emulated chip, and shows its results.

The results are computed with the chip's arithmetic; no times are shown. Arrays of
dtypes that NumPy does not know are written to the file as float32, which is exact.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import neuronjax as nj
from neuronjax.api.asked import Asked
from neuronjax.api.nnx_state import tied
from neuronjax.api.profile import profile
from neuronjax.cli import application, sources
from neuronjax.cli.script import ARGUMENTS, SUFFIX, ScriptCommand, run_script
from neuronjax.report.profile_tables import QUEUE_TITLES
from neuronjax.report.tables import NUMBER, RIGHT
from neuronjax.testing.bits import difference, leaves_of

SETTINGS = {"run": {"cls": ScriptCommand}}
_RESULT = {"style": "bold", "overflow": "fold"}
_FOLDED = RIGHT | {"overflow": "fold"}


def run(
    context: typer.Context,
    source: Annotated[
        str,
        typer.Argument(
            help="A saved program, `module:function`, `file.py:function`, or a script "
            "`file.py` followed by its arguments.",
            show_default=False,
        ),
    ],
    target: application.OwnTargetOption = None,
    policy: application.PolicyOption = None,
    shapes: sources.ShapesOption = None,
    inputs: sources.InputsOption = None,
    seed: sources.SeedOption = 0,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write results to an .npz file.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Compare with the results of jax.jit.")
    ] = False,
    cache: application.CacheOption = True,
    as_json: application.JsonOption = False,
) -> None:
    """Run a program with the arithmetic of an emulated chip.

    The command prints the shape, dtype and range of every result, and the number of
    instructions for each engine. Inputs come from --inputs or from the function's
    example_args, or are random: normal floats, and integers from 0 to 7.

    Examples:

        neuronjax run model.mlirbc --target trn3 --policy mxfp8
        neuronjax run train.py:step --args 'f32[8,16] i32[8]' --compare
        neuronjax run model.mlirbc --inputs batch.npz --output logits.npz
        neuronjax run --policy bf16 train.py --steps 100

    The last example runs a script with its arguments, as python does, and emulates what
    the script passes to jax.jit, nnx.jit, eqx.filter_jit or jax.pmap.
    """
    application.check_folders([output])
    if cache:
        nj.keep_compiled()
    if source.endswith(SUFFIX):
        _refuse_beside_script(
            args=shapes, inputs=inputs, output=output, compare=compare, json=as_json
        )
        arguments = context.meta[ARGUMENTS]
        run_script(Path(source), arguments, target or "trn2", policy)
        return
    named_source = sources.find(source)
    asked = Asked.of(named_source.function, target=target, policy=policy)
    arguments, named = tied(named_source.values(shapes, inputs, seed))
    native = asked.native()(*arguments, **named) if compare else None
    lowered = asked.lowered(*arguments, **named)
    results = leaves_of(lowered.compile()(*arguments, **named))
    instructions = profile(lowered)().instruction_counts
    natives = leaves_of(native) if compare else {}
    rows = [_row(name, array, natives.get(name)) for name, array in results.items()]
    if output:
        # np.savez cannot store ml_dtypes, whose values are exact in float32. It gets an
        # open file, because it would append ".npz" to a path.
        arrays: dict[str, Any] = {
            k: (v if v.dtype.kind in "biufc" else v.astype(np.float32))
            for k, v in results.items()
        }
        with output.open("wb") as file:
            np.savez(file, **arrays)
    if as_json:
        words = {name: asked.words[name] for name in ("target", "policy")}
        shown = {"results": rows, "instructions": instructions}
        application.print_json({"source": source, **words, **shown})
    else:
        console = Console()
        console.print(_results_table(f"{source} on {asked.words['setting']}", rows))
        if compare:
            console.print(_differences_table(rows))
        columns = dict.fromkeys((QUEUE_TITLES[queue] for queue in instructions), NUMBER)
        row = [f"{count:,}" for count in instructions.values()]
        console.print(application.table("Instructions by engine", columns, [row]))


def _refuse_beside_script(**options: Any) -> None:
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise nj.InvalidProgramError(
            f"a script takes no {', '.join(given)}: only a function or a saved program "
            "has arguments and results",
            remedy="name the function, file.py:function; or write the script's own "
            "options after its name",
        )


def _row(name: str, array: np.ndarray, native: np.ndarray | None) -> dict[str, Any]:
    """Return name, shape, dtype, range of finite values, counts of NaN and Inf."""
    real = np.abs(array) if array.dtype.kind == "c" else array
    values = np.asarray(real, np.float64)
    finite = values[np.isfinite(values)]
    row = {
        "name": name,
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
    }
    if native is not None:
        row["difference"] = dataclasses.asdict(difference(array, native))
    return row


def _results_table(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    looks = dict.fromkeys(("type", "min", "max", "NaN", "Inf"), _FOLDED)
    shown = application.table(title, {"result": _RESULT} | looks)
    for row in rows:
        numbers = (_number(row[word]) for word in ("min", "max", "nan", "inf"))
        shape = ",".join(map(str, row["shape"]))
        shown.add_row(row["name"], f"{row['dtype']}[{shape}]", *numbers)
    return shown


def _differences_table(rows: Sequence[Mapping[str, Any]]) -> Table:
    looks = dict.fromkeys(("differing", "largest", "in ULP", "relative L2"), RIGHT)
    shown = application.table(
        "Differences to jax.jit on this host", {"result": _RESULT} | looks
    )
    for row in rows:
        found = row["difference"]
        count = f"{found['differing']} of {math.prod(row['shape'])}"
        sizes = (_number(found[word]) for word in ("max_abs", "max_ulp"))
        shown.add_row(row["name"], count, *sizes, f"{found['relative_l2']:.2e}")
    return shown


def _number(value: float | None) -> str:
    if isinstance(value, float):
        return f"{value:.6g}"
    return "-" if value is None else str(value)
