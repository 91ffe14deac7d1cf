"""The `neuronjax` command: quickstart, ls, exactness, bench, version.

Each command is a function that reads its options and hands over; what it shows is made
elsewhere, but for the hardware tables of `ls`. A `NeuronJaxError` is shown as its
message, without a traceback, and ends with status 2.
"""

from __future__ import annotations

import dataclasses
import json
import platform
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

import neuronjax as nj
from neuronjax.hardware import (
    TARGETS,
    ByDtype,
    ChipSpec,
    CoreSpec,
    EngineSpec,
    Target,
    resolve_target,
)


class _Commands(TyperGroup):
    """Commands whose NeuronJaxErrors are messages to the user."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except nj.NeuronJaxError as error:
            message = Text.assemble(("error: ", "bold red"), str(error))
            Console(stderr=True, soft_wrap=True).print(message)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=_Commands,
    name="neuronjax",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
)


@app.callback()
def root() -> None:
    """Emulates AWS Trainium for JAX programs, without a Trainium.

    Start with **neuronjax quickstart**; then, in Python:

    ```python
    import neuronjax as nj
    step = nj.jit(train_step, target="trn2", policy="fp8")
    ```
    """


def main() -> None:
    """The entry point of the command."""
    app()


# -- quickstart ------------------------------------------------------------------------


@app.command()
def quickstart(
    targets: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TARGET/POLICY",
            help="What to emulate; repeatable. "
            "Default: trn1/bf16, trn2/fp8, trn3/mxfp8.",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Training steps. Default: 100.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the parameters and batches.")] = 0,
    output: Annotated[
        Path, typer.Option(dir_okay=False, help="Where the picture goes.")
    ] = Path("neuronjax-quickstart.png"),
    json_path: Annotated[
        Path | None,
        typer.Option("--json", dir_okay=False, help="Also write the results as JSON."),
    ] = None,
    tiny: Annotated[bool, typer.Option("--tiny", hidden=True)] = False,
) -> None:
    """Trains a GPT natively and on emulated chips, and compares.

    A Flax transformer of a million parameters learns English from the documentation
    that Python carries: with FP32 `jax.jit`, and with the numbers of each chip. Same
    initial parameters, same batches. Takes two to three minutes on two cores.

    Examples:

        neuronjax quickstart
        neuronjax quickstart --targets trn2/fp8 --targets trn2/bf16 --steps 200
        neuronjax quickstart --json results.json --output curves.png
    """
    # Flax, Optax and matplotlib take seconds to import and only this command uses them.
    from neuronjax.quickstart import data, experiment, recipe, report

    chosen = recipe.TINY if tiny else recipe.Recipe()
    chosen = dataclasses.replace(chosen, seed=seed, steps=steps or chosen.steps)
    emulated = map(experiment.Machine.parse, targets or experiment.EMULATED)
    machines = [experiment.NATIVE, *emulated]
    corpus = data.load()
    console = Console()
    for path in filter(None, (output, json_path)):
        _check_folder(path)
    runs = experiment.run_all(machines, chosen, corpus, console)
    console.print(report.results_table(runs), report.engines_table(runs))
    report.plot(runs, corpus, output)
    console.print(f"Loss curves: {output}", highlight=False, soft_wrap=True)
    if json_path:
        json_path.write_text(report.as_json(runs, chosen, corpus) + "\n")
        console.print(f"Results: {json_path}", highlight=False, soft_wrap=True)


def _check_folder(path: Path) -> None:
    """Fails before the work, not after it."""
    if not path.parent.is_dir():
        raise nj.InvalidProgramError(
            f"{path}: there is no folder {path.parent}", remedy="make it first"
        )


# -- ls --------------------------------------------------------------------------------


@app.command("ls")
def list_hardware(
    target: Annotated[
        str | None, typer.Argument(help="A chip, instance or UltraServer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Machine-readable.")] = False,
) -> None:
    """Lists every target, or describes one: cores, engines, memories, dtypes.

    Examples:

        neuronjax ls
        neuronjax ls trn2
        neuronjax ls trn2.48xlarge --json
    """
    chosen = None if target is None else resolve_target(target)
    if as_json:
        every = [chosen] if chosen else TARGETS.values()
        found = [_plain(dataclasses.asdict(each)) for each in every]
        print(json.dumps(found[0] if chosen else found, indent=2))
    else:
        Console().print(*(_describe(chosen) if chosen else [_targets_table()]))


def _plain(value: Any) -> Any:
    """Sets as sorted lists, so that JSON can hold them."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return sorted(value) if isinstance(value, frozenset) else value


def _targets_table() -> Table:
    table = _table("Targets (chips first, then what can be rented)")
    for heading in ("target", "chip", "core"):
        table.add_column(heading, no_wrap=True)
    for heading in ("chips", "devices", "HBM"):
        table.add_column(heading, justify="right", no_wrap=True)
    for name, target in TARGETS.items():
        table.add_row(
            name,
            target.chip.name,
            target.core.name.split()[0],
            str(target.chips),
            str(target.logical_cores()),
            _binary(target.chips * target.chip.hbm_bytes),
        )
    table.caption = "A device is a logical NeuronCore, as JAX on Neuron counts them."
    return table


def _describe(target: Target) -> Iterator[Table]:
    yield _facts(f"{target.name}: {target.chip.product}", _target_facts(target))
    yield _facts(f"Core: {target.core.name}", _core_facts(target.core, target.chip))
    yield _engines_table(target.core)


def _facts(title: str, facts: dict[str, str]) -> Table:
    table = _table(title)
    table.show_header = False
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for row in facts.items():
        table.add_row(*row)
    return table


def _target_facts(target: Target) -> dict[str, str]:
    chip, instance = target.chip, target.instance
    facts = {
        "chips": str(target.chips),
        "devices": f"{target.logical_cores()}, each {target.lnc_default} of "
        f"{target.physical_cores} physical cores",
        "HBM per chip": f"{_binary(chip.hbm_bytes)}, "
        f"{_decimal(chip.hbm_bytes_per_second)}B/s",
        "NeuronLink per chip": f"{_decimal(chip.neuronlink_bytes_per_second)}B/s",
        "DMA engines per chip": f"{chip.dma_engines}, "
        f"{_decimal(chip.dma_engine_bytes_per_second)}B/s each",
        "published TFLOPS": _by_dtype(chip.published_tflops),
    }
    if instance and instance.efa_bits_per_second:
        facts["EFA"] = f"{_decimal(instance.efa_bits_per_second)}b/s"
    if instance and instance.price:
        price = instance.price
        facts["list price"] = (
            f"{price.usd_per_hour:.2f} USD/h ({price.region}, {price.date})"
        )
    return facts


def _core_facts(core: CoreSpec, chip: ChipSpec) -> dict[str, str]:
    tiles = {
        "plain": core.k_tile,
        "double-row FP8": core.k_tile_double_row,
        "MX": core.k_tile_mx,
    }
    return {
        "SBUF": f"{_binary(core.sbuf_bytes)}, {core.partitions} partitions",
        "PSUM": f"{_binary(core.psum_bytes)}, {core.psum_banks} banks",
        "contraction tile": ", ".join(f"{n} {k}" for k, n in tiles.items() if n),
        "peak TFLOPS": _by_dtype(core.documented_tflops),
        "FP8 of the policy": chip.forward_fp8,
        "capabilities": ", ".join(sorted(core.capabilities)),
    }


def _engines_table(core: CoreSpec) -> Table:
    table = _table("Engines")
    table.add_column("engine", style="bold")
    table.add_column("clock", justify="right")
    table.add_column("elements/cycle")
    table.add_column("dtypes")
    for engine in core.engines:
        table.add_row(*_engine_row(engine))
    return table


def _engine_row(engine: EngineSpec) -> tuple[str, ...]:
    width = engine.elements_per_cycle
    return (
        engine.name,
        f"{engine.clock_hz / 1e9:g} GHz",
        _by_dtype(width, "\n") if width else "-",
        ", ".join(engine.dtypes) or "-",
    )


def _by_dtype(values: ByDtype, separator: str = ", ") -> str:
    given = dataclasses.asdict(values).items()
    return separator.join(f"{name} {v:g}" for name, v in given if v is not None)


def _binary(size_bytes: int) -> str:
    for power, unit in ((4, "TiB"), (3, "GiB"), (2, "MiB")):
        if size_bytes >= 2 ** (10 * power):
            return f"{size_bytes / 2 ** (10 * power):g} {unit}"
    return f"{size_bytes / 1024:g} KiB"


def _decimal(rate: float) -> str:
    return f"{rate / 1e12:g} T" if rate >= 1e12 else f"{rate / 1e9:g} G"


def _table(title: str) -> Table:
    return Table(
        title=title,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )


# -- exactness -------------------------------------------------------------------------


@app.command()
def exactness(
    markdown: Annotated[
        bool, typer.Option("--markdown", help="As the page docs/exactness.md.")
    ] = False,
) -> None:
    """Says of every kind of number whether it is exact, modelled or the host's."""
    from neuronjax.report.exactness import CLAIMS, MEANINGS, as_markdown

    if markdown:
        print(as_markdown())
        return
    console = Console()
    for label, meaning in MEANINGS.items():
        table = _table(f"{label}: {meaning}")
        for heading in ("what", "rule", "switch"):
            table.add_column(heading, ratio=1 if heading != "rule" else 2)
        for claim in CLAIMS:
            if claim.label == label:
                table.add_row(claim.subject, claim.rule, claim.switch)
        console.print(table)


# -- bench and version -----------------------------------------------------------------


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def bench(context: typer.Context) -> None:
    """Runs the benchmarks of the repository, for minutes; options are passed on.

    Example:

        neuronjax bench --list
    """
    script = Path(__file__).parents[2] / "benchmarks" / "run.py"
    if not script.is_file():
        raise nj.UnsupportedError(
            "the benchmarks are not part of the installed package",
            remedy="clone the repository and run `make bench` in it",
        )
    command = [sys.executable, str(script), *context.args]
    raise typer.Exit(subprocess.run(command, check=False).returncode)


@app.command()
def version() -> None:
    """Prints the versions that decide the bits: neuronjax, JAX, Python."""
    import jax
    import jaxlib

    print(f"neuronjax {nj.__version__}")
    print(f"jax {jax.__version__}, jaxlib {jaxlib.__version__}")
    print(f"Python {platform.python_version()}, {platform.machine()}")
