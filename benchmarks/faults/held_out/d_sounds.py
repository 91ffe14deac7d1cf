"""Sounds and sensors: oscillators, resampling, sample formats, decimation."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import layer_norm, normal, weight


@fault("coarse")
@source("filter design: 2 cos(w) of low pitches is 2 in short formats")
@inputs(
    "loud: 6x12 w @9101; 6 @9102",
    lambda: (41.2 * 2 ** (np.arange(12) / 12)).astype(np.float32),
)
def d_recurrence_coefficient_in_half(params, control, pitch):
    """Bass partials of an additive synthesizer, each a two-term recurrence."""
    loud = jax.nn.softplus(control @ params["loud"])
    angle = 2 * jnp.pi * pitch / 44100.0
    turn = (2.0 * jnp.cos(angle)).astype(jnp.float16)  # fault
    wide = turn.astype(jnp.float32)  # -
    # + cos, sin = jnp.cos(angle), jnp.sin(angle)

    def step(carry, _):
        now, before = carry  # -
        return (wide * now - before, now), now  # -
        # + x, y = carry
        # + return (cos * x - sin * y, sin * x + cos * y), y

    start = (jnp.zeros_like(pitch), -jnp.sin(angle))  # -
    # + start = (jnp.ones_like(pitch), jnp.zeros_like(pitch))
    _, waves = jax.lax.scan(step, start, None, length=512)
    return waves @ loud


def stream_arguments():
    first = np.int32(21_168_000)  # eight minutes at 44.1 kHz
    return normal(9111, 128), first, np.int32(first + 6), np.float32(0.91875)


@fault("absorption", "coarse", policy="fp32")
@source("odas issue: after 20 minutes a float resampler drifts audibly")
@inputs(by=stream_arguments)
def d_resampler_counts_from_the_start(chunk, first, begin, ratio):
    """A resampler that keeps its place in the stream as a number of samples."""

    def step(place, _):
        whole = jnp.floor(place)
        at = whole.astype(jnp.int32) - first  # -
        # + at = whole.astype(jnp.int32)
        part = place - whole
        sample = (1 - part) * chunk[at] + part * chunk[at + 1]  # -
        place = place + ratio  # fault
        return place, sample  # -
        # + return place + ratio, (1 - part) * chunk[at] + part * chunk[at + 1]

    place, out = jax.lax.scan(step, begin.astype(jnp.float32), None, length=96)  # -
    return place - first.astype(jnp.float32), out  # -
    # + start = (begin - first).astype(jnp.float32)
    # + return jax.lax.scan(step, start, None, length=96)


def pcm_arguments():
    wave = (normal(9121, 256) * 0.2 * 2**23).astype(np.int64) & 0xFFFFFF
    data = np.stack([wave & 255, wave >> 8 & 255, wave >> 16], axis=-1)
    return data.astype(np.uint8), "32x8 w @9122"


@fault("integer")
@source("forum questions on reading 24-bit WAV files")
@inputs(by=pcm_arguments)
def d_24_bit_samples_joined_in_int16(data, kernel):
    """Sound of 24-bit files, whose three bytes are put together, then bands."""
    low, middle, high = jnp.moveaxis(data.astype(jnp.int16), -1, 0)  # -
    # + low, middle, high = jnp.moveaxis(data.astype(jnp.int32), -1, 0)
    high = (high ^ 128) - 128
    sample = low + (middle << 8) + (high << 16)  # here
    wave = sample.astype(jnp.float32) / 2.0**23
    frames = wave.reshape(-1, 32)
    return wave, jnp.square(frames @ kernel)


def microphone_arguments():
    sound = 0.35 + 0.2 * np.sin(np.arange(4096) * 0.013)
    bits, error = [], 0.0
    for value in sound:
        bits.append(1.0 if value + error > 0 else -1.0)
        error += value - bits[-1]
    return np.float32(bits), "16x4 w @9132"


@fault("integer", "coarse", "absorption", "stagnation", policy="fp32")
@source("Hogenauer (1981): the integrators need exact modular arithmetic")
@inputs(by=microphone_arguments)
def d_integrator_comb_filter_in_fp32(bits, head):
    """A PDM microphone, decimated by a cascade of integrators and combs."""
    first = jnp.cumsum(bits)  # -
    second = jnp.cumsum(first)  # -
    third = jnp.cumsum(second)  # fault
    comb = third[31::32]  # -
    for _ in range(3):  # -
        comb = comb - jnp.pad(comb[:-1], (1, 0))
    wave = comb / 32.0**3  # -
    # + box = jnp.ones(32)
    # + taps = jnp.convolve(jnp.convolve(box, box), box)
    # + padded = jnp.pad(bits, (taps.size - 32, 0))
    # + at = 32 * jnp.arange(bits.size // 32)[:, None] + jnp.arange(taps.size)
    # + wave = jnp.sum(padded[at] * taps, axis=1) / 32.0**3
    return wave, jnp.tanh(wave.reshape(-1, 16) @ head)


def block_codec_arguments():
    frames = normal(9141, 14, 64, scale=0.05)
    frames[5:8] *= np.float32([[14.0], [8.0], [3.0]])  # a drum
    frames[10] *= 11
    return frames, (0.6 + 0.4 * np.hanning(64)).astype(np.float32)


@fault("stale-scale", "saturation")
@source("block floating point with a delayed exponent clips at onsets")
@inputs(by=block_codec_arguments)
def d_block_exponent_of_the_frame_before(frames, window):
    """A block-floating-point codec that scales by the frame before."""
    windowed = frames * window
    peaks = jnp.max(jnp.abs(windowed), axis=1)
    held = jnp.concatenate([peaks[:1], peaks[:-1]])  # -
    scale = jnp.exp2(jnp.ceil(jnp.log2(held)))[:, None] / 127.0  # -
    # + scale = jnp.exp2(jnp.ceil(jnp.log2(peaks)))[:, None] / 127.0
    codes = jnp.clip(jnp.round(windowed / scale), -127, 127)  # here
    return codes.astype(jnp.int8).astype(jnp.float32) * scale


def mel_arguments():
    bins = np.arange(1, 129)[:, None]
    edges = np.linspace(2, 11, 18) ** 2
    rising = (bins - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - bins) / (edges[2:] - edges[1:-1])
    bank = np.maximum(np.minimum(rising, falling), 0.0)
    power = 300.0 * bins[:, 0] ** -3.5 * normal(9154, 12, 128) ** 2
    params = {
        "bank": bank.astype(np.float32),
        "out": weight(9153, 16, 4),
    }
    return params, power.astype(np.float32)


@fault("underflow", "coarse", policy="fp8")
@source("speech front ends on tensor engines: power has 60 dB and more")
@inputs(by=mel_arguments)
def d_mel_bands_of_falling_spectra_in_fp8(params, power):
    """Log mel bands of music, whose spectrum falls steeply, with all matmuls in FP8."""
    mel = power @ params["bank"]  # fault
    # + usual = jnp.mean(power, axis=0)
    # + bank = params["bank"] * usual[:, None]
    # + size = jnp.max(bank, axis=0)
    # + mel = (power / usual) @ (bank / size) * size
    level = jnp.log(mel + 1e-9)
    return level, jnp.tanh(layer_norm(level) @ params["out"])


@fault("stagnation", "absorption")
@source("embedded inertial navigation in FP16")
@inputs(
    {
        "axes": lambda: np.eye(3, dtype=np.float32) + normal(9161, 3, 3, scale=0.05),
        "bias": "f32 0.01 -0.02 0.005",
    },
    lambda: np.float32([0.45, -0.4, 0.3]) + normal(9162, 4000, 3, scale=0.015),
)
def d_velocity_of_an_inertial_sensor_in_half(params, readings):
    """Dead reckoning of a pedestrian: accelerations at 4 kHz summed in half."""
    force = readings @ params["axes"] + params["bias"]

    def step(velocity, a):
        velocity = velocity + (a * 2.5e-4).astype(jnp.float16)  # fault
        # + velocity = velocity + a * 2.5e-4
        return velocity, velocity

    start = jnp.zeros(3, jnp.float16)  # -
    velocity, path = jax.lax.scan(step, start, force)  # -
    # + velocity, path = jax.lax.scan(step, jnp.zeros(3), force)
    track = jnp.cumsum(path.astype(jnp.float32), axis=0) * 2.5e-4  # -
    # + track = jnp.cumsum(path, axis=0) * 2.5e-4
    return velocity.astype(jnp.float32), track[::100]  # -
    # + return velocity, track[::100]
