"""Statistics, signals, sensors and time: clocks, meters, bins, transforms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import (
    attention,
    convolution,
    feed_forward,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)


@fault("singular", "non-finite")
@source("JAX FAQ: the branch that where() drops still has an infinite gradient")
@inputs(
    "in: 2x32 w @610, middle: 32x32 w*2, out: 32x3 w; 64x2 0..1 @613; 64x3 0..1 @614"
)
def srgb_power_behind_where(params, coordinates, target):
    """Fits a coordinate network to a picture; the loss is taken in sRGB."""

    def loss_of(params):
        h = jnp.sin(4 * coordinates @ params["in"])
        h = jnp.sin(h @ params["middle"])
        light = jnp.clip(h @ params["out"], 0.0, 1.0)
        bright = 1.055 * light ** (1 / 2.4) - 0.055  # fault
        # + safe = jnp.maximum(light, 0.0031308)
        # + bright = 1.055 * safe ** (1 / 2.4) - 0.055
        dark = 12.92 * light
        shown = jnp.where(light > 0.0031308, bright, dark)
        return jnp.mean((shown - target) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)


def speech_arguments():
    frames = normal(615, 24, 64)
    frames[9:14] = 0.0
    return (
        "filters: 32x20 0..1 @616, in: 20x32 w, body: block 32, out: 32x4 w @628",
        frames,
    )


@fault("singular", "non-finite")
@source("speech front ends: log10 of an exactly silent frame is -Inf")
@inputs(by=speech_arguments)
def log_mel_of_digital_silence(params, frames):
    """Whisper's features of a recording with a second of digital silence."""
    n = frames.shape[-1]
    angle = 2 * jnp.pi * jnp.outer(jnp.arange(n), jnp.arange(n // 2)) / n
    real, imaginary = frames @ jnp.cos(angle), frames @ jnp.sin(angle)
    power = real * real + imaginary * imaginary
    mel = power @ params["filters"]
    log_mel = jnp.log10(mel)  # fault
    # + log_mel = jnp.log10(jnp.maximum(mel, 1e-10))
    log_mel = (log_mel - log_mel.mean()) / 4.0
    x = jax.nn.gelu(log_mel @ params["in"])
    x = x + attention(params["body"], layer_norm(x))
    return x.mean(0) @ params["out"]


@fault("singular", "non-finite")
@source("JAX issue 3058: NaN in the gradient of a norm at zero")
@inputs("embed: 40x16 @629, body: block 16; 8x6 int 0..40 @640; i32 6 3 5 0 6 2 4 6")
def norm_of_empty_sentence(params, tokens, lengths):
    """Sentence embeddings of unit length; one sentence of the batch is empty."""

    def loss_of(params):
        x = params["embed"][tokens]
        inside = (jnp.arange(tokens.shape[1]) < lengths[:, None])[..., None]
        x = (x + feed_forward(params["body"], layer_norm(x))) * inside
        pooled = x.sum(1) / jnp.maximum(lengths, 1)[:, None]
        size = jnp.sqrt(jnp.sum(pooled * pooled, -1, keepdims=True))  # fault
        unit = pooled / jnp.maximum(size, 1e-6)  # -
        # + square = jnp.sum(pooled * pooled, -1, keepdims=True)
        # + unit = pooled * jax.lax.rsqrt(jnp.maximum(square, 1e-12))
        return jnp.mean((unit @ unit.T - jnp.eye(len(unit))) ** 2)

    value, grads = jax.value_and_grad(loss_of)(params)
    return value, grads["embed"]


def graph_arguments():
    def layer(seed):
        return {
            "w": weight(seed, 16, 16),
            "a": weight(seed + 1, 16, 1),
            "b": weight(seed + 2, 16, 1),
        }

    params = {"first": layer(641), "second": layer(645), "out": weight(649, 16, 3)}
    return params, normal(650, 30, 16), integers(651, 30, 80), integers(652, 26, 80)


@fault("non-finite", "singular")
@source("jraph and PyG: softmax over no edges divides zero by zero")
@inputs(by=graph_arguments)
def graph_attention_without_neighbours(params, x, sources, targets):
    """Two graph attention layers; a few nodes have no neighbours."""

    def layer(x, p):
        h = x @ p["w"]
        score = (h @ p["a"])[sources, 0] + (h @ p["b"])[targets, 0]
        odds = jnp.exp(jnp.tanh(jax.nn.leaky_relu(score, 0.2)))
        total = jax.ops.segment_sum(odds, targets, x.shape[0])
        read = jax.ops.segment_sum(odds[:, None] * h[sources], targets, x.shape[0])
        read = read / total[:, None]  # fault
        # + read = read / jnp.where(total > 0, total, 1.0)[:, None]
        return jax.nn.elu(h + read)

    x = layer(x, params["first"])
    x = layer(x, params["second"])
    return x @ params["out"]


@fault("cancellation")
@source("Björck, Solving Linear Least Squares Problems by Gram-Schmidt, 1967")
@inputs(
    {
        "kernel": "3x3x3x16 *0.2 @654",
        "directions": lambda: normal(653, 1, 16) + 3e-4 * normal(655, 6, 16),
    },
    "1x8x8x3 @656",
)
def classical_gram_schmidt(params, image):
    """Projects features on the span of a network's nearly parallel directions."""
    x = jax.nn.relu(convolution(image, params["kernel"], 2))
    x = x.reshape(-1, x.shape[-1])

    def add(basis, pair):  # -
        i, v = pair
        inside = jnp.sum(basis * v[:, None], axis=0)
        v = v - jnp.sum(basis * inside, axis=1)  # fault
        v = v / jnp.sqrt(jnp.sum(v * v))
        return basis.at[:, i].set(v), None

    directions = params["directions"]
    start = jnp.zeros(directions.T.shape)  # -
    # + count, size = directions.shape
    # + def reflect(carry, i):
    # +     rest, basis = carry
    # +     below = jnp.arange(size) >= i
    # +     v = jnp.where(below, rest[:, i], 0.0)
    # +     top = v[i]
    # +     v = v.at[i].add(jnp.where(top < 0, -1.0, 1.0) * jnp.sqrt(jnp.sum(v * v)))
    # +     v = v / jnp.sqrt(jnp.sum(v * v))
    # +     rest = rest - 2 * v[:, None] * jnp.sum(v[:, None] * rest, axis=0)
    # +     basis = basis - 2 * jnp.sum(basis * v, axis=1)[:, None] * v
    # +     return (rest, basis), None
    # + start = (directions.T, jnp.eye(size))
    index = jnp.arange(len(directions))  # -
    basis, _ = jax.lax.scan(add, start, (index, directions))  # -
    # + (_, basis), _ = jax.lax.scan(reflect, start, jnp.arange(count))
    # + basis = basis[:, :count]
    return (x @ basis) @ basis.T, basis.T @ basis


@fault("coarse", "integer", "cancellation", policy="fp32")
@source("map libraries: FP32 longitudes are a metre apart; u-blox 1e-7 degrees")
@inputs(
    lambda: (
        np.array([476_123_451, 1_393_412_347])
        + np.cumsum(
            np.round(normal(2400, 49, 2, scale=40.0, shift=60.0)).astype(np.int64),
            axis=0,
        )
    ).astype(np.int32),
    "8x3 w @2401",
)
def walk_in_fp32_degrees(degrees, params):
    """The speed of a walker from positions in 1e-7 degrees, as receivers send them."""
    angle = degrees.astype(jnp.float32) * jnp.float32(1e-7)  # here
    step = jnp.diff(angle, axis=0) * 111195.0  # -
    # + step = jnp.diff(degrees, axis=0).astype(jnp.float32) * 0.0111195
    east = step[:, 1] * jnp.cos(jnp.deg2rad(angle[:-1, 0]))
    speed = jnp.sqrt(step[:, 0] ** 2 + east**2)
    gait = jax.nn.softmax(speed.reshape(-1, 8) @ params)
    return speed, speed.sum(), gait


@fault("coarse")
@source("audio in shaders and TTS models in half: time of FP16 buzzes")
@inputs("f32 220 331 440 997; 4 0.3..1 @2402; 32x8 w @2403")
def oscillator_clock_in_half(notes, gains, kernel):
    """A second of additive synthesis; the clock of the samples is FP16."""
    t = (jnp.arange(4000, 4512) / 8000.0).astype(jnp.float16)  # fault
    # + t = jnp.arange(4000, 4512) / 8000.0
    phase = 2 * jnp.pi * notes[:, None] * t.astype(jnp.float32)  # -
    # + phase = 2 * jnp.pi * notes[:, None] * t
    sound = gains @ jnp.sin(phase)
    frames = sound.reshape(-1, 32) * jnp.hanning(32)
    power = frames @ kernel
    return sound, jnp.log(power * power + 1e-2)


@fault("coarse")
@source("NumPy issue: histogram of float16 data has empty and double bins")
@inputs("400 *0.7 +230 @2410; f32 228; f32 0.25; in: 16x16 w*4 @2411, out: 16x3 w")
def bin_edges_in_bf16(samples, start, width, params):
    """A histogram of supply voltages near 230 V, whose edges are BF16."""
    edges = (start + width * jnp.arange(17)).astype(jnp.bfloat16)  # fault
    # + edges = start + width * jnp.arange(17)
    place = jnp.searchsorted(edges.astype(jnp.float32), samples, side="right") - 1  # -
    # + place = jnp.searchsorted(edges, samples, side="right") - 1
    inside = (place >= 0) & (place < 16)
    hot = jax.nn.one_hot(jnp.clip(place, 0, 15), 16) * inside[:, None]
    share = hot.sum(0) / samples.shape[0]
    return share, jax.nn.relu(share @ params["in"]) @ params["out"]


@fault("coarse")
@source("np.interp with repeated knots; batches cast as a whole, times too")
@inputs(
    lambda: (1800.0 + np.cumsum(uniform(2420, 60, low=0.3, high=1.2))).astype(
        np.float32
    ),
    "60 @2421; 48 even 1802..1830; 8x3 w @2422",
)
def log_times_in_bf16(times, values, at, params):
    """Resamples a log by linear interpolation; its time stamps were cast to BF16."""
    knots = times.astype(jnp.bfloat16).astype(jnp.float32)  # fault
    right = jnp.clip(jnp.searchsorted(knots, at), 1, times.shape[0] - 1)  # -
    # + right = jnp.clip(jnp.searchsorted(times, at), 1, times.shape[0] - 1)
    gap = knots[right] - knots[right - 1]  # -
    # + gap = times[right] - times[right - 1]
    share = (at - knots[right - 1]) / jnp.maximum(gap, 1e-3)  # -
    # + share = (at - times[right - 1]) / jnp.maximum(gap, 1e-3)
    share = jnp.clip(share, 0.0, 1.0)
    level = values[right - 1] * (1 - share) + values[right] * share
    return level, jnp.tanh(level.reshape(-1, 8) @ params)


@fault("coarse", policy="fp32")
@source("model.to(bfloat16) casts buffers: thresholds between 0.996 and 1")
@inputs("60x16 @2430; f32 0.9979; in: 16x24 w @2431, out: 24x16 w, step: f32 0.085")
def alarm_threshold_in_bf16(x, threshold, params):
    """Alarms of a bank of autoencoders: similarity below a calibrated threshold."""
    code = jax.nn.gelu(x @ params["in"])
    back = x + params["step"] * (code @ params["out"])
    top = jnp.sum(x * back, axis=-1)
    size = jnp.sqrt(jnp.sum(x * x, axis=-1) * jnp.sum(back * back, axis=-1))
    likeness = top / size
    bar = jnp.full((1,), threshold).astype(jnp.bfloat16)  # fault
    alarm = likeness < bar.astype(jnp.float32)  # -
    # + alarm = likeness < threshold
    return likeness, jnp.where(alarm, 1.0, 0.0).mean()


@fault("underflow")
@source("EEG toolboxes keep volts: 1e-5 squared is zero in half precision")
@inputs(
    "4x128 *4e-05 @2433",
    lambda: np.hanning(9).astype(np.float32) / np.float32(4.0),
    "4x3 w @2434",
)
def brain_waves_in_half_volts(volts, taps, params):
    """Band power of brain waves; the recorder's volts are loaded as FP16."""
    x = volts.astype(jnp.float16)  # -
    # + x = (volts * 1e6).astype(jnp.float16)
    power = x * x  # fault
    # + power = x.astype(jnp.float32) ** 2
    smooth = jnp.apply_along_axis(
        lambda row: jnp.convolve(row, taps, mode="same"), 1, power.astype(jnp.float32)
    )  # -
    # + smooth = jnp.apply_along_axis(
    # +     lambda row: jnp.convolve(row, taps, mode="same"), 1, power
    # + )
    decibels = 10 * jnp.log10(smooth / 1e-12 + 1e-3)  # -
    # + decibels = 10 * jnp.log10(smooth + 1e-3)
    return decibels, jax.nn.softmax(decibels.mean(1) / 10 @ params)


@fault("stagnation", "absorption", policy="fp32")
@source("Home Assistant and PLC counters: REAL totals that stop at small loads")
@inputs("6 3e+08..9e+08 @2435; 90x6 +230 @2436; 90x6 0.005..0.06 @2437; f32 0.31")
def energy_meter_in_fp32_joules(reading, volts, amperes, price):
    """An energy meter: joules of every second on top of a lifetime's reading."""

    def second(total, pair):  # -
        u, i = pair
        power = jnp.maximum(u * i, 0.0)
        total = total + power  # fault
        return total, power

    # + def second(used, pair):
    # +     u, i = pair
    # +     power = jnp.maximum(u * i, 0.0)
    # +     return used + power, power

    total, powers = jax.lax.scan(second, reading, (volts, amperes))  # -
    used = (total - reading) / 3.6e6  # -
    # + used, powers = jax.lax.scan(second, jnp.zeros_like(reading), (volts, amperes))
    # + used = used / 3.6e6
    return used * 1e6, used * price * 1e6, powers.max(0)


@fault("stagnation", "absorption")
@source("embedded robots with FP16 state: distances of centimetres are lost")
@inputs("f32 1100 1300 1500 2048 3072; 90x5 0.5..2 @2438; 90x5 *0.3 @2439")
def odometer_in_half_metres(start, speed, turn):
    """Dead reckoning of robots, with an odometer kept in FP16 metres."""

    def tick(carry, inputs):
        place, heading, driven = carry
        v, w = inputs
        heading = heading + 0.05 * w
        move = 0.05 * v
        pull = jnp.stack([jnp.cos(heading), jnp.sin(heading)], axis=-1)
        place = place + move[:, None] * pull
        driven = driven + move.astype(jnp.float16)  # fault
        return (place, heading, driven), None  # -
        # + return (place, heading, driven + move), None

    still = (jnp.zeros((speed.shape[1], 2)), jnp.zeros(speed.shape[1]))
    carry = (*still, start.astype(jnp.float16))  # -
    (place, _, driven), _ = jax.lax.scan(tick, carry, (speed, turn))  # -
    # + (place, _, driven), _ = jax.lax.scan(tick, (*still, start), (speed, turn))
    trip = driven.astype(jnp.float32) - start  # -
    # + trip = driven - start
    straight = jnp.sqrt(jnp.sum(place * place, axis=-1))
    return place, trip, straight / jnp.maximum(trip, 1e-3)


def spectrum_arguments():
    n = np.arange(64)
    angle = 2 * np.pi * np.outer(n, np.arange(24)) / 64
    tones = 9.0 * np.sin(2 * np.pi * 5 * n / 64) + 12.0 * np.cos(np.pi * n / 8)
    signal = tones + normal(2440, 12, 64)
    parts = (np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32))
    return signal.astype(np.float32), *parts, "24x3 w @2441"


@fault("overflow", policy="fp32")
@source("torch.stft under autocast: |z|**2 of FP16 parts exceeds 65504")
@inputs(by=spectrum_arguments)
def spectrum_magnitude_in_half(signal, cosines, sines, params):
    """Magnitudes of a Fourier transform whose parts are stored as FP16."""
    re = (signal @ cosines).astype(jnp.float16)
    im = (signal @ sines).astype(jnp.float16)
    power = re * re + im * im  # fault
    size = jnp.sqrt(power).astype(jnp.float32)  # -
    # + big = jnp.maximum(jnp.maximum(jnp.abs(re), jnp.abs(im)), 1e-3)
    # + a, b = (re / big).astype(jnp.float32), (im / big).astype(jnp.float32)
    # + size = big.astype(jnp.float32) * jnp.sqrt(a * a + b * b)
    share = size / jnp.sum(size, axis=-1, keepdims=True)
    return size, jnp.tanh(share @ params)


@fault("coarse", policy="fp32")
@source("ray-tracing of radio channels: phases of 2.4 GHz over kilometres")
@inputs(
    "12 int 20000000..1820000000 @2442",
    lambda: integers(2443, 2, 10, 12).astype(np.float32) * 2 - 1,
    "f32 2437",
)
def carrier_phase_in_fp32_cycles(picoseconds, symbols, megahertz):
    """Phases of a microwave carrier after each path, from frequency times delay."""
    delays = picoseconds.astype(jnp.float32) * jnp.float32(1e-6)  # -
    cycles = megahertz * delays  # fault
    angle = 2 * jnp.pi * (cycles - jnp.floor(cycles))  # -
    # + million = jnp.uint32(1_000_000)
    # + part = picoseconds.astype(jnp.uint32) % million * megahertz.astype(jnp.uint32)
    # + angle = 2 * jnp.pi * ((part % million).astype(jnp.float32) / 1e6)
    re, im = jnp.cos(angle), jnp.sin(angle)
    channel = jnp.stack([(symbols * re).sum(-1), (symbols * im).sum(-1)], axis=-1)
    return re, im, channel, jnp.sum(channel**2, axis=-1)
