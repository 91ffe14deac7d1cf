"""Images, boxes, rays and cameras."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import conv
from benchmarks.faults.parts import normal, uniform


def iou_arguments():
    corner = np.round(uniform(703, 24, 2, low=0, high=700))
    size = np.round(uniform(704, 24, 2, low=60, high=500))
    anchors = np.concatenate([corner, corner + size], -1).astype(np.float32)
    truth = anchors[::4] + np.float32(12)
    return "24x16 @700; 16x4 *0.3 @701", anchors, truth


@fault("overflow")
@source("detection libraries: IoU of large FP16 boxes is 0 or NaN")
@inputs(by=iou_arguments)
def box_areas_in_half(features, head, anchors, truth):
    """Anchors of a large image are matched to boxes by IoU in FP16."""
    shift = jnp.tanh(features @ head) * 8.0
    boxes = (anchors + shift).astype(jnp.float16)
    wanted = truth.astype(jnp.float16)
    size = boxes[:, 2:] - boxes[:, :2]  # -
    # + size = (boxes[:, 2:] - boxes[:, :2]).astype(jnp.float32)
    area = size[:, 0] * size[:, 1]  # here
    extent = (wanted[:, 2:] - wanted[:, :2]).astype(jnp.float32)
    area_t = extent[:, 0] * extent[:, 1]
    low = jnp.maximum(boxes[:, None, :2], wanted[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], wanted[None, :, 2:])
    side = jnp.maximum(high - low, 0).astype(jnp.float32)
    both = side[..., 0] * side[..., 1]
    iou = both / (area.astype(jnp.float32)[:, None] + area_t[None] - both)  # -
    # + iou = both / (area[:, None] + area_t[None] - both)
    return iou, jnp.argmax(iou, axis=0)


@fault("overflow", "non-finite")
@source("detector issues: the gradient of a naive Mish in FP16 is 0 times inf")
@inputs("a: 3x3x3x8 *3 @710, b: 3x3x8x2 *0.02; 1x10x10x3 @712; 1x10x10x2 @713")
def half_mish_of_exponentials(p, x, y):
    """A detector's convolutional block with a hand-written Mish in FP16."""

    def loss(p):
        h = conv(x, p["a"]).astype(jnp.float16)
        soft = jnp.log(1 + jnp.exp(h))  # fault
        act = h * jnp.tanh(soft)  # -
        # + wide = h.astype(jnp.float32)
        # + act = wide * jnp.tanh(jax.nn.softplus(wide))
        out = conv(act.astype(jnp.float32), p["b"])  # -
        # + out = conv(act, p["b"])
        return jnp.mean(jnp.square(out - y))

    return jax.value_and_grad(loss)(p)


def gamma_arguments():
    light = uniform(721, 48, 3, low=0.2, high=1.0)
    light[10:14] = 0.0
    camera = np.abs(normal(722, 3, 3, scale=0.4))
    return "48x3 0.1..0.9 @720", light, camera, "48x3 0..1 @723"


@fault("singular", "non-finite")
@source("differentiable rendering: x ** (1 / 2.2) has an infinite slope at black")
@inputs(by=gamma_arguments)
def display_gamma_gradient_at_black(albedo, light, camera, photo):
    """A differentiable renderer fits albedos through a display's gamma curve."""

    def loss(albedo):
        linear = (albedo * light) @ camera
        display = jnp.power(linear, 1.0 / 2.2)  # fault
        # + lit = linear > 1e-4
        # + safe = jnp.where(lit, linear, 1.0)
        # + display = jnp.where(lit, jnp.power(safe, 1.0 / 2.2), 0.0)
        return jnp.mean(jnp.square(display - photo))

    value, grads = jax.value_and_grad(loss)(albedo)
    return value, albedo - 0.1 * grads


def box_filter_arguments():
    image = 32768.0 + normal(730, 64, 96, scale=1.5)
    image = np.round(image * 8) / 8
    return image.astype(np.float32), "3x3x1x2 *0.3 @731"


@fault("cancellation")
@source("image libraries: summed-area tables in FP32 lose local means")
@inputs(by=box_filter_arguments)
def integral_image_of_bright_photo(image, kernel):
    """Local means by an integral image of a 16-bit photo, then an edge filter."""
    t = jnp.cumsum(jnp.cumsum(image, axis=0), axis=1)  # -
    t = jnp.pad(t, ((1, 0), (1, 0)))  # -
    n = 5
    total = t[n:, n:] - t[:-n, n:] - t[n:, :-n] + t[:-n, :-n]  # fault
    # + base = jnp.mean(image)
    # + level = image - base
    # + total = jax.lax.reduce_window(level, 0.0, jax.lax.add, (n, n), (1, 1), "VALID")
    mean = total / (n * n)  # -
    contrast = image[2:-2, 2:-2] - mean  # -
    # + contrast = level[2:-2, 2:-2] - total / (n * n)
    edges = conv(contrast[None, ..., None], kernel)[0]
    return contrast, edges


def motion_arguments():
    rng = np.random.default_rng(740)
    frames = rng.integers(90, 110, (1, 24, 32)) + rng.integers(-6, 4, (6, 24, 32))
    frames[3:, 4:10, 5:12] += 70
    return frames.astype(np.uint8), "i32 25"


@fault("integer")
@source("vision forums: subtraction of uint8 images wraps around")
@inputs(by=motion_arguments)
def frame_difference_unsigned(frames, threshold):
    """Motion by differences of 8-bit frames."""
    later, earlier = frames[1:], frames[:-1]  # -
    change = later - earlier  # fault
    # + wide = frames.astype(jnp.int32)
    # + change = jnp.maximum(wide[1:] - wide[:-1], 0)
    moved = change > threshold
    score = jnp.mean(moved.astype(jnp.float32), axis=(1, 2))
    return change.astype(jnp.int32), moved, score > 0.25  # -
    # + return change, moved, score > 0.25


def sphere_arguments():
    centre = np.array([200.0, 260.0, 2000.0], np.float32)
    aim = centre + normal(750, 64, 3, scale=0.35)
    directions = aim / np.linalg.norm(aim, axis=-1, keepdims=True)
    return "3 =0", directions.astype(np.float32), centre, "f32 0.7"


@fault("cancellation", policy="fp32")
@source("Ray Tracing Gems, ch. 7: precision of ray and sphere intersection")
@inputs(by=sphere_arguments)
def ray_hits_far_small_sphere(origin, directions, centre, radius):
    """Nearest hits of rays on a small far sphere, by the schoolbook formula."""
    gap = origin - centre
    half_b = jnp.sum(directions * gap, axis=-1)
    a = jnp.sum(directions * directions, axis=-1)
    disc = half_b * half_b - a * (jnp.sum(gap * gap) - radius * radius)  # fault
    # + foot = gap - (half_b / a)[:, None] * directions
    # + disc = radius * radius - jnp.sum(foot * foot, axis=-1)
    t = (-half_b - jnp.sqrt(jnp.maximum(disc, 0.0))) / a  # -
    hit = origin + t[:, None] * directions  # -
    normals = (hit - centre) / radius  # -
    # + reach = jnp.sqrt(jnp.maximum(disc, 0.0) / a)
    # + normals = (foot - reach[:, None] * directions) / radius
    return disc > 0, jnp.where(disc > 0, normals @ jnp.array([0.3, 0.5, 0.8]), 0.0)


@fault("coarse")
@source("optical flow under autocast: sampling coordinates lose their fractions")
@inputs("24x256 0..1 @760; 3x3x1x2 *0.3 @761; 24x256x2 0.1..0.9 @762")
def warp_grid_in_bf16(image, kernel, flow):
    """Bilinear warping by a predicted flow with the sampling grid in BF16."""
    h, w = image.shape
    moved = flow + 0.2 * conv(image[None, ..., None], kernel)[0]
    y, x = jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij")
    grid = jnp.stack([y, x], axis=-1).astype(jnp.float32)
    at = (grid + moved).astype(jnp.bfloat16)  # fault
    # + at = jnp.clip(grid + moved, 0.0, jnp.array([h - 2.0, w - 2.0]))
    at = jnp.clip(at.astype(jnp.float32), 0.0, jnp.array([h - 2.0, w - 2.0]))  # -
    corner = jnp.floor(at)
    fy, fx = jnp.moveaxis(at - corner, -1, 0)
    iy, ix = jnp.moveaxis(corner.astype(jnp.int32), -1, 0)
    top = image[iy, ix] * (1 - fx) + image[iy, ix + 1] * fx
    low = image[iy + 1, ix] * (1 - fx) + image[iy + 1, ix + 1] * fx
    return top * (1 - fy) + low * fy
