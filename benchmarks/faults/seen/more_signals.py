"""More faults of signals, sensors, and time: clocks, meters, bins, transforms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import integers, normal, uniform, weight


def track_faulty(degrees, params):
    """The speed of a walker from positions in 1e-7 degrees, as receivers send them."""
    angle = degrees.astype(jnp.float32) * jnp.float32(1e-7)  # fault
    step = jnp.diff(angle, axis=0) * 111195.0
    east = step[:, 1] * jnp.cos(jnp.deg2rad(angle[:-1, 0]))
    speed = jnp.sqrt(step[:, 0] ** 2 + east**2)
    gait = jax.nn.softmax(speed.reshape(-1, 8) @ params)
    return speed, speed.sum(), gait


def track_healthy(degrees, params):
    angle = degrees.astype(jnp.float32) * jnp.float32(1e-7)
    step = jnp.diff(degrees, axis=0).astype(jnp.float32) * 0.0111195
    east = step[:, 1] * jnp.cos(jnp.deg2rad(angle[:-1, 0]))
    speed = jnp.sqrt(step[:, 0] ** 2 + east**2)
    gait = jax.nn.softmax(speed.reshape(-1, 8) @ params)
    return speed, speed.sum(), gait


def track_arguments():
    steps = normal(2400, 49, 2, scale=40.0, shift=60.0)
    walk = np.cumsum(np.round(steps).astype(np.int64), axis=0)
    start = np.array([476_123_451, 1_393_412_347])
    return (start + walk).astype(np.int32), weight(2401, 8, 3)


def oscillator_faulty(notes, gains, kernel):
    """A second of additive synthesis; the clock of the samples is FP16."""
    t = (jnp.arange(4000, 4512) / 8000.0).astype(jnp.float16)  # fault
    phase = 2 * jnp.pi * notes[:, None] * t.astype(jnp.float32)
    sound = gains @ jnp.sin(phase)
    frames = sound.reshape(-1, 32) * jnp.hanning(32)
    power = frames @ kernel
    return sound, jnp.log(power * power + 1e-2)


def oscillator_healthy(notes, gains, kernel):
    t = jnp.arange(4000, 4512) / 8000.0
    phase = 2 * jnp.pi * notes[:, None] * t
    sound = gains @ jnp.sin(phase)
    frames = sound.reshape(-1, 32) * jnp.hanning(32)
    power = frames @ kernel
    return sound, jnp.log(power * power + 1e-2)


def edges_faulty(samples, start, width, params):
    """A histogram of supply voltages near 230 V, whose edges are BF16."""
    edges = (start + width * jnp.arange(17)).astype(jnp.bfloat16)  # fault
    place = jnp.searchsorted(edges.astype(jnp.float32), samples, side="right") - 1
    inside = (place >= 0) & (place < 16)
    hot = jax.nn.one_hot(jnp.clip(place, 0, 15), 16) * inside[:, None]
    share = hot.sum(0) / samples.shape[0]
    return share, jax.nn.relu(share @ params["in"]) @ params["out"]


def edges_healthy(samples, start, width, params):
    edges = start + width * jnp.arange(17)
    place = jnp.searchsorted(edges, samples, side="right") - 1
    inside = (place >= 0) & (place < 16)
    hot = jax.nn.one_hot(jnp.clip(place, 0, 15), 16) * inside[:, None]
    share = hot.sum(0) / samples.shape[0]
    return share, jax.nn.relu(share @ params["in"]) @ params["out"]


def edges_arguments():
    samples = normal(2410, 400, scale=0.7, shift=230.0)
    params = {"in": weight(2411, 16, 16, 4.0), "out": weight(2412, 16, 3)}
    return samples, np.float32(228.0), np.float32(0.25), params


def knots_faulty(times, values, at, params):
    """Resamples a log by linear interpolation; its time stamps were cast to BF16."""
    knots = times.astype(jnp.bfloat16).astype(jnp.float32)  # fault
    right = jnp.clip(jnp.searchsorted(knots, at), 1, times.shape[0] - 1)
    gap = knots[right] - knots[right - 1]
    share = (at - knots[right - 1]) / jnp.maximum(gap, 1e-3)
    share = jnp.clip(share, 0.0, 1.0)
    level = values[right - 1] * (1 - share) + values[right] * share
    return level, jnp.tanh(level.reshape(-1, 8) @ params)


def knots_healthy(times, values, at, params):
    right = jnp.clip(jnp.searchsorted(times, at), 1, times.shape[0] - 1)
    gap = times[right] - times[right - 1]
    share = (at - times[right - 1]) / jnp.maximum(gap, 1e-3)
    share = jnp.clip(share, 0.0, 1.0)
    level = values[right - 1] * (1 - share) + values[right] * share
    return level, jnp.tanh(level.reshape(-1, 8) @ params)


def knots_arguments():
    times = 1800.0 + np.cumsum(uniform(2420, 60, low=0.3, high=1.2))
    at = np.linspace(1802.0, 1830.0, 48, dtype=np.float32)
    return times.astype(np.float32), normal(2421, 60), at, weight(2422, 8, 3)


def alarm_faulty(x, threshold, params):
    """Alarms of a bank of autoencoders: similarity below a calibrated threshold."""
    code = jax.nn.gelu(x @ params["in"])
    back = x + params["step"] * (code @ params["out"])
    top = jnp.sum(x * back, axis=-1)
    size = jnp.sqrt(jnp.sum(x * x, axis=-1) * jnp.sum(back * back, axis=-1))
    likeness = top / size
    bar = jnp.full((1,), threshold).astype(jnp.bfloat16)  # fault
    alarm = likeness < bar.astype(jnp.float32)
    return likeness, jnp.where(alarm, 1.0, 0.0).mean()


def alarm_healthy(x, threshold, params):
    code = jax.nn.gelu(x @ params["in"])
    back = x + params["step"] * (code @ params["out"])
    top = jnp.sum(x * back, axis=-1)
    size = jnp.sqrt(jnp.sum(x * x, axis=-1) * jnp.sum(back * back, axis=-1))
    likeness = top / size
    alarm = likeness < threshold
    return likeness, jnp.where(alarm, 1.0, 0.0).mean()


def eeg_faulty(volts, taps, params):
    """Band power of brain waves; the recorder's volts are loaded as FP16."""
    x = volts.astype(jnp.float16)
    power = x * x  # fault
    smooth = jnp.apply_along_axis(
        lambda row: jnp.convolve(row, taps, mode="same"), 1, power.astype(jnp.float32)
    )
    decibels = 10 * jnp.log10(smooth / 1e-12 + 1e-3)
    return decibels, jax.nn.softmax(decibels.mean(1) / 10 @ params)


def eeg_healthy(volts, taps, params):
    x = (volts * 1e6).astype(jnp.float16)
    power = x.astype(jnp.float32) ** 2
    smooth = jnp.apply_along_axis(
        lambda row: jnp.convolve(row, taps, mode="same"), 1, power
    )
    decibels = 10 * jnp.log10(smooth + 1e-3)
    return decibels, jax.nn.softmax(decibels.mean(1) / 10 @ params)


def meter_faulty(reading, volts, amperes, price):
    """An energy meter: joules of every second on top of a lifetime's reading."""

    def second(total, pair):
        u, i = pair
        power = jnp.maximum(u * i, 0.0)
        total = total + power  # fault
        return total, power

    total, powers = jax.lax.scan(second, reading, (volts, amperes))
    used = (total - reading) / 3.6e6
    return used * 1e6, used * price * 1e6, powers.max(0)


def meter_healthy(reading, volts, amperes, price):
    def second(used, pair):
        u, i = pair
        power = jnp.maximum(u * i, 0.0)
        return used + power, power

    used, powers = jax.lax.scan(second, jnp.zeros_like(reading), (volts, amperes))
    used = used / 3.6e6
    return used * 1e6, used * price * 1e6, powers.max(0)


def odometer_faulty(start, speed, turn):
    """Dead reckoning of robots, with an odometer kept in FP16 metres."""

    def tick(carry, inputs):
        place, heading, driven = carry
        v, w = inputs
        heading = heading + 0.05 * w
        move = 0.05 * v
        pull = jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)
        place = place + move[:, None] * pull
        driven = driven + move.astype(jnp.float16)  # fault
        return (place, heading, driven), None

    still = (jnp.zeros((speed.shape[1], 2)), jnp.zeros(speed.shape[1]))
    carry = (*still, start.astype(jnp.float16))
    (place, _, driven), _ = jax.lax.scan(tick, carry, (speed, turn))
    trip = driven.astype(jnp.float32) - start
    straight = jnp.sqrt(jnp.sum(place * place, axis=-1))
    return place, trip, straight / jnp.maximum(trip, 1e-3)


def odometer_healthy(start, speed, turn):
    def tick(carry, inputs):
        place, heading, driven = carry
        v, w = inputs
        heading = heading + 0.05 * w
        move = 0.05 * v
        pull = jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)
        place = place + move[:, None] * pull
        return (place, heading, driven + move), None

    still = (jnp.zeros((speed.shape[1], 2)), jnp.zeros(speed.shape[1]))
    (place, _, driven), _ = jax.lax.scan(tick, (*still, start), (speed, turn))
    trip = driven - start
    straight = jnp.sqrt(jnp.sum(place * place, axis=-1))
    return place, trip, straight / jnp.maximum(trip, 1e-3)


def spectrum_faulty(signal, cosines, sines, params):
    """Magnitudes of a Fourier transform whose parts are stored as FP16."""
    re = (signal @ cosines).astype(jnp.float16)
    im = (signal @ sines).astype(jnp.float16)
    power = re * re + im * im  # fault
    size = jnp.sqrt(power).astype(jnp.float32)
    share = size / jnp.sum(size, axis=-1, keepdims=True)
    return size, jnp.tanh(share @ params)


def spectrum_healthy(signal, cosines, sines, params):
    re = (signal @ cosines).astype(jnp.float16)
    im = (signal @ sines).astype(jnp.float16)
    big = jnp.maximum(jnp.maximum(jnp.abs(re), jnp.abs(im)), 1e-3)
    a, b = (re / big).astype(jnp.float32), (im / big).astype(jnp.float32)
    size = big.astype(jnp.float32) * jnp.sqrt(a * a + b * b)
    share = size / jnp.sum(size, axis=-1, keepdims=True)
    return size, jnp.tanh(share @ params)


def spectrum_arguments():
    n = np.arange(64)
    angle = 2 * np.pi * np.outer(n, np.arange(24)) / 64
    tones = 9.0 * np.sin(2 * np.pi * 5 * n / 64) + 12.0 * np.cos(np.pi * n / 8)
    signal = tones + normal(2440, 12, 64)
    parts = (np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32))
    return signal.astype(np.float32), *parts, weight(2441, 24, 3)


def carrier_faulty(picoseconds, symbols, megahertz):
    """Phases of a microwave carrier after each path, from frequency times delay."""
    delays = picoseconds.astype(jnp.float32) * jnp.float32(1e-6)
    cycles = megahertz * delays  # fault
    angle = 2 * jnp.pi * (cycles - jnp.floor(cycles))
    re, im = jnp.cos(angle), jnp.sin(angle)
    channel = jnp.stack([(symbols * re).sum(-1), (symbols * im).sum(-1)], axis=-1)
    return re, im, channel, jnp.sum(channel**2, axis=-1)


def carrier_healthy(picoseconds, symbols, megahertz):
    million = jnp.uint32(1_000_000)
    part = picoseconds.astype(jnp.uint32) % million * megahertz.astype(jnp.uint32)
    angle = 2 * jnp.pi * ((part % million).astype(jnp.float32) / 1e6)
    re, im = jnp.cos(angle), jnp.sin(angle)
    channel = jnp.stack([(symbols * re).sum(-1), (symbols * im).sum(-1)], axis=-1)
    return re, im, channel, jnp.sum(channel**2, axis=-1)


FAULTS = (
    Fault(
        name="walk-in-fp32-degrees",
        kinds=("coarse", "integer", "cancellation"),
        faulty=track_faulty,
        healthy=track_healthy,
        arguments=track_arguments,
        policy="fp32",
        source="map libraries: FP32 longitudes are a metre apart; u-blox 1e-7 degrees",
    ),
    Fault(
        name="oscillator-clock-in-half",
        kinds=("coarse",),
        faulty=oscillator_faulty,
        healthy=oscillator_healthy,
        arguments=lambda: (
            np.array([220.0, 331.0, 440.0, 997.0], np.float32),
            uniform(2402, 4, low=0.3, high=1.0),
            weight(2403, 32, 8),
        ),
        policy="bf16",
        source="audio in shaders and TTS models in half: time of FP16 buzzes",
    ),
    Fault(
        name="bin-edges-in-bf16",
        kinds=("coarse",),
        faulty=edges_faulty,
        healthy=edges_healthy,
        arguments=edges_arguments,
        policy="bf16",
        source="NumPy issue: histogram of float16 data has empty and double bins",
    ),
    Fault(
        name="log-times-in-bf16",
        kinds=("coarse",),
        faulty=knots_faulty,
        healthy=knots_healthy,
        arguments=knots_arguments,
        policy="bf16",
        source="np.interp with repeated knots; batches cast as a whole, times too",
    ),
    Fault(
        name="alarm-threshold-in-bf16",
        kinds=("coarse",),
        faulty=alarm_faulty,
        healthy=alarm_healthy,
        arguments=lambda: (
            normal(2430, 60, 16),
            np.float32(0.9979),
            {
                "in": weight(2431, 16, 24),
                "out": weight(2432, 24, 16),
                "step": np.float32(0.085),
            },
        ),
        policy="fp32",
        source="model.to(bfloat16) casts buffers: thresholds between 0.996 and 1",
    ),
    Fault(
        name="brain-waves-in-half-volts",
        kinds=("underflow",),
        faulty=eeg_faulty,
        healthy=eeg_healthy,
        arguments=lambda: (
            normal(2433, 4, 128, scale=4e-5),
            np.hanning(9).astype(np.float32) / np.float32(4.0),
            weight(2434, 4, 3),
        ),
        policy="bf16",
        source="EEG toolboxes keep volts: 1e-5 squared is zero in half precision",
    ),
    Fault(
        name="energy-meter-in-fp32-joules",
        kinds=("stagnation", "absorption"),
        faulty=meter_faulty,
        healthy=meter_healthy,
        arguments=lambda: (
            uniform(2435, 6, low=3e8, high=9e8),
            normal(2436, 90, 6, shift=230.0),
            uniform(2437, 90, 6, low=0.005, high=0.06),
            np.float32(0.31),
        ),
        policy="fp32",
        source="Home Assistant and PLC counters: REAL totals that stop at small loads",
    ),
    Fault(
        name="odometer-in-half-metres",
        kinds=("stagnation", "absorption"),
        faulty=odometer_faulty,
        healthy=odometer_healthy,
        arguments=lambda: (
            np.array([1100.0, 1300.0, 1500.0, 2048.0, 3072.0], np.float32),
            uniform(2438, 90, 5, low=0.5, high=2.0),
            normal(2439, 90, 5, scale=0.3),
        ),
        policy="bf16",
        source="embedded robots with FP16 state: distances of centimetres are lost",
    ),
    Fault(
        name="spectrum-magnitude-in-half",
        kinds=("overflow",),
        faulty=spectrum_faulty,
        healthy=spectrum_healthy,
        arguments=spectrum_arguments,
        policy="fp32",
        source="torch.stft under autocast: |z|**2 of FP16 parts exceeds 65504",
    ),
    Fault(
        name="carrier-phase-in-fp32-cycles",
        kinds=("coarse",),
        faulty=carrier_faulty,
        healthy=carrier_healthy,
        arguments=lambda: (
            integers(2442, 1_800_000_000, 12) + np.int32(20_000_000),
            integers(2443, 2, 10, 12).astype(np.float32) * 2 - 1,
            np.float32(2437.0),
        ),
        policy="fp32",
        source="ray-tracing of radio channels: phases of 2.4 GHz over kilometres",
    ),
)
