"""`neuronjax ls`: lists the machines that can be emulated, or describes one.

`ls INSTANCE --json` has the fields of the vendor's `neuron-ls --json-output` for every
device, under `neuron_devices`, for tools that read those. Fields of a host (bus
address, processes) are null or empty.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from neuronjax import hardware
from neuronjax.cli.application import JsonOption, print_json, table
from neuronjax.report.quantities import binary, decimal
from neuronjax.report.tables import NAME, NUMBER, PLAIN, RIGHT, WORD


def ls(
    target: Annotated[
        str | None, typer.Argument(help="A chip, instance or UltraServer.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """List every target, or describe one: cores, engines, memories, dtypes.

    For an instance, also list its devices and their links, as `neuron-ls` does.

    Examples:

        neuronjax ls
        neuronjax ls trn2
        neuronjax ls trn2.48xlarge --json
    """
    chosen = None if target is None else hardware.resolve_target(target)
    if as_json:
        described = [
            {**dataclasses.asdict(each), **_neuron_ls(each)}
            for each in ([chosen] if chosen else hardware.TARGETS.values())
        ]
        print_json(described[0] if chosen else described)
    else:
        Console().print(*(_describe(chosen) if chosen else [_targets_table()]))


def _neuron_ls(target: hardware.Target) -> dict[str, Any]:
    """Return the data of `neuron-ls` for an instance; {} for a bare chip."""
    if target.instance is None:
        return {}
    devices = [_device(target, index) for index in range(target.instance.chips)]
    return {"instance_type": target.name, "neuron_devices": devices}


def _device(target: hardware.Target, index: int) -> dict[str, Any]:
    cores = target.logical_cores() // target.chips
    return {
        "neuron_device": index,
        **dict.fromkeys(("bdf", "cpu_affinity", "numa_node")),
        "connected_to": neighbours(target.topology, index),
        "nc_count": cores,
        "logical_neuroncore_config": target.lnc_default,
        "memory_size": target.chip.hbm_bytes,
        "neuroncore_ids": list(range(index * cores, (index + 1) * cores)),
        "neuron_processes": [],
    }


def neighbours(topology: hardware.Topology, index: int) -> list[int]:
    """Return the numbers of the devices with a direct link to the device `index`.

    Along each axis, a chain, ring or torus links neighbours; a switch links all.
    """
    devices = set()
    for axis, size in enumerate(topology.shape):
        stride = math.prod(topology.shape[axis + 1 :])
        place = index // stride % size
        every = set(range(size))
        places = every if topology.kind == "switch" else {place - 1, place + 1}
        if topology.closed[axis]:
            places = {other % size for other in places}
        devices |= {index + (other - place) * stride for other in places & every}
    return sorted(devices - {index})


def _devices_table(target: hardware.Target) -> Table:
    columns = {"device": NUMBER, "cores": WORD, "memory": NUMBER, "connected to": PLAIN}
    rows = []
    for n in range(target.chips // target.instances):
        device = _device(target, n)
        ids = device["neuroncore_ids"]
        memory, others = device["memory_size"], _ranges(device["connected_to"])
        cores = "-".join(map(str, dict.fromkeys((ids[0], ids[-1]))))
        rows.append((str(n), cores, binary(memory), others or "-"))
    return table("Devices, as neuron-ls shows them", columns, rows)


def _ranges(numbers: list[int]) -> str:
    """Return numbers as text: "1-3, 7" for 1, 2, 3, 7."""
    by_gap = itertools.groupby(enumerate(numbers), lambda pair: pair[1] - pair[0])
    runs = ([number for _, number in pairs] for _, pairs in by_gap)
    spell = (f"{r[0]}-{r[-1]}" if len(r) > 2 else ", ".join(map(str, r)) for r in runs)
    return ", ".join(spell)


def _targets_table() -> Table:
    words, numbers = ("target", "chip", "core"), ("chips", "devices", "HBM")
    rows = table(
        "Targets: chips, then instances and UltraServers",
        dict.fromkeys(words, WORD) | dict.fromkeys(numbers, NUMBER),
        (
            (
                name,
                target.chip.name,
                target.core.name.split()[0],
                str(target.chips),
                str(target.logical_cores()),
                binary(target.chips * target.chip.hbm_bytes),
            )
            for name, target in hardware.TARGETS.items()
        ),
    )
    rows.caption = "A device is a logical NeuronCore, as in JAX on Neuron."
    return rows


def _describe(target: hardware.Target) -> Iterator[Table]:
    yield _facts(f"{target.name}: {target.chip.product}", _target_facts(target))
    yield _facts(f"Core: {target.core.name}", _core_facts(target.core, target.chip))
    columns = {"engine": {"style": "bold"}, "clock": RIGHT}
    rows = (
        (
            engine.name,
            f"{engine.clock_hz / 1e9:g} GHz",
            _by_dtype(width, "\n") if (width := engine.elements_per_cycle) else "-",
            ", ".join(engine.dtypes) or "-",
        )
        for engine in target.core.engines
    )
    yield table("Engines", columns | {"elements/cycle": PLAIN, "dtypes": PLAIN}, rows)
    if target.chips > 1:
        yield _devices_table(target)


def _facts(title: str, facts: dict[str, str]) -> Table:
    columns = {"fact": NAME, "value": PLAIN}
    return table(title, columns, facts.items(), show_header=False)


def _target_facts(target: hardware.Target) -> dict[str, str]:
    chip, instance = target.chip, target.instance
    facts = {
        "chips": str(target.chips),
        "devices": f"{target.logical_cores()}, each with {target.lnc_default} of the "
        f"{target.physical_cores} physical cores",
        "HBM per chip": f"{binary(chip.hbm_bytes)}, "
        f"{decimal(chip.hbm_bytes_per_second, 'B/s')}",
        "NeuronLink per chip": decimal(chip.neuronlink_bytes_per_second, "B/s"),
        "DMA engines per chip": f"{chip.dma_engines}, "
        f"{decimal(chip.dma_engine_bytes_per_second, 'B/s')} each",
        "published TFLOPS": _by_dtype(chip.published_tflops),
    }
    if instance and instance.efa_bits_per_second:
        facts["EFA"] = decimal(instance.efa_bits_per_second, "b/s")
    if instance and instance.price:
        price = instance.price
        facts["list price"] = (
            f"{price.usd_per_hour:.2f} USD/h ({price.region}, {price.date})"
        )
    return facts


def _core_facts(core: hardware.CoreSpec, chip: hardware.ChipSpec) -> dict[str, str]:
    tiles = {
        "plain": core.k_tile,
        "double-row FP8": core.k_tile_double_row,
        "MX": core.k_tile_mx,
    }
    return {
        "SBUF": f"{binary(core.sbuf_bytes)}, {core.partitions} partitions",
        "PSUM": f"{binary(core.psum_bytes)}, {core.psum_banks} banks",
        "contraction tile": ", ".join(f"{n} {k}" for k, n in tiles.items() if n),
        "peak TFLOPS": _by_dtype(core.documented_tflops),
        "FP8 format of the forward pass": chip.forward_fp8 or "-",
        "capabilities": ", ".join(sorted(core.capabilities)) or "-",
    }


def _by_dtype(values: hardware.ByDtype, separator: str = ", ") -> str:
    given = dataclasses.asdict(values).items()
    return separator.join(f"{name} {v:g}" for name, v in given if v is not None)
