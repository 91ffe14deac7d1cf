"""The machines: chips, cores, engines, instances, networks, contradictions."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

from neuronjax.hardware import (
    CAPABILITIES,
    CHIP_ALIASES,
    CHIPS,
    INSTANCE_ALIASES,
    INSTANCES,
    TOPOLOGIES,
    ByDtype,
    CoreSpec,
    EngineSpec,
    InstanceSpec,
    Link,
    ListPrice,
    chips,
    instances,
    topology,
)
from neuronjax.report.quantities import binary, decimal, seconds

from .citations import citations
from .contradictions import CONTRADICTIONS
from .markdown import code, table

_INTRODUCTION = """---
hide: [toc]
---

# Hardware

This page lists the machines that neuronjax models. The data are in
`neuronjax.hardware`. Every figure cites its source by one of the [keys
below](#sources). Where two sources disagree, [Contradictions](#contradictions) lists
the value that we chose. `neuronjax ls` lists the targets, and `neuronjax ls trn2`
describes one.

The `target` of `nj.jit(f, target=...)` is any name in the first column of
[chips](#chips) or [instances](#instances-and-ultraservers), or an alias: {aliases}. A
name with a colon is several instances that are joined by EFA: `trn2.48xlarge:4`.
"""
_ENGINES_NOTE = """The guides of NeuronCores other than v2 do not repeat all start times
and limits; we assume that those of v2 apply. `src/neuronjax/hardware/chips.py` marks
figures that are not published as assumptions.

If a chip lacks an engine, VectorE executes the engine's ops where it can. Other ops of
this engine raise an error that names the chips that have it. On inf1, this applies to
sorts, gathers and scatters, variadic reductions, linear algebra and functions of two
arguments (GpSimdE), and to collectives (CC-cores).
"""
Format = Callable[[Any], str]


def page() -> str:
    """The page."""
    aliases = {**CHIP_ALIASES, **INSTANCE_ALIASES}
    named = (f"`{alias}` for `{name}`" for alias, name in aliases.items())
    sections = (
        _INTRODUCTION.format(aliases=", ".join(named)),
        f"## Chips\n\n{_chips()}",
        f"## Cores\n\n{_cores()}",
        f"## Engines\n\n{_engines()}",
        f"## Capabilities\n\n{_capabilities()}",
        f"## Instances and UltraServers\n\n{_instances()}",
        f"## Networks\n\n{_networks()}",
        f"## Contradictions\n\n{_contradictions()}",
        f"## Sources\n\n{_sources()}",
    )
    return "\n".join(sections)


# -- chips and cores -------------------------------------------------------------------


def _rate(value: float) -> str:
    return decimal(value, "B/s")


def _by_dtype(values: ByDtype | None) -> str:
    if values is None:
        return "-"
    pairs = ((name, getattr(values, name)) for name in ByDtype.__dataclass_fields__)
    return ", ".join(f"{n} {v:g}" for n, v in pairs if v is not None)


def _either(value: Any) -> str:
    return "-" if value is None else f"{value:,}"


def _names(values: Any) -> str:
    return ", ".join(map(str, values)) or "-"


_CHIP_FACTS: tuple[tuple[str, str, Format], ...] = (
    ("physical cores", "cores_per_chip", str),
    ("HBM", "hbm_bytes", binary),
    ("HBM bandwidth", "hbm_bytes_per_second", _rate),
    (
        "HBM reserved, per core",
        "hbm_reserved_bytes_per_core",
        lambda n: decimal(n, "B"),
    ),
    ("DMA engines", "dma_engines", str),
    ("rate of one, in practice", "dma_engine_bytes_per_second", _rate),
    ("rate of one, at most", "dma_engine_peak_bytes_per_second", _rate),
    ("start of a transfer", "dma_start_seconds", seconds),
    (
        "a descriptor made by hardware",
        "hwdge_issue_seconds",
        lambda value: "-" if value is None else seconds(value),
    ),
    ("NeuronLink, all links, both ways", "neuronlink_bytes_per_second", _rate),
    ("CC-cores", "cc_cores", str),
    ("TFLOPS of the product page", "published_tflops", _by_dtype),
    ("FP8 format of the forward pass", "forward_fp8", lambda name: code(name or "-")),
    ("logical core sizes", "lnc_options", _names),
    ("logical core size by default", "lnc_default", str),
)
_CORE_FACTS: tuple[tuple[str, str, Format], ...] = (
    ("partitions", "partitions", str),
    ("SBUF", "sbuf_bytes", binary),
    ("of it for programs, per partition", "sbuf_usable_bytes_per_partition", _either),
    ("PSUM", "psum_bytes", binary),
    ("PSUM banks per partition", "psum_banks", str),
    ("columns of the array", "array_columns", str),
    ("products per cell and cycle", "products_per_cell_per_cycle", _by_dtype),
    ("contraction tile", "k_tile", str),
    ("the same, double-row FP8", "k_tile_double_row", _either),
    ("the same, MX", "k_tile_mx", _either),
    ("stationary columns at most", "max_stationary_free", _either),
    ("moving columns at most, into FP32 PSUM", "max_moving_free", _either),
    ("the same, into BF16 PSUM", "max_moving_free_bf16", _either),
    ("free size of an SBUF access", "max_free_sbuf_elements", _either),
    ("free size of a PSUM access", "max_free_psum_elements", _either),
    ("start of an access, cycles", "access_start_cycles", str),
    ("MX element dtypes", "mx_dtypes", _names),
    ("TFLOPS of one core, by the guide", "documented_tflops", _by_dtype),
)


def _facts(facts: tuple[tuple[str, str, Format], ...], columns: dict[str, Any]) -> str:
    """A row for every fact, a column for every thing, the sources behind the values."""
    cited = citations(chips)

    def cell(thing: Any, field: str, show: Format) -> str:
        keys = cited[id(thing)].get(field)
        value = show(getattr(thing, field))
        return f"{value} *{keys}*" if keys else value

    rows = (
        (label, *(cell(thing, field, show) for thing in columns.values()))
        for label, field, show in facts
    )
    return table(("", *columns), rows)


def _chips() -> str:
    columns = {code(name): chip for name, chip in CHIPS.items()}
    projected = ", ".join(code(n) for n, chip in CHIPS.items() if chip.projected)
    note = (
        f"{projected}: projections. trn4 is announced and not specified; of inf1 the "
        "vendor publishes engines, peaks and memory, and not how large its array and "
        "its SBUF are. Sustained rates are lower than peaks; the [time "
        "model](constants.md) says how much.\n"
    )
    return f"{_facts(_CHIP_FACTS, columns)}\n{note}"


def _core_types() -> dict[str, CoreSpec]:
    return {chip.core.name: chip.core for chip in CHIPS.values()}


def _published_cores() -> list[CoreSpec]:
    """Return the cores, without one whose engines are those of another."""
    cores: dict[tuple[EngineSpec, ...], CoreSpec] = {}
    for chip in CHIPS.values():
        cores.setdefault(chip.core.engines, chip.core)
    return list(cores.values())


def _cores() -> str:
    return _facts(_CORE_FACTS, dict(_core_types()))


def _engines() -> str:
    heads = (
        *("core", "engine", "clock:", "input elements per cycle"),
        *("shortest instruction, cycles:", "dtypes"),
    )
    rows = (
        (
            core.name,
            engine.name,
            f"{engine.clock_hz / 1e9:g} GHz",
            _by_dtype(engine.elements_per_cycle),
            engine.min_initiation_cycles,
            _names(engine.dtypes),
        )
        for core in _published_cores()
        for engine in core.engines
    )
    return f"{table(heads, rows)}\n{_ENGINES_NOTE}"


def _capabilities() -> str:
    cores = _core_types()
    heads = ("capability", "what", *cores)
    rows = (
        (
            code(name),
            meaning,
            *("yes" if name in c.capabilities else "" for c in cores.values()),
        )
        for name, meaning in CAPABILITIES.items()
    )
    return table(heads, rows)


# -- what can be rented ----------------------------------------------------------------


def _instances() -> str:
    heads = (
        *("instance", "chips:", "hosts:", "devices:", "network", "EFA:"),
        *("on demand", "Capacity Block"),
    )
    note = (
        "A device is a logical NeuronCore at the default size. Prices are dated list "
        "prices of the whole instance per hour, never extrapolated: a dash where none "
        "was found.\n"
    )
    return f"{table(heads, map(_instance_row, INSTANCES.values()))}\n{note}"


def _instance_row(instance: InstanceSpec) -> tuple[object, ...]:
    cores = instance.chips * instance.chip.cores_per_chip
    efa = instance.efa_bits_per_second
    return (
        code(instance.name),
        f"{instance.chips} × {instance.chip.name}",
        instance.hosts,
        cores // instance.lnc_default,
        code(instance.topology.name),
        "-" if efa is None else decimal(efa, "b/s"),
        _price(instance.price),
        _price(instance.block_price),
    )


def _price(price: ListPrice | None) -> str:
    if price is None:
        return "-"
    return f"{price.usd_per_hour:.2f} USD, {price.region}, {price.date}, {price.source}"


def _networks() -> str:
    rows = (
        (
            code(network.name),
            network.kind,
            " × ".join(map(str, network.shape)),
            "; ".join(map(_link, network.links)) or "-",
        )
        for network in TOPOLOGIES.values()
    )
    note = "Rates are of one link in one direction.\n"
    return f"{table(('network', 'kind', 'chips', 'links of a chip'), rows)}\n{note}"


def _link(link: Link) -> str:
    rate, hop = _rate(link.bytes_per_second), seconds(link.hop_seconds)
    return f"axis {link.axis}: {link.per_chip} of {rate}, {hop} per hop"


# -- sources ---------------------------------------------------------------------------


def _contradictions() -> str:
    rows = ((c.topic, c.chosen, c.alternative, c.sources) for c in CONTRADICTIONS)
    note = """In the last column, the sources of the chosen figure are before the word
*against*, and those of the other figures after it; a semicolon separates the sources of
two figures. *CC-cores* execute collectives.
"""
    heads = ("topic", "chosen", "also published", "sources")
    return f"{note}\n{table(heads, rows)}"


def _sources() -> str:
    """The lists of keys that the modules open with, as they are."""
    lists = (_keys(inspect.getdoc(module) or "") for module in (chips, topology))
    text = "\n".join(lists)
    tail = (inspect.getdoc(instances) or "").partition("; and ")[2]
    prices = f"Of prices: {' '.join(tail.split())}\n"
    return f"```text\n{text}\n```\n\n{prices}"


def _keys(documentation: str) -> str:
    lines: Iterator[str] = (
        line[4:] for line in documentation.splitlines() if re.match(r" {4}", line)
    )
    return "\n".join(lines)
