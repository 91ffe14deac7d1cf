"""`neuronjax run`: a program on an emulated chip, and what came out.

The numbers of results are those of the chip; nothing here is a time. Arrays of dtypes
that NumPy does not know are written to the output file as float32, which holds them
exactly.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import neuronjax as nj
from neuronjax.api.jit import NATIVE_JIT
from neuronjax.api.nnx_state import WithState
from neuronjax.api.nnx_ties import tied
from neuronjax.api.profile import profile
from neuronjax.cli.application import (
    CacheOption,
    JsonOption,
    PolicyOption,
    TargetOption,
    check_folders,
    print_json,
    table,
)
from neuronjax.cli.script import SUFFIX, run_script, script_arguments
from neuronjax.cli.sources import (
    FunctionSource,
    InputsOption,
    SeedOption,
    Shapes,
    ShapesOption,
    SourceArgument,
    find,
    with_values,
)
from neuronjax.diagnostics.differences import Difference, difference
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy
from neuronjax.report.profile_tables import QUEUE_TITLES
from neuronjax.report.setting import setting_line
from neuronjax.testing.bits import leaves_of, path_text
from neuronjax.timing.work import Queue


@dataclass(frozen=True, kw_only=True)
class CommandOutcome:
    """What a run left: arrays by path, instructions by engine, what jax.jit left."""

    results: Mapping[str, np.ndarray]
    instructions: Mapping[Queue, int]
    native: Mapping[str, np.ndarray] | None


def run(
    context: typer.Context,
    source: SourceArgument,
    target: TargetOption = "trn2",
    policy: PolicyOption = None,
    shapes: ShapesOption = None,
    inputs: InputsOption = None,
    seed: SeedOption = 0,
    output: Annotated[
        Path | None, typer.Option(dir_okay=False, help="Write results to an .npz file.")
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also run jax.jit, and compare.")
    ] = False,
    cache: CacheOption = True,
    as_json: JsonOption = False,
) -> None:
    """Runs a program with the numbers of an emulated chip.

    Shows shape, dtype and range of every result, and how many instructions each engine
    gets, as `neuronjax profile` counts them. Inputs come from --inputs, from the
    function's example_args, or are drawn: normal floats, integers from 0 to 7.

    Examples:

        neuronjax run model.mlirbc --target trn3 --policy mxfp8
        neuronjax run train.py:step --args 'f32[8,16] i32[8]' --compare
        neuronjax run model.mlirbc --inputs batch.npz --output logits.npz
        neuronjax run --policy bf16 train.py --steps 100

    The last is a script: it runs as with python, and what it gives to jax.jit, nnx.jit,
    eqx.filter_jit or jax.pmap is emulated. What follows its name are its arguments.
    """
    check_folders([output])
    if cache:
        nj.keep_compiled()
    if source.endswith(SUFFIX):
        _refuse_beside_script(
            {
                "--args": shapes,
                "--inputs": inputs,
                "--output": output,
                "--compare": compare,
                "--json": as_json,
            }
        )
        run_script(Path(source), script_arguments(context), target, policy)
        return
    found = find(source)
    options = {"target": target, "policy": policy}
    if isinstance(found, Path):
        outcome = _run_saved(found, options, inputs, seed, compare)
    else:
        outcome = _run_function(found, options, shapes, inputs, seed, compare)
    if output:
        _save(output, outcome.results)
    if as_json:
        print_json({"source": source, **options, **_as_json(outcome)})
    else:
        setting = setting_line(resolve_target(target), Policy.resolve(policy))
        _print(f"{source} on {setting}", outcome)


def _refuse_beside_script(options: Mapping[str, Any]) -> None:
    given = [name for name, value in options.items() if value]
    if given:
        raise nj.InvalidProgramError(
            f"{', '.join(given)} with a script: only a function or a saved program has "
            "arguments and results",
            remedy="name the function, file.py:function; or write the script's own "
            "options after its name",
        )


# -- running ---------------------------------------------------------------------------


def _run_function(
    source: FunctionSource,
    options: dict[str, Any],
    shapes: Shapes,
    inputs: Path | None,
    seed: int,
    compare: bool,
) -> CommandOutcome:
    values = tied(source.values(shapes, inputs, seed))
    function = WithState(source.function)
    lowered = nj.jit(function, **options).lower(*values)
    native = leaves_of(NATIVE_JIT(function)(*values)) if compare else None
    return _outcome(lowered, values, {}, native)


def _run_saved(
    path: Path, options: dict[str, Any], inputs: Path | None, seed: int, compare: bool
) -> CommandOutcome:
    if compare:
        raise nj.UnsupportedError(
            "--compare runs the function with jax.jit, and a saved program has none",
            remedy="name the function, file.py:function; or compare two policies: run "
            "with --policy fp32 --output and load both files",
        )
    lowered = nj.load(path, **options)
    leaves, tree = jax.tree.flatten_with_path(lowered.args_info)
    names = [path_text(path[1:]) for path, _ in leaves]
    values = with_values([leaf for _, leaf in leaves], names, inputs, seed)
    args, kwargs = jax.tree.unflatten(tree, values)
    return _outcome(lowered, args, kwargs, None)


def _outcome(
    lowered: nj.Lowered,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    native: Mapping[str, np.ndarray] | None,
) -> CommandOutcome:
    counts = profile(lowered)().instruction_counts
    results = leaves_of(lowered.compile()(*args, **kwargs))
    return CommandOutcome(results=results, instructions=counts, native=native)


def _save(path: Path, results: Mapping[str, np.ndarray]) -> None:
    """An .npz file; np.savez would append the suffix to a path without it."""
    arrays: dict[str, Any] = {k: _storable(v) for k, v in results.items()}
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _storable(array: np.ndarray) -> np.ndarray:
    """NumPy's file format knows NumPy's dtypes only; float32 holds the narrow ones."""
    return array if array.dtype.kind in "biufc" else array.astype(np.float32)


# -- what is shown ---------------------------------------------------------------------


def _summary(array: np.ndarray) -> dict[str, Any]:
    """Shape, dtype, range of the finite values, numbers of NaNs and Infs."""
    real = np.abs(array) if array.dtype.kind == "c" else array
    values = np.asarray(real, np.float64)
    finite = values[np.isfinite(values)]
    return {
        "shape": list(array.shape),
        "dtype": array.dtype.name,
        "min": float(finite.min()) if finite.size else None,
        "max": float(finite.max()) if finite.size else None,
        "nan": int(np.isnan(values).sum()),
        "inf": int(np.isinf(values).sum()),
    }


def _difference(outcome: CommandOutcome, name: str) -> Difference | None:
    if outcome.native is None:
        return None
    return difference(outcome.results[name], outcome.native[name])


def _as_json(outcome: CommandOutcome) -> dict[str, Any]:
    results = []
    for name, array in outcome.results.items():
        found = _difference(outcome, name)
        compared = {} if found is None else {"difference": dataclasses.asdict(found)}
        results.append({"name": name, **_summary(array), **compared})
    return {"results": results, "instructions": dict(outcome.instructions)}


def _print(title: str, outcome: CommandOutcome) -> None:
    console = Console()
    console.print(_results_table(title, outcome))
    if outcome.native is not None:
        console.print(_differences_table(outcome))
    console.print(_instructions_table(outcome.instructions))


def _results_table(title: str, outcome: CommandOutcome) -> Table:
    rows = table(title)
    rows.add_column("result", style="bold", overflow="fold")
    for heading in ("type", "min", "max", "NaN", "Inf"):
        rows.add_column(heading, justify="right", overflow="fold")
    for name, array in outcome.results.items():
        facts = _summary(array)
        kind = f"{facts['dtype']}[{','.join(map(str, array.shape))}]"
        ends = (_number(facts["min"]), _number(facts["max"]))
        rows.add_row(name, kind, *ends, str(facts["nan"]), str(facts["inf"]))
    return rows


def _differences_table(outcome: CommandOutcome) -> Table:
    rows = table("Against jax.jit on this computer")
    rows.add_column("result", style="bold", overflow="fold")
    for heading in ("differing", "largest", "in ULP", "relative L2"):
        rows.add_column(heading, justify="right")
    for name, array in outcome.results.items():
        found = _difference(outcome, name)
        assert found is not None
        rows.add_row(
            name,
            f"{found.differing} of {array.size}",
            _number(found.max_abs),
            _number(found.max_ulp),
            f"{found.relative_l2:.2e}",
        )
    return rows


def _instructions_table(counts: Mapping[Queue, int]) -> Table:
    rows = table("Instructions by engine", right=[QUEUE_TITLES[q] for q in counts])
    rows.add_row(*[f"{count:,}" for count in counts.values()])
    return rows


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.6g}"
