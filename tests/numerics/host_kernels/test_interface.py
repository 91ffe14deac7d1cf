"""The layout of XLA's foreign function interface, against the header of jaxlib."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from neuronjax.numerics.float_format import get_format
from neuronjax.numerics.host_kernels import choice, handler, nibbles

HEADER = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
#: Sizes and alignments in bytes of what is no pointer and no structure.
SCALARS = {"int": 4, "uint32_t": 4, "XLA_FFI_DataType": 4, "XLA_FFI_ExecutionStage": 4}
SCALARS |= {"XLA_FFI_Extension_Type": 4, "XLA_FFI_InternalExtension_Type": 4}
SCALARS |= {"XLA_FFI_Handler_Traits": 4}
SCALARS |= {"XLA_FFI_Error_Code": 4, "size_t": 8, "int64_t": 8}


#: Structures by the name that a later version gives them.
RENAMED = {"XLA_FFI_Extension_Base": "XLA_FFI_InternalExtension"}


def fields(name: str) -> list[tuple[str, str]]:
    """(type, name) of a structure's fields; of a function, its own name."""
    text = re.sub(r"//.*", "", HEADER.read_text())
    if f"struct {name} {{" not in text:
        name = RENAMED.get(name, name)
    found = re.search(rf"struct {name} {{(.*?)\n}}", text, re.DOTALL)
    assert found, name
    out = []
    for line in filter(None, map(str.strip, found[1].split(";"))):
        function = re.fullmatch(r"_XLA_FFI_API_STRUCT_FIELD\((\w+)\)", line)
        if function:
            out.append(("*", function[1]))
        elif "(" in line:
            out.append(("*", line))
        else:
            kind, _, field = line.rpartition(" ")
            stars = field.count("*") + kind.count("*")
            kind = kind.replace("const", "").replace("struct", "").strip()
            out.append(("*" if stars else kind, field.strip("*")))
    return out


def layout(name: str) -> tuple[dict[str, int], int]:
    """Offsets of the fields, dotted where they are structures, and the size."""
    offsets: dict[str, int] = {}
    at, largest = 0, 8
    for kind, field in fields(name):
        if kind == "*" or kind in SCALARS:
            size = SCALARS.get(kind, 8)
            at = -(-at // size) * size
            offsets[field] = at
        else:
            at = -(-at // 8) * 8
            inner, size = layout(kind)
            offsets |= {f"{field}.{k}": at + v for k, v in inner.items()}
            offsets[field] = at
        at += size
    return offsets, -(-at // largest) * largest


def test_the_version_is_one_that_the_kernels_know():
    text = HEADER.read_text()
    [major] = re.findall(r"#define XLA_FFI_API_MAJOR (\d+)", text)
    [minor] = re.findall(r"#define XLA_FFI_API_MINOR (\d+)", text)
    assert int(major) == handler.API_MAJOR
    assert int(minor) >= handler.API_MINOR


@pytest.mark.parametrize(
    ("structure", "field", "offset"),
    [
        ("XLA_FFI_CallFrame", "extension_start", handler.FRAME["extension"]),
        ("XLA_FFI_CallFrame", "api", handler.FRAME["api"]),
        ("XLA_FFI_CallFrame", "ctx", handler.FRAME["context"]),
        ("XLA_FFI_CallFrame", "args", handler.FRAME["args"]),
        ("XLA_FFI_CallFrame", "rets", handler.FRAME["rets"]),
        ("XLA_FFI_CallFrame", "attrs", handler.FRAME["attrs"]),
        ("XLA_FFI_Args", "size", handler.COUNT),
        ("XLA_FFI_Args", "args", handler.ARGUMENTS),
        ("XLA_FFI_Rets", "size", handler.COUNT),
        ("XLA_FFI_Rets", "rets", handler.ARGUMENTS),
        ("XLA_FFI_Attrs", "size", handler.COUNT),
        ("XLA_FFI_Attrs", "attrs", handler.ATTRIBUTES),
        ("XLA_FFI_Buffer", "dtype", handler.BUFFER_DTYPE),
        ("XLA_FFI_Buffer", "data", handler.BUFFER_DATA),
        ("XLA_FFI_Buffer", "rank", handler.BUFFER_RANK),
        ("XLA_FFI_Buffer", "dims", handler.BUFFER_DIMS),
        ("XLA_FFI_Array", "size", handler.ARRAY_SIZE),
        ("XLA_FFI_Array", "data", handler.ARRAY_DATA),
        ("XLA_FFI_Extension_Base", "type", handler.EXTENSION_TYPE),
        ("XLA_FFI_Metadata_Extension", "metadata", handler.METADATA),
        (
            "XLA_FFI_Metadata",
            "api_version.major_version",
            handler.METADATA_MAJOR,
        ),
        (
            "XLA_FFI_Metadata",
            "api_version.minor_version",
            handler.METADATA_MINOR,
        ),
        ("XLA_FFI_Api", "api_version.major_version", handler.API["major"]),
        ("XLA_FFI_Api", "api_version.minor_version", handler.API["minor"]),
        ("XLA_FFI_Api", "XLA_FFI_Error_Create", handler.API["create"]),
        ("XLA_FFI_Api", "XLA_FFI_Error_Destroy", handler.API["destroy"]),
        ("XLA_FFI_Api", "XLA_FFI_ThreadPool_Schedule", handler.API["schedule"]),
        ("XLA_FFI_Error_Create_Args", "message", 16),
        ("XLA_FFI_Error_Create_Args", "errc", 24),
        ("XLA_FFI_ThreadPool_Schedule_Args", "ctx", 16),
        ("XLA_FFI_ThreadPool_Schedule_Args", "task", 24),
        ("XLA_FFI_ThreadPool_Schedule_Args", "data", 32),
        ("XLA_FFI_Error_Destroy_Args", "error", 16),
    ],
)
def test_fields_are_where_the_kernels_look(structure, field, offset):
    assert layout(structure)[0][field] == offset


@pytest.mark.parametrize(
    ("structure", "size"),
    [
        ("XLA_FFI_ThreadPool_Schedule_Args", handler.SCHEDULE_ARGS_BYTES),
        ("XLA_FFI_Error_Destroy_Args", handler.ERROR_ARGS_BYTES),
    ],
)
def test_arguments_of_calls_have_their_size(structure, size):
    assert layout(structure)[1] == size


def test_dtypes_have_the_numbers_of_the_header():
    found = dict(re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", HEADER.read_text()))
    spelled = {"bfloat16": "BF16", "bool": "PRED"}
    for name, number in handler.DTYPES.items():
        short = name.replace("float", "F").replace("uint", "U").replace("int", "S")
        short = short.replace("complex", "C").replace("_", "").upper()
        assert number == int(found[spelled.get(name, short)]), name


NAME = "neuronjax_nibbles"


@pytest.mark.skipif(not choice.usable(), reason="no kernels for this processor")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda plan: plan[:-2], "operands that differ from the planned ones"),
        (lambda plan: np.array([*plan[:-3], plan[-3] + 1, *plan[-2:]]), "planned"),
        (lambda plan: np.array([*plan[:-2], 11, plan[-1]]), "planned"),
        (lambda plan: np.array([*plan[:2], 1 << 62, *plan[3:]]), "no memory"),
    ],
)
def test_a_wrong_call_is_an_error_of_xla(change, told):
    """A plan that is not of these buffers, and one for which there is no memory."""
    codes = jnp.arange(10, dtype=jnp.uint8)
    dtype = get_format("float4_e2m1fn").dtype
    packed = nibbles.packed(codes, dtype)
    plan = handler.row_words(codes.reshape(1, -1))
    plan = np.array([*plan, 6, 10, 32, 10], np.int64)
    call = jax.ffi.ffi_call(NAME, jax.ShapeDtypeStruct((10,), dtype))
    same = call(codes, plan=plan)
    assert np.asarray(same).tobytes() == np.asarray(packed).tobytes()
    with pytest.raises(jax.errors.JaxRuntimeError, match=told):
        call(codes, plan=change(plan)).block_until_ready()
