"""`emulated`: a scope in which `jax.jit` and `jax.pmap` of a program are emulated.

While a scope is open, the public names `jax.jit` and `jax.pmap` refer to neuronjax.
This works for libraries that look the names up when they use them, as Flax and Equinox
do: `nnx.jit` handles the state of its modules as usual and passes a function of plain
arrays to `jax.jit`. `jax.make_mesh` is replaced too, for meshes of more devices than
the host has. Calls from modules of neuronjax get the functions of JAX.

A scope applies to the whole process: a function that any thread jits while the scope is
open is emulated. If several scopes are open, the one opened last counts.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
from jaxlib.xla_client import make_cpu_client

from neuronjax.api.jit import NATIVE_JIT, jit
from neuronjax.api.nnx_state import as_in_jax
from neuronjax.api.pmap import pmap
from neuronjax.capture.decode import LIBRARY
from neuronjax.errors import NotEmulatedWarning, warn_user
from neuronjax.hardware import resolve_target
from neuronjax.policy import Policy, Preset

Setting = Mapping[str, Any]

#: The target and policy of every open scope; the scope opened last is at the end.
_open: list[Setting] = []
_lock = threading.Lock()
# Part of JAX's cache key: inside a scope, a function that was compiled before is
# compiled again, so that `_native_calls` can count the functions that run natively.
_INSIDE = jax.make_user_context(default_value=None)


@contextlib.contextmanager
def emulated(
    *, target: str = "trn2", policy: Preset | str | Policy | None = None
) -> Iterator[None]:
    """Emulate what a program jits inside the block, without changes to the program.

        with nj.emulated(target="trn2", policy="bf16"):
            import train  # jax.jit, nnx.jit, eqx.filter_jit, jax.pmap
            train.main()

    Inside, `jax.jit` is `nj.jit` and `jax.pmap` is `nj.pmap`, for every thread. A
    function that is jitted inside another is emulated as a part of it. `jax.make_mesh`
    works for any number of devices: if the host has fewer, more are made. Meshes and
    arrays are those of JAX, and results are placed where `jax.jit` places them. A
    function jitted inside the block stays emulated after the block. A function that was
    jitted before the block runs natively, with a warning. Ops outside of any jit run on
    the host. `neuronjax run script.py` does this for a script.

    Args:
        target: as `jit`.
        policy: as `jit`.

    Raises:
        InvalidProgramError: unknown target or policy.
    """
    resolve_target(target)
    setting = {"target": target, "policy": policy and Policy.resolve(policy)}
    before = _native_calls()
    _enter(setting)
    try:
        with _INSIDE("emulated"):
            yield
    finally:
        _leave(setting)
    ran = [f for f, calls in _native_calls().items() if calls > before.get(f, 0)]
    if ran:
        names = ", ".join(f"{f.__name__} ({_line_of(f)})" for f in ran)
        warn_user(
            f"functions jitted before nj.emulated began ran natively inside it: {names}"
            "\n  remedy: enter nj.emulated before the program is imported or jits its "
            "functions; or use `neuronjax run script.py`",
            NotEmulatedWarning,
        )


def _enter(setting: Setting) -> None:
    with _lock:
        _open.append(setting)
        for name, ours in _OURS.items():
            setattr(jax, name, ours)
        _forget_jitted()


def _leave(setting: Setting) -> None:
    with _lock:
        _open[:] = [each for each in _open if each is not setting]
        for name, ours in _OURS.items():
            # If another library has replaced our function, its replacement stays.
            if not _open and getattr(jax, name) is ours:
                setattr(jax, name, _NATIVE[name])
        _forget_jitted()


def _forget_jitted() -> None:
    equinox = sys.modules.get("equinox")
    if equinox is not None:
        equinox.clear_caches()


def _jit(setting: Setting, *function: Callable[..., Any], **options: Any) -> Any:
    if not function:
        return functools.partial(_jit, setting, **options)
    return jit(*map(as_in_jax, function), **setting, **options)


def _pmap(
    setting: Setting,
    function: Callable[..., Any],
    axis_name: Any = None,
    *,
    devices: Sequence[Any] | None = None,
    backend: str | None = None,
    **options: Any,
) -> Any:
    # Only the number of `devices` matters, since these are devices of the host.
    count = None if devices is None else len(devices)
    return pmap(function, axis_name, devices=count, **setting, **options)


def _make_mesh(
    setting: Setting, axis_shapes: Sequence[int], *args: Any, **options: Any
) -> Any:
    count = math.prod(axis_shapes)
    if options.get("devices") is None and count > jax.device_count():
        options["devices"] = _other_devices(count)
    return _NATIVE["make_mesh"](axis_shapes, *args, **options)


@functools.cache
def _other_devices(count: int) -> Sequence[Any]:
    """Return CPU devices for a mesh larger than the host's device count, which JAX
    fixes at start. The devices belong to a second XLA client for the same host."""
    return make_cpu_client(num_devices=count).devices()


def _in_scope(native: Callable[..., Any], ours: Callable[..., Any]) -> Any:

    @functools.wraps(native, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        caller = sys._getframe(1).f_globals.get("__name__", "")
        # The scope opened last; modules of neuronjax get the functions of JAX.
        scope = [] if caller.partition(".")[0] == "neuronjax" else _open[-1:]
        return ours(*scope, *args, **kwargs) if scope else native(*args, **kwargs)

    return called


_NATIVE = {"jit": NATIVE_JIT, "pmap": jax.pmap, "make_mesh": jax.make_mesh}
#: Public names of JAX, and the functions they refer to while a scope is open.
_OURS = {
    name: _in_scope(_NATIVE[name], ours)
    for name, ours in {"jit": _jit, "pmap": _pmap, "make_mesh": _make_mesh}.items()
}


def _native_calls() -> dict[Any, int]:
    """Return, for each user function jitted natively, how many versions of it (one for
    each set of argument types) JAX has compiled."""
    kind = type(NATIVE_JIT(abs))
    found: list[Any] = [f for f in gc.get_objects() if type(f) is kind]
    return {f: f._cache_size() for f in found if _line_of(f)}


def _line_of(function: Any) -> str:
    """Return the line that defines a user's function; "" if a library defines it."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or any(part in code.co_filename for part in (*LIBRARY, "<")):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"
