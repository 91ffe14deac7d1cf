"""The child process that traces a candidate kernel; untrusted code runs only in it.

The child gets the types of arguments, but not their values, and writes the traced
program. So a candidate that computes in Python, without instructions, has no data.
`nursery` forks the child, in a folder that contains job.json.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

from neuronjax import nki
from neuronjax.diagnostics.judging import patches, types_file
from neuronjax.diagnostics.judging.guard import Guard, Limits, limit_this_process
from neuronjax.errors import InvalidProgramError, NeuronJaxError, line_in
from neuronjax.ir.kernel_file import write_program
from neuronjax.nki import legacy
from neuronjax.nki.kernel import Kernel

STATUS, PROGRAM = "status.json", "program.nkx"
#: Usual names of kernels in public collections, the most frequent first.
NAMES = ("kernel", "optimized_kernel", "nki_kernel")


def main() -> NoReturn:
    """Trace the candidate of job.json in the working folder and write the results."""
    job = json.loads(Path("job.json").read_text())
    guard = Guard(Path.cwd(), job["hidden"], sealed=(STATUS, PROGRAM))
    limit_this_process(Limits(**job["limits"]))
    guard.install()
    status, program = outcome(job)
    guard.finished = True
    status["forbidden"] = guard.found
    if program:
        Path(PROGRAM).write_bytes(program)
    Path(STATUS).write_text(json.dumps(status))
    sys.stdout.flush()
    os._exit(0)


def outcome(job: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Trace the candidate; return (status, content of the program's file or b"")."""
    try:
        nki.install()
        with patches.none_made():
            return _traced(job)
    except MemoryError:
        return _failure("memory", "took more memory than the judge allows", ""), b""
    except patches.PatchedError as error:
        return _failure("forbidden", str(error), job["candidate"]), b""
    except NeuronJaxError as error:
        kind = "limit" if isinstance(error, InvalidProgramError) else "unsupported"
        message = f"{error.op}: {error.what}" if error.op else error.what
        location, remedy = error.location or "", error.remedy or ""
        return _failure(kind, message, location, remedy=remedy), b""
    except (Exception, SystemExit, KeyboardInterrupt) as error:
        text = str(error).partition("\n")[0]
        line = line_in(job["candidate"], error) or ""
        return _failure("raised", f"{type(error).__name__}: {text}", line), b""


def _traced(job: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    module = _module(Path(job["candidate"]))
    name, kernel = _kernel(module, job["kernel"])
    kernel = kernel.with_target(job["target"])
    if job["grid"]:
        kernel = kernel[tuple(job["grid"])]
    given = job["arguments"]
    types_of = _own_arguments(module) if given is None else given
    traced = kernel.traced(*types_file.read(types_of))
    program = write_program(traced.program)
    results = types_file.described(traced.tree)
    if '"shape"' in json.dumps(results):
        raise InvalidProgramError(
            "returns an array that no instruction computed",
            op=f"nki.{name}",
            remedy="return tensors of the kernel",
        )
    types = {"arguments": types_of, "results": results, "dtypes": list(traced.dtypes)}
    return {"what": "", "kernel": name, **types}, program


def _module(path: Path) -> types.ModuleType:
    spec = importlib.util.spec_from_file_location(patches.CANDIDATE, path)
    if spec is None or spec.loader is None:
        raise InvalidProgramError(f"{path} is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[patches.CANDIDATE] = module
    sys.path.insert(0, str(path.parent))
    spec.loader.exec_module(module)
    return module


def _kernel(module: types.ModuleType, wanted: str | None) -> tuple[str, Kernel]:
    """Return (name, kernel) of the kernel `wanted`; if `wanted` is None, of the first
    of `NAMES` in `module`, or of its only kernel."""
    held = {k: v for k, v in vars(module).items() if isinstance(v, Kernel)}
    names = [wanted] if wanted else [n for n in NAMES if hasattr(module, n)]
    if not names and len(held) == 1:
        names = list(held)
    found = getattr(module, names[0], None) if names else None
    if isinstance(found, Kernel):
        return names[0], found
    if callable(found):
        return names[0], _made(found)
    what = f"no kernel {wanted}" if wanted else "no function called 'kernel'"
    raise InvalidProgramError(
        f"{what} in {Path(str(module.__file__)).name}",
        remedy=f"name one of {', '.join(held)}" if held else "decorate it: @nki.jit",
    )


def _made(function: Callable[..., Any]) -> Kernel:
    older = any(
        getattr(v, "__name__", "").startswith("neuronjax.nki.legacy")
        for v in getattr(function, "__globals__", {}).values()
    )
    return legacy.jit(function) if older else nki.jit(function)


def _own_arguments(module: types.ModuleType) -> Any:
    function = getattr(module, "get_inputs", None)
    if function is None:
        raise InvalidProgramError(
            "the kernel's arguments are not known",
            remedy="define get_inputs() in the candidate, or give a reference",
        )
    return types_file.described(tuple(function()))


def _failure(what: str, message: str, location: str, **more: Any) -> dict[str, Any]:
    return {"what": what, "message": message, "location": location, **more}
