"""Runs XLA's partitioner on one program, as a script in a process of its own.

`partition_child.py DEVICES DIRECTORY` reads MLIR bytecode from its standard input. It
compiles for as many CPU devices as the program has, with the partitioner and only the
passes that it needs, until XLA has dumped the partitioned program into DIRECTORY: code
of one device with explicit collectives. It writes to its standard output a line of
JSON, with shardings or an error, and that code as MLIR bytecode.

Like `parse_child` it imports jaxlib but not jax. It uses `_jax` and `_hlo` of jaxlib,
which have no public names; `tests/capture/test_partition.py` fails if they move.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

#: XLA is told to run only these passes. "cse" is left out, because it
#: merges ops that differ only in their frontend attributes.
PASSES = (
    "flatten-call-graph",
    "shardy-xla",
    "spmd-partitioning",
    "dce",
    "tuple-simplifier",
)
PARTITIONED, LATER = "*.after_spmd-partitioning.*.hlo.pb", "*cpu_after_optimizations*"
POLL_SECONDS = 0.005
#: Size limits of a file (answer, dump, log): bytes, and bytes per byte of the program.
FILE_BYTES, FILE_BYTES_PER_BYTE = 64 << 20, 64
# XLA reads the flags when it is loaded. A dump in the directory shows that the
# partitioner has ended.
os.environ["XLA_FLAGS"] = " ".join(
    (
        f"--xla_force_host_platform_device_count={sys.argv[1]}",
        f"--xla_dump_to={sys.argv[2]}",
        "--xla_dump_hlo_pass_re=spmd-partitioning",
        "--xla_dump_hlo_as_proto=true",
        f"--xla_enable_hlo_passes_only={','.join(PASSES)}",
    )
)
sys.path.append(os.path.dirname(__file__))

import numpy as np  # noqa: E402
from jaxlib import _hlo, _jax, xla_client  # type: ignore[attr-defined] # noqa: E402
from jaxlib.mlir import ir  # noqa: E402
from jaxlib.mlir.dialects import stablehlo  # noqa: E402
from parse_child import context, first_lines, limit_files, normalized  # type: ignore # noqa: E402
from saved_forms import (  # type: ignore # noqa: E402
    bytecode,
    found,
    is_main,
    protobuf_fields,
    replace,
    shardings as declared,
)

# -- The partitioner.


def options(module: ir.Module, devices: int) -> Any:
    """Return options for one replica, `devices` partitions and Shardy, which may choose
    the shardings of arguments and results that have none."""
    made = xla_client.CompileOptions()
    made.num_partitions, made.num_replicas = devices, 1
    build = made.executable_build_options
    build.num_partitions, build.num_replicas = devices, 1
    build.use_spmd_partitioning = build.use_shardy_partitioner = True
    order = np.arange(devices).reshape(1, devices)
    build.device_assignment = xla_client.DeviceAssignment.create(order)
    main = next(op for op in module.body.operations if is_main(op))
    arguments, results = _open(main, "arg_attrs"), _open(main, "res_attrs")
    build.allow_spmd_sharding_propagation_to_parameters = arguments
    build.allow_spmd_sharding_propagation_to_output = results
    return made


def _open(main: Any, attribute: str) -> list[bool]:
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    count = len(kind.inputs if attribute == "arg_attrs" else kind.results)
    given = declared(main, attribute)
    return [n not in given for n in range(count)]


def partitioned(code: bytes, options: Any, dump: Path) -> _hlo.HloModule:
    """Return the module after the partitioner, or raise XLA's message.

    Compilation runs in another process, which ends as soon as the module exists,
    because stages of XLA after `PASSES` may crash without other passes."""
    error = dump / "error"
    process = os.fork()
    if not process:
        compile(code, options, error)
    # A dump is complete once a later one exists, or the process has ended.
    while not (ended := os.waitpid(process, os.WNOHANG))[0]:
        if any(dump.glob(LATER)):
            os.kill(process, signal.SIGKILL)
            ended = os.waitpid(process, 0)
            break
        time.sleep(POLL_SECONDS)
    dumps = sorted(dump.glob(PARTITIONED))
    if dumps:
        # An HloProto, whose first field is the HloModuleProto.
        _, proto = next(protobuf_fields(dumps[-1].read_bytes()))
        return _hlo.HloModule.from_serialized_hlo_module_proto(proto)
    if error.exists():
        raise RuntimeError(error.read_text())
    os.kill(os.getpid(), os.WTERMSIG(ended[1]) or signal.SIGABRT)  # by the same signal
    raise RuntimeError("XLA's partitioner died")


def compile(code: bytes, options: Any, error: Path) -> NoReturn:
    """Compile for the CPU and end the process; write XLA's error into a file."""
    try:
        client = xla_client.make_cpu_client()
        devices = xla_client.DeviceList(tuple(client.devices()))
        client.compile_and_load(code, devices, options)
    except Exception as raised:
        error.write_text(str(raised))
    finally:
        os._exit(0)


# -- Shardings.


def tiles(sharding: Any, rank: int, devices: int) -> dict[str, Any]:
    """Return how an OpSharding cuts a value: `counts`, the tiles along every dimension,
    and `places`, the tile of each device, [devices][rank]."""
    given: Any = _hlo.HloSharding.from_proto(sharding)
    if given.is_unreduced():
        raise RuntimeError("an argument or a result has an unreduced sharding")
    given = given.v3_to_v2_sharding()
    if given.is_replicated():
        return {"counts": [1] * rank, "places": [[0] * rank] * devices}
    shape = list(given.tile_assignment_dimensions())
    table = np.asarray(given.tile_assignment_devices()).reshape(shape)
    places = np.zeros((devices, rank), int)
    for place in np.ndindex(*shape):
        places[table[place]] = place[:rank]
    return {"counts": shape[:rank], "places": places.tolist()}


def shardings(hlo: Any, module: ir.Module, devices: int) -> dict[str, Any]:
    """Return `tiles` of every argument and result of the partitioned program."""
    main = next(op for op in module.body.operations if is_main(op))
    kind = ir.FunctionType(ir.TypeAttr(main.attributes["function_type"]).value)
    output = hlo.spmd_output_sharding
    several = _hlo.HloSharding.from_proto(output).tuple_elements()
    outputs = [s.to_proto() for s in several] or [output] * len(kind.results)
    pairs = {
        "arguments": zip(hlo.spmd_parameters_shardings or (), kind.inputs, strict=True),
        "results": zip(outputs, kind.results, strict=True),
    }
    return {
        what: [tiles(s, ir.RankedTensorType(t).rank, devices) for s, t in tilings]
        for what, tilings in pairs.items()
    }


# -- Devices in another order.

#: Matches channel, axes and devices of a collective over a mesh with reordered devices.
#: The devices are a list, or an array 0, 1, 2, ... given by shape and transposition.
ORDERED = re.compile(
    r"channel_id=(\d+), replica_groups=mesh\[([^\]]*)\], "
    r"device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\)"
)


def order_devices(module: ir.Module, text: str) -> None:
    """Give collectives the device order in the text of the HLO, which the conversion
    to StableHLO drops."""
    orders = {}
    for channel, axes, shape, turned, listed in ORDERED.findall(text):
        numbers = np.array([*map(int, (listed or shape).split(","))])
        if not listed:
            turn = [*map(int, turned.split(","))] if turned else range(numbers.size)
            numbers = np.arange(numbers.prod()).reshape(numbers).transpose(turn)
        sizes = re.findall(r"'(.*?)'=(\d+)", axes)
        attributes = [stablehlo.MeshAxisAttr.get(name, int(n)) for name, n in sizes]
        ids: Any = np.ascontiguousarray(numbers.ravel())
        ids = ir.DenseIntElementsAttr.get(ids)
        orders[int(channel)] = stablehlo.MeshAttr.get(ir.ArrayAttr.get(attributes), ids)
    if text.count("device_ids=(") != len(orders):
        raise RuntimeError("the order of a collective's devices cannot be read")
    for op in found(module, lambda op: "channel_handle" in op.attributes):
        channel = stablehlo.ChannelHandle(op.attributes["channel_handle"]).handle
        if channel in orders:
            groups = stablehlo.ReplicaGroupMeshAxesAttr(op.attributes["replica_groups"])
            along: Any = groups.axes
            op.attributes["replica_groups"] = stablehlo.ReplicaGroupMeshAxesAttr.get(
                orders[channel], ir.ArrayAttr.get(list(along))
            )


# -- What XLA would rewrite on the way to the partitioner.

HIDDEN = "neuronjax.op"
FRONTEND = "mhlo.frontend_attributes"
#: The ops that `hide` puts in place of CHLO ops, by number of operands. The partitioner
#: treats all elementwise ops alike.
CARRIERS = {1: "stablehlo.cbrt", 2: "stablehlo.atan2"}
BARRIER = "stablehlo.optimization_barrier"
CALL = "stablehlo.custom_call"
#: Ops whose regions combine elements; constants in these regions stay as they are.
COMBINING = {
    f"stablehlo.{name}"
    for name in (
        *("all_reduce", "map", "reduce", "reduce_scatter", "reduce_window", "scatter"),
        *("select_and_scatter", "sort"),
    )
}


def hide(module: ir.Module) -> None:
    """Protect arithmetic from XLA's rewriting. XLA would expand elementwise CHLO ops of
    floats into polynomials, so marked ops replace them. XLA would compute functions of
    constants itself and drop x + 0, so every use of a constant, which Shardy shards
    separately, gets a barrier."""
    for op in found(module, _is_elementwise):
        replace(op, CARRIERS[len(op.operands)], own(op) | marked(op.name))
    for op in found(module, lambda op: op.name == CALL and not len(op.results)):
        printing(op, [ir.RankedTensorType.get([], ir.IntegerType.get_signless(32))])
    for op in found(module, lambda op: op.name == "stablehlo.constant"):
        if op.parent.name in COMBINING:
            continue
        for use in list(op.results[0].uses):
            if _is_float(op) or use.owner.name == "stablehlo.convert":
                protect(op, use)


def show(module: ir.Module) -> None:
    """Undo `hide`."""
    for op in found(module, lambda op: FRONTEND in op.attributes):
        marks = ir.DictAttr(op.attributes[FRONTEND])
        if HIDDEN not in marks:
            continue
        if op.name in CARRIERS.values():
            replace(op, ir.StringAttr(marks[HIDDEN]).value, own(op))
        elif op.name == CALL:
            printing(op, [])
        elif op.name == BARRIER:
            for result, operand in zip(op.results, op.operands, strict=True):
                result.replace_all_uses_with(operand)
            op.erase()


def printing(op: Any, results: list[Any]) -> None:
    """Replace a printing call by a call that has these results. `hide` adds a result,
    because XLA would make a call without results return an empty tuple."""
    nothing: Any = np.zeros(0, np.int64)
    whole = ir.DenseIntElementsAttr.get(nothing, type=ir.IndexType.get())
    layouts = {"result_layouts": ir.ArrayAttr.get([whole] * len(results))}
    marks = marked(op.name) if results else {}
    replace(op, op.name, {**own(op), **layouts, **marks}, results)


def _is_elementwise(op: Any) -> bool:
    if not op.name.startswith("chlo.") or len(op.operands) not in CARRIERS:
        return False
    types = {value.type for value in (*op.operands, *op.results)}
    return len(types) == len(op.results) == 1 and _is_float(op)


def _is_float(op: Any) -> bool:
    kind = ir.RankedTensorType(op.results[0].type).element_type
    return not isinstance(kind, ir.IntegerType)


def own(op: Any) -> dict[str, Any]:
    """Return the attributes of an op, without those of `marked`."""
    return {name: op.attributes[name] for name in op.attributes if name != FRONTEND}


def marked(name: str) -> dict[str, Any]:
    """Return attributes that XLA keeps, with the name of an op."""
    return {FRONTEND: ir.DictAttr.get({HIDDEN: ir.StringAttr.get(name)})}


def protect(constant: Any, use: Any) -> None:
    """Replace one use of a constant by a copy behind a barrier."""
    user = ir.InsertionPoint(use.owner)
    copy = constant.clone(ip=user)
    barrier = ir.Operation.create(
        BARRIER,
        results=[copy.results[0].type],
        operands=[copy.results[0]],
        attributes=marked(constant.name),
        loc=constant.location,
        ip=user,
    )
    use.owner.operands[use.operand_number] = barrier.results[0]


# -- One request.


def answer(data: bytes, devices: int, dump: Path) -> tuple[dict[str, Any], bytes]:
    """Return the answer for a program in bytecode: a JSON header and bytecode."""
    with context(), ir.Location.unknown():
        module = ir.Module.parse(data)
        number = ir.IntegerAttr.get(ir.IntegerType.get_signless(32), devices)
        module.operation.attributes["mhlo.num_partitions"] = number
        hide(module)
        try:
            hlo = partitioned(bytecode(module), options(module, devices), dump)
            proto = hlo.as_serialized_hlo_module_proto()
            local = ir.Module.parse(_jax.mlir.hlo_to_stablehlo(proto))
            order_devices(local, hlo.to_string())
            header = shardings(hlo, local, devices)
            local = normalized(local, None)
            show(local)
        except (RuntimeError, ir.MLIRError) as error:
            return {"what": first_lines(str(error))}, b""
        return header, bytecode(local)


def main() -> None:
    """Answer one request."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what C++ code prints must not get into the answer
    stablehlo.register_stablehlo_passes()
    data = sys.stdin.buffer.read()
    limit_files(FILE_BYTES + FILE_BYTES_PER_BYTE * len(data))
    header, code = answer(data, int(sys.argv[1]), Path(sys.argv[2]))
    output.write(json.dumps(header).encode() + b"\n" + code)
    output.flush()


if __name__ == "__main__":
    main()
