"""Source text of the kernels, in the newer and in the older calling style.

The vendor's compilers read a kernel's source, some only a subset of Python: so every
kernel is written out with literal shapes, operators and engines, and has no helper.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from docs.made.silicon_kit.probes import PROBES, ProbeStep, SiliconProbe

_DOUBLE_ROW = ("nisa.matmul_perf_mode.double_row", "'double_row_gen3'")


def newer() -> str:
    """kernels.py: `import nki`, instructions that take dst."""
    return "\n".join([_head("newer", "nki"), *_functions("@nki.jit", _newer)])


def older() -> str:
    """kernels_older.py: `import neuronxcc.nki`, instructions that return tiles."""
    head = _head("older", "neuronxcc.nki")
    return "\n".join([head, *_functions("@nki.baremetal", _older)])


def _head(style: str, package: str) -> str:
    return (
        f'"""The probes as kernels, in the {style} style. Made by `neuronjax'
        f' silicon-kit`."""\n\nimport {package} as nki\nimport {package}.isa as nisa\n'
        f"import {package}.language as nl\n"
    )


def _functions(
    decorator: str, body: Callable[[SiliconProbe], Iterator[str]]
) -> Iterator[str]:
    for probe in PROBES.values():
        arguments = ", ".join(f"{name}_in" for name in probe.inputs)
        yield f"\n{decorator}\ndef {probe.name}({arguments}):"
        for name in probe.outputs:
            yield f"    {name}_out = {_array(*probe.tiles[name], 'shared_hbm')}"
        yield from (f"    {line}" for line in body(probe))
        results = ", ".join(f"{name}_out" for name in probe.outputs)
        yield f"    return {results}\n"


def _array(
    shape: tuple[int, ...], dtype: str, memory: str, how: str = "ndarray"
) -> str:
    return f"nl.{how}({shape}, dtype=nl.{dtype}, buffer=nl.{memory})"


def _loaded(probe: SiliconProbe) -> list[str]:
    """The inputs that instructions take from SBUF."""
    calls = " ".join(step.call for step in probe.steps)
    return [name for name in probe.inputs if f"{name}_in" not in calls]


def _newer(probe: SiliconProbe) -> Iterator[str]:
    for name in _loaded(probe):
        array = f"nl.ndarray({name}_in.shape, dtype={name}_in.dtype, buffer=nl.sbuf)"
        yield f"{name} = {array}"
        yield f"nisa.dma_copy(dst={name}, src={name}_in)"
    made: set[str] = set()
    for step in probe.steps:
        memory = "psum" if step.in_psum else "sbuf"
        for name in (n for n in step.tiles if n not in made):
            yield f"{name} = {_array(*step.tiles[name], memory)}"
        made.update(step.tiles)
        instruction, _, arguments = step.call.partition("(")
        yield f"nisa.{instruction}(dst={step.dst}, {arguments}"
    for name in probe.outputs:
        yield f"nisa.dma_copy(dst={name}_out, src={name})"


def _older(probe: SiliconProbe) -> Iterator[str]:
    for name in _loaded(probe):
        yield f"{name} = nl.load({name}_in)"
    made: set[str] = set()
    for step in probe.steps:
        adds = step.call.startswith("nc_matmul")
        for name in list(step.tiles)[not adds :]:
            if name not in made:
                how = ("psum", "zeros") if adds else ("sbuf", "ndarray")
                yield f"{name} = {_array(*step.tiles[name], *how)}"
        made.update(step.tiles)
        yield f"{step.dst}{'[...] +=' if adds else ' ='} {_older_call(step)}"
    for name in probe.outputs:
        yield f"nl.store({name}_out, value={name})"


def _older_call(step: ProbeStep) -> str:
    dtype = step.tiles[step.dst][1]
    if step.call.startswith("dma_copy("):
        return f"nl.load(x_in, dtype=nl.{dtype})"
    call = step.call.replace(*_DOUBLE_ROW)
    if call.startswith(("nc_matmul", "nc_transpose")):
        return f"nisa.{call}"
    return f"nisa.{call[:-1]}, dtype=nl.{dtype})"
