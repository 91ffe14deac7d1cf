"""`emulated`: a scope in which a program's own `jax.jit` and `jax.pmap` are emulated.

While a scope is open the public names `jax.jit` and `jax.pmap` are ours, which asks
nothing of JAX but that libraries look these names up where they use them, as Flax and
Equinox do: `nnx.jit` lifts the state of its modules as ever, and hands a function of
plain arrays to what it takes for `jax.jit`. `jax.make_mesh` is ours too, for meshes of
more devices than the host has. This package's own calls get JAX's.

A scope is the process's: what any thread jits while it is open is emulated, of several
the one that was opened last counts.
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

#: Of every open scope the target and the policy, the last one opened at the end.
_open: list[Mapping[str, Any]] = []
_lock = threading.Lock()
# Part of JAX's cache key: a function that was compiled before is compiled once more
# inside, so that what runs natively can be counted.
_INSIDE = jax.make_user_context(default_value=None)


@contextlib.contextmanager
def emulated(
    *, target: str = "trn2", policy: Preset | str | Policy | None = None
) -> Iterator[None]:
    """Emulates what a program jits inside the block, as it stands.

        with nj.emulated(target="trn2", policy="bf16"):
            import train  # jax.jit, nnx.jit, eqx.filter_jit, jax.pmap
            train.main()

    `jax.jit` is `nj.jit`, `jax.pmap` is `nj.pmap`, for every thread. The outermost of
    nested functions is emulated, whole. `jax.make_mesh` finds as many devices as it is
    asked for: where the host has fewer, a mesh is over others, made for it. Meshes and
    arrays on them are JAX's own, and results lie where `jax.jit` places them. What was
    jitted inside stays emulated outside; what was jitted before is JAX's, and if it
    runs a warning says so. Ops outside of any jit run on the host. `neuronjax run
    script.py` does this for a script.

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
        warn_user(_native_text(ran), NotEmulatedWarning)


def _enter(setting: Mapping[str, Any]) -> None:
    with _lock:
        _open.append(setting)
        for name, ours in _OURS.items():
            setattr(jax, name, ours)
        _forget_jitted()


def _leave(setting: Mapping[str, Any]) -> None:
    with _lock:
        _open[:] = [each for each in _open if each is not setting]
        for name, ours in _OURS.items():
            # Another library may have put its own in front of ours, and keeps it.
            if not _open and getattr(jax, name) is ours:
                setattr(jax, name, _NATIVE[name])
        _forget_jitted()


def _forget_jitted() -> None:
    """Equinox keeps what `jax.jit` made of a function; elsewhere it is another."""
    equinox = sys.modules.get("equinox")
    if equinox is not None:
        equinox.clear_caches()


# -- in the place of JAX's names -------------------------------------------------------


Setting = Mapping[str, Any]


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
    del backend
    # Devices of the host are not those of the chip; what counts is how many.
    count = None if devices is None else len(devices)
    return pmap(function, axis_name, devices=count, **setting, **options)


def _make_mesh(
    setting: Setting, axis_shapes: Sequence[int], *args: Any, **options: Any
) -> Any:
    del setting
    count = math.prod(axis_shapes)
    if options.get("devices") is None and count > jax.device_count():
        options["devices"] = _other_devices(count)
    return _NATIVE["make_mesh"](axis_shapes, *args, **options)


@functools.cache
def _other_devices(count: int) -> Sequence[Any]:
    """Return devices for a mesh that the host has too few for: a host counts its own
    once, when it starts, so these are of another client of XLA for the same host."""
    return make_cpu_client(num_devices=count).devices()


def _in_scope(native: Callable[..., Any], ours: Callable[..., Any]) -> Any:
    """Return what stands in the place of JAX's function while a scope is open."""

    @functools.wraps(native, updated=())
    def called(*args: Any, **kwargs: Any) -> Any:
        setting = _setting(sys._getframe(1).f_globals)
        if setting is None:
            return native(*args, **kwargs)
        return ours(setting, *args, **kwargs)

    return called


_NATIVE = {"jit": NATIVE_JIT, "pmap": jax.pmap, "make_mesh": jax.make_mesh}
#: Public names of JAX, and what stands there while a scope is open.
_OURS = {
    name: _in_scope(_NATIVE[name], ours)
    for name, ours in {"jit": _jit, "pmap": _pmap, "make_mesh": _make_mesh}.items()
}


def _setting(asking: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Target and policy of the last scope; None outside, and for this package."""
    ours = asking.get("__name__", "").partition(".")[0] == "neuronjax"
    scopes = [] if ours else _open[-1:]
    return scopes[0] if scopes else None


# -- what was not emulated -------------------------------------------------------------


def _native_calls() -> dict[Any, int]:
    """The user's functions that JAX itself has jitted, and for how many kinds of
    arguments each was run as a program of its own (and not as part of another)."""
    kind = type(NATIVE_JIT(abs))
    found: list[Any] = [f for f in gc.get_objects() if type(f) is kind]
    return {f: f._cache_size() for f in found if _line_of(f)}


def _line_of(function: Any) -> str:
    """Where a user's function is defined; "" for one of a library."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or any(part in code.co_filename for part in (*LIBRARY, "<")):
        return ""
    return f"{code.co_filename}:{code.co_firstlineno}"


def _native_text(functions: Sequence[Any]) -> str:
    names = ", ".join(f"{f.__name__} ({_line_of(f)})" for f in functions)
    return (
        f"ran natively inside nj.emulated, for it was jitted before: {names}\n"
        "  remedy: open the scope before the program is imported or jits its "
        "functions; or `neuronjax run script.py`"
    )
