"""A traced kernel as a file, for a reader that does not trust its writer.

The file is a zip of JSON and of the data of constants in NumPy's own format. The JSON
has two tables, of storages and of operands, to which the rows of instructions refer by
number. Reading executes nothing; a malformed file, or a reference to a missing row, is
an InvalidProgramError. `nki.limits` checks what a program may do.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

import ml_dtypes  # noqa: F401  NumPy then knows the names of its types
import numpy as np

from neuronjax.errors import InternalError, InvalidProgramError
from neuronjax.ir.array_file import BROKEN, check_unpacked
from neuronjax.ir.json_text import json_object
from neuronjax.ir.kernel import (
    Access,
    DynamicOffset,
    Item,
    KernelBlock,
    KernelInstruction,
    KernelLoop,
    KernelProgram,
    KernelWhile,
    LoopTurn,
    Register,
    Storage,
)

_VERSION = 2
#: Most bytes of the text, which becomes about ten times as many bytes of objects.
MOST_TEXT_BYTES = 256 << 20
_PLAIN = (str, int, float, bool, type(None))
_PROGRAM = "name target grid ranks registers older wants_grid".split()
_STORAGE = ("memory", "shape", "dtype", "name", "address", "location", "position")
_INSTRUCTION = (
    *("name", "engine", "outputs", "inputs", "parameters", "attributes"),
    *("reads_outputs", "location", "ordinal", "label", "program", "writes_register"),
    *("forms", "loops", "is_open"),
)


def write_program(program: KernelProgram) -> bytes:
    """Return the bytes of a file that `read_program` reads."""
    writer = _ProgramWriter(program.storages)
    described = {
        "version": _VERSION,
        **{field: getattr(program, field) for field in _PROGRAM},
        "arguments": [writer.storages[s] for s in program.arguments],
        "results": [writer.operand(a) for a in program.results],
        "body": writer.block(program.body),
        "storages": [writer.storage(s) for s in program.storages],
        "operands": writer.operands,
        "attributes": writer.attributes,
        "dependencies": [[*k, list(v)] for k, v in program.dependencies.items()],
    }
    out = io.BytesIO()
    text = json.dumps(described, separators=(",", ":"))
    files = {"program.json": text.encode(), **writer.constants}
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, data in files.items():
            # A fixed date, so that equal programs have equal bytes.
            info = zipfile.ZipInfo(name, date_time=(1980, 1, 1, 0, 0, 0))
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, data)
    return out.getvalue()


class _ProgramWriter:
    """Numbers storages, operands and attributes; equal ones share a number."""

    def __init__(self, storages: Iterable[Storage]) -> None:
        self.storages = {s: n for n, s in enumerate(storages)}
        self.operands: list[Any] = []
        self.attributes: list[Any] = []
        self.constants: dict[str, bytes] = {}
        self._numbers: dict[Any, int] = {}

    def _once(self, key: Any, rows: list[Any], make: Callable[[], Any]) -> int:
        number = self._numbers.get(key)
        if number is None:
            row = make()
            number = self._numbers[key] = len(rows)
            rows.append(row)
        return number

    def storage(self, s: Storage) -> list[Any]:
        row = [getattr(s, field) for field in _STORAGE]
        if s.initial is None:
            return [s.number, *row, None]
        data = np.asarray(s.initial)
        name = f"constant{s.number}.bin"
        self.constants[name] = data.tobytes()
        return [s.number, *row, [name, data.dtype.name, data.shape]]

    def operand(self, o: Access | Register) -> int:
        if isinstance(o, Register):
            return self._once(o, self.operands, lambda: [o.number])
        return self._once(o, self.operands, lambda: self._access(o))

    def _access(self, a: Access) -> list[Any]:
        row = [self.storages[a.storage], a.dtype, a.offset, a.pattern]
        d = a.dynamic
        if d is None:
            return row
        return [*row, [d.kind, self.operand(d.index), d.stride, d.limit, d.group]]

    def attribute(self, i: KernelInstruction) -> int:
        items = tuple(i.attributes.items())
        key = ("attributes", repr(items))
        return self._once(
            key, self.attributes, lambda: [[k, _plain(v, i)] for k, v in items]
        )

    def block(self, block: KernelBlock) -> list[Any]:
        return [self._item(item) for item in block.items]

    def _item(self, item: Item) -> list[Any]:
        if isinstance(item, KernelWhile):
            body = self.block(item.body)
            return ["while", item.condition.number, body, item.location]
        if isinstance(item, KernelLoop):
            bounds = [_bound(item.start), _bound(item.stop), item.step]
            body = self.block(item.body)
            return ["loop", item.register.number, *bounds, body, item.location]
        register, numbers = item.writes_register, item.parameters
        made = {
            "outputs": [self.operand(o) for o in item.outputs],
            "inputs": [self.operand(o) for o in item.inputs],
            "parameters": [
                n if isinstance(n, int | float) else n.item() for n in numbers
            ],
            "attributes": self.attribute(item),
            "writes_register": None if register is None else register.number,
        }
        return [made[f] if f in made else getattr(item, f) for f in _INSTRUCTION]


def _plain(value: Any, i: KernelInstruction) -> Any:
    if isinstance(value, tuple):
        return [_plain(v, i) for v in value]
    if isinstance(value, _PLAIN):
        return value
    raise InternalError(
        f"no file can hold a {type(value).__name__}", op=i.name, location=i.location
    )


def _bound(value: int | Register) -> int | list[int]:
    return [value.number] if isinstance(value, Register) else value


def read_program(data: bytes) -> KernelProgram:
    """Return the program of a file.

    Raises:
        InvalidProgramError: the bytes are not what `write_program` writes.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            check_unpacked(archive)
            if archive.getinfo("program.json").file_size > MOST_TEXT_BYTES:
                _refuse(f"its text has more than {MOST_TEXT_BYTES} bytes")
            described = json_object(archive.read("program.json"))
            return _ProgramReader(described, archive.read).program()
    except (*BROKEN, AttributeError) as error:
        if isinstance(error, InvalidProgramError):
            raise
        _refuse(f"{type(error).__name__}: {error}", error)


def _refuse(why: str, cause: Exception | None = None) -> NoReturn:
    raise InvalidProgramError(
        f"this is not the file of a traced kernel: {why}",
        remedy="trace the kernel again with this version of neuronjax",
    ) from cause


class _ProgramReader:
    """Makes the objects that the rows describe; equal operands are one object."""

    def __init__(self, described: Any, constant: Callable[[str], bytes]) -> None:
        if described["version"] != _VERSION:
            _refuse(f"it has version {described['version']}, not {_VERSION}")
        self.described, self.constant = described, constant
        self.storages = [self._storage(row) for row in described["storages"]]
        self.operands: list[Access | Register] = []
        for row in described["operands"]:
            self.operands.append(self._operand(row))
        self.attributes = [
            {str(k): _tuples(v) for k, v in row} for row in described["attributes"]
        ]

    def program(self) -> KernelProgram:
        d = self.described
        return KernelProgram(
            name=str(d["name"]),
            arguments=tuple(self.storages[n] for n in d["arguments"]),
            results=tuple(self._access(n) for n in d["results"]),
            body=self._block(d["body"]),
            storages=tuple(self.storages),
            registers=int(d["registers"]),
            target=str(d["target"]),
            grid=_tuples(d["grid"]),
            ranks=int(d["ranks"]),
            dependencies={(p, o): tuple(after) for p, o, after in d["dependencies"]},
            older=bool(d["older"]),
            wants_grid=str(d["wants_grid"]),
        )

    def _storage(self, row: Any) -> Storage:
        number, memory, shape, dtype, name, address, location, position, data = row
        initial = None
        if data is not None:
            file, kind, sizes = data
            initial = np.frombuffer(self.constant(file), np.dtype(kind)).reshape(sizes)
        return Storage(
            number=number, memory=memory, shape=_tuples(shape), dtype=dtype, name=name,
            address=_tuples(address), location=location, position=position,
            initial=initial,
        )  # fmt: skip

    def _operand(self, row: Any) -> Access | Register:
        if len(row) == 1:
            return Register(row[0])
        storage, dtype, offset, pattern, *dynamic = row
        dynamic_offset = None
        if dynamic:
            kind, index, stride, limit, group = dynamic[0]
            dynamic_offset = DynamicOffset(
                kind, self.operands[index], stride, limit, group
            )
        held = self.storages[storage]
        return Access(held, dtype, int(offset), _tuples(pattern), dynamic_offset)

    def _access(self, number: int) -> Access:
        operand = self.operands[number]
        if not isinstance(operand, Access):
            _refuse(f"operand {number} is a register")
        return operand

    def _block(self, rows: Any) -> KernelBlock:
        return KernelBlock(tuple(map(self._item, rows)))

    def _item(self, row: Any) -> Item:
        if row[0] == "while":
            _, condition, body, location = row
            return KernelWhile(Register(condition), self._block(body), location)
        if row[0] == "loop":
            _, register, start, stop, step, body, location = row
            return KernelLoop(
                register=Register(register), start=_read_bound(start),
                stop=_read_bound(stop), step=step, body=self._block(body),
                location=location,
            )  # fmt: skip
        i = dict(zip(_INSTRUCTION, row, strict=True))
        register = i["writes_register"]
        i["outputs"] = tuple(map(self._access, i["outputs"]))
        i["inputs"] = tuple(self.operands[n] for n in i["inputs"])
        i["parameters"] = tuple(i["parameters"])
        i["attributes"] = self.attributes[i["attributes"]]
        i["writes_register"] = None if register is None else Register(register)
        i["loops"] = tuple(LoopTurn(*turn) for turn in i["loops"])
        return KernelInstruction(**i)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _read_bound(value: int | list[int]) -> int | Register:
    return Register(value[0]) if isinstance(value, list) else value
