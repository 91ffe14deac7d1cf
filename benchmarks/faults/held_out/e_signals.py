"""Sounds, pictures and clusters: FFTs, convolutions, histograms, oscillators."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import convolution, cross_entropy, layer_norm


@fault("singular", "non-finite", "underflow", policy="fp16")
@source("reports of log mel features in half precision for silent frames")
@inputs("12x64 @1; 12 int 0..4 @2; 33x10 0..0.3 @3; 10x16 w @4; 16x4 w @5")
def loudness_of_silent_frames_in_half(frames, loud, filters, w, readout):
    frames = frames * (loud > 0)[:, None]
    window = 0.5 - 0.5 * jnp.cos(2 * jnp.pi * jnp.arange(64) / 64)
    spectrum = jnp.fft.rfft(frames * window)
    power = jnp.square(spectrum.real) + jnp.square(spectrum.imag)
    bands = jnp.einsum("fb,bm->fm", power / 64, filters)
    bands = bands.astype(jnp.float16)  # -
    # + bands = bands.astype(jnp.float32)
    levels = jnp.log(bands + 1e-8).astype(jnp.float32)  # here
    centred = levels - jnp.mean(levels, axis=0)
    hidden = jax.nn.relu(centred @ w)
    return jax.nn.log_softmax(jnp.mean(hidden, axis=0) @ readout), centred


@fault("coarse", policy="fp32")
@source("reports of neural synthesizers whose phase is accumulated in low precision")
@inputs("480 =0; 480 0.5..1.2 @6; 8 -1..1 @7; 9x1x1 @8; 480 @9")
def phases_of_oscillators(silence, pitch, strength, kernel, target):
    smooth = jnp.convolve(pitch, jnp.ones(9) / 9, mode="same")
    phase = jnp.cumsum(smooth)
    phase = phase.astype(jnp.bfloat16)  # fault
    turns = phase.astype(jnp.float32)[:, None] * jnp.arange(1, 9)
    waves = jnp.sin(turns) * jax.nn.softplus(strength) / 8
    dry = silence + jnp.sum(waves, axis=1)
    wet = jax.lax.conv_general_dilated(
        dry[None, :, None],
        kernel,
        (1,),
        "SAME",
        dimension_numbers=("NWC", "WIO", "NWC"),
    )[0, :, 0]
    out = dry + 0.1 * wet
    heard = jnp.abs(jnp.fft.rfft(out.reshape(8, 60)))
    wanted = jnp.abs(jnp.fft.rfft(target.reshape(8, 60)))
    return out, jnp.mean(jnp.square(jnp.log1p(heard) - jnp.log1p(wanted)))


@fault("integer", policy="fp8")
@source("reports of augmentations on bytes: brighter pixels become dark")
@inputs(
    "4x12x12x3 0..1 @10; 4 int 20..90 @11; 3x3x3x8 *0.3 @12; 8x3 w @13; 4 int 0..3 @14"
)
def brighter_pixels_that_wrap(pictures, brighter, kernel, readout, labels):
    bytes_ = jnp.floor(pictures * 255.9).astype(jnp.uint8)
    bytes_ = bytes_ + brighter.astype(jnp.uint8)[:, None, None, None]  # fault
    # + bytes_ = bytes_.astype(jnp.int32) + brighter[:, None, None, None]

    def loss(params):
        x = (bytes_.astype(jnp.float32) - 127.5) / 64.0
        h = jax.nn.relu(convolution(x, params["kernel"], stride=2))
        pooled = jnp.mean(h, axis=(1, 2))
        return cross_entropy(pooled @ params["readout"], labels), pooled

    params = {"kernel": kernel, "readout": readout}
    (value, pooled), grads = jax.value_and_grad(loss, has_aux=True)(params)
    momentum = jax.tree.map(lambda g: 0.1 * g, grads)
    params = jax.tree.map(lambda p, m: p - m, params, momentum)
    return params, pooled, value


@fault("cancellation", policy="fp32")
@source("reports of k-means on coordinates far from the origin: |x|^2 - 2xc + |c|^2")
@inputs("96x3 @17; 6x3 *1.5 @18; f32 4200 -3100 5600; 96x2 @19")
def clusters_far_from_the_origin(points, centres, origin, values):
    points, centres = points + origin, centres + origin  # -

    def turn(centres, _):
        squares = jnp.sum(points * points, axis=-1)[:, None]
        far = squares - 2 * points @ centres.T + jnp.sum(centres * centres, -1)  # here
        member = jax.nn.one_hot(jnp.argmin(far, axis=-1), 6)
        count = jnp.sum(member, axis=0)[:, None]
        mean = member.T @ points / jnp.maximum(count, 1.0)
        centres = jnp.where(count > 0, mean, centres)
        return centres, jnp.mean(jnp.maximum(jnp.min(far, axis=-1), 0.0))

    centres, costs = jax.lax.scan(turn, centres, length=6)
    # + centres = centres + origin
    far = jnp.sum(jnp.square(points[:, None] - centres), axis=-1)  # -
    # + far = jnp.sum(jnp.square((points + origin)[:, None] - centres), axis=-1)
    member = jax.nn.one_hot(jnp.argmin(far, axis=-1), 6)
    table = member.T @ values / jnp.maximum(jnp.sum(member, axis=0), 1.0)[:, None]
    return centres - origin, costs, table


@fault("overflow", policy="fp16")
@source("reports of filters over raw pixels in half precision")
@inputs("2x16x16x3 0..255 @20; 7x7x3x4 2..6 @21; 4x6 w @22; 3x3x4x4 *0.2 @23")
def windows_of_raw_pixels_in_half(pictures, wide, readout, narrow):
    pixels = pictures.astype(jnp.float16)
    weights = wide.astype(jnp.float16)  # -
    # + weights = (wide / 256).astype(jnp.float16)
    summed = convolution(pixels, weights, stride=2)  # here
    h = summed.astype(jnp.float32) / 4e4
    # + h = h * 256
    h = h - jnp.mean(h, axis=(1, 2), keepdims=True)
    spread = jnp.sqrt(jnp.mean(jnp.square(h), axis=(1, 2), keepdims=True) + 1e-5)
    h = jax.nn.relu(h / spread)
    h = h + jax.nn.relu(convolution(h, narrow))
    return jnp.mean(h, axis=(1, 2)) @ readout, h


@fault("integer", policy="mxfp8", target="trn3")
@source("reports of packed sequences numbered in int8")
@inputs("512x8 @27; 512 int 0..3 @28; 8x8 w @29; 200x8 *0.5 @30; 8x4 w @31")
def packed_documents_numbered_in_bytes(x, ends, w, documents, readout):
    starts = (ends == 0).astype(jnp.int32).at[0].set(1)
    number = jnp.cumsum(starts).astype(jnp.int8) - 1  # fault
    # + number = jnp.cumsum(starts) - 1
    number = number.astype(jnp.int32)
    first = jnp.full(200, 512).at[number].min(jnp.arange(512))
    place = (jnp.arange(512) - first[number]).astype(jnp.float32)
    wave = jnp.sin(place[:, None] * 0.7 ** jnp.arange(8))
    h = layer_norm(x + wave + documents[number])
    h = h + jax.nn.gelu(h @ w)
    pooled = jnp.zeros((200, 8)).at[number].add(h)
    return h @ readout, pooled


@fault("other", "coarse", policy="fp32")
@source("reports of winners found by equality with a maximum of another precision")
@inputs("6x24x16 @32; 32x16 *0.5 @33; 32x8 w @34; 32 0.5..1.5 @35; 24x16 *0.1 @36")
def winners_by_equality_with_a_maximum(frames, codebook, values, gain, places):
    h = layer_norm(frames + places)
    scores = jnp.sum(h[:, :, None] * codebook, axis=-1) * gain
    scores = scores - 0.5 * jnp.sum(jnp.square(codebook), axis=-1)
    won = scores == jnp.max(scores.astype(jnp.bfloat16), -1, keepdims=True)  # fault
    # + won = scores == jnp.max(scores, axis=-1, keepdims=True)
    share = won / jnp.maximum(jnp.sum(won, axis=-1, keepdims=True), 1)
    read = jnp.einsum("btk,kd->btd", share.astype(jnp.float32), values)
    used = jnp.mean(share, axis=(0, 1))
    spread = -jnp.sum(used * jnp.log(used + 1e-9))
    return read, jnp.mean(read, axis=1), jnp.exp(spread)
