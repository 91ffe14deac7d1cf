"""Images, boxes, rays and cameras."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import conv, normal, uniform


def iou_half_areas(features, head, anchors, truth):
    """Anchors of a large image are matched to boxes by IoU in FP16."""
    shift = jnp.tanh(features @ head) * 8.0
    boxes = (anchors + shift).astype(jnp.float16)
    wanted = truth.astype(jnp.float16)
    size = boxes[:, 2:] - boxes[:, :2]
    area = size[:, 0] * size[:, 1]  # fault
    extent = (wanted[:, 2:] - wanted[:, :2]).astype(jnp.float32)
    area_t = extent[:, 0] * extent[:, 1]
    low = jnp.maximum(boxes[:, None, :2], wanted[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], wanted[None, :, 2:])
    side = jnp.maximum(high - low, 0).astype(jnp.float32)
    both = side[..., 0] * side[..., 1]
    iou = both / (area.astype(jnp.float32)[:, None] + area_t[None] - both)
    return iou, jnp.argmax(iou, axis=0)


def iou_fp32_areas(features, head, anchors, truth):
    shift = jnp.tanh(features @ head) * 8.0
    boxes = (anchors + shift).astype(jnp.float16)
    wanted = truth.astype(jnp.float16)
    size = (boxes[:, 2:] - boxes[:, :2]).astype(jnp.float32)
    area = size[:, 0] * size[:, 1]
    extent = (wanted[:, 2:] - wanted[:, :2]).astype(jnp.float32)
    area_t = extent[:, 0] * extent[:, 1]
    low = jnp.maximum(boxes[:, None, :2], wanted[None, :, :2])
    high = jnp.minimum(boxes[:, None, 2:], wanted[None, :, 2:])
    side = jnp.maximum(high - low, 0).astype(jnp.float32)
    both = side[..., 0] * side[..., 1]
    iou = both / (area[:, None] + area_t[None] - both)
    return iou, jnp.argmax(iou, axis=0)


def iou_arguments():
    corner = np.round(uniform(703, 0, 700, 24, 2))
    size = np.round(uniform(704, 60, 500, 24, 2))
    anchors = np.concatenate([corner, corner + size], -1).astype(np.float32)
    truth = anchors[::4] + np.float32(12)
    return normal(700, 24, 16), normal(701, 16, 4, scale=0.3), anchors, truth


def mish_half(p, x, y):
    """A detector's convolutional block with a hand-written Mish in FP16."""

    def loss(p):
        h = conv(x, p["a"]).astype(jnp.float16)
        soft = jnp.log(1 + jnp.exp(h))  # fault
        act = h * jnp.tanh(soft)
        out = conv(act.astype(jnp.float32), p["b"])
        return jnp.mean(jnp.square(out - y))

    return jax.value_and_grad(loss)(p)


def mish_softplus(p, x, y):
    def loss(p):
        h = conv(x, p["a"]).astype(jnp.float16)
        wide = h.astype(jnp.float32)
        act = wide * jnp.tanh(jax.nn.softplus(wide))
        out = conv(act, p["b"])
        return jnp.mean(jnp.square(out - y))

    return jax.value_and_grad(loss)(p)


def mish_arguments():
    p = {
        "a": normal(710, 3, 3, 3, 8, scale=3.0),
        "b": normal(711, 3, 3, 8, 2, scale=0.02),
    }
    return p, normal(712, 1, 10, 10, 3), normal(713, 1, 10, 10, 2)


def gamma_gradient(albedo, light, camera, photo):
    """A differentiable renderer fits albedos through a display's gamma curve."""

    def loss(albedo):
        linear = (albedo * light) @ camera
        display = jnp.power(linear, 1.0 / 2.2)  # fault
        return jnp.mean(jnp.square(display - photo))

    value, grads = jax.value_and_grad(loss)(albedo)
    return value, albedo - 0.1 * grads


def gamma_gradient_guarded(albedo, light, camera, photo):
    def loss(albedo):
        linear = (albedo * light) @ camera
        lit = linear > 1e-4
        safe = jnp.where(lit, linear, 1.0)
        display = jnp.where(lit, jnp.power(safe, 1.0 / 2.2), 0.0)
        return jnp.mean(jnp.square(display - photo))

    value, grads = jax.value_and_grad(loss)(albedo)
    return value, albedo - 0.1 * grads


def gamma_arguments():
    light = uniform(721, 0.2, 1.0, 48, 3)
    light[10:14] = 0.0
    camera = np.abs(normal(722, 3, 3, scale=0.4))
    return uniform(720, 0.1, 0.9, 48, 3), light, camera, uniform(723, 0, 1, 48, 3)


def box_filter_integral(image, kernel):
    """Local means by an integral image of a 16-bit photo, then an edge filter."""
    t = jnp.cumsum(jnp.cumsum(image, axis=0), axis=1)
    t = jnp.pad(t, ((1, 0), (1, 0)))
    n = 5
    total = t[n:, n:] - t[:-n, n:] - t[n:, :-n] + t[:-n, :-n]  # fault
    mean = total / (n * n)
    contrast = image[2:-2, 2:-2] - mean
    edges = conv(contrast[None, ..., None], kernel)[0]
    return contrast, edges


def box_filter_window(image, kernel):
    n = 5
    base = jnp.mean(image)
    level = image - base
    total = jax.lax.reduce_window(level, 0.0, jax.lax.add, (n, n), (1, 1), "VALID")
    contrast = level[2:-2, 2:-2] - total / (n * n)
    edges = conv(contrast[None, ..., None], kernel)[0]
    return contrast, edges


def box_filter_arguments():
    image = 32768.0 + normal(730, 64, 96, scale=1.5)
    image = np.round(image * 8) / 8
    return image.astype(np.float32), normal(731, 3, 3, 1, 2, scale=0.3)


def motion_unsigned(frames, threshold):
    """Motion by differences of 8-bit frames."""
    later, earlier = frames[1:], frames[:-1]
    change = later - earlier  # fault
    moved = change > threshold
    score = jnp.mean(moved.astype(jnp.float32), axis=(1, 2))
    return change.astype(jnp.int32), moved, score > 0.25


def motion_signed(frames, threshold):
    wide = frames.astype(jnp.int32)
    change = jnp.maximum(wide[1:] - wide[:-1], 0)
    moved = change > threshold
    score = jnp.mean(moved.astype(jnp.float32), axis=(1, 2))
    return change, moved, score > 0.25


def motion_arguments():
    rng = np.random.default_rng(740)
    frames = rng.integers(90, 110, (1, 24, 32)) + rng.integers(-6, 4, (6, 24, 32))
    frames[3:, 4:10, 5:12] += 70
    return frames.astype(np.uint8), np.int32(25)


def sphere_quadratic(origin, directions, centre, radius):
    """Nearest hits of rays on a small far sphere, by the schoolbook formula."""
    gap = origin - centre
    half_b = jnp.sum(directions * gap, axis=-1)
    a = jnp.sum(directions * directions, axis=-1)
    disc = half_b * half_b - a * (jnp.sum(gap * gap) - radius * radius)  # fault
    t = (-half_b - jnp.sqrt(jnp.maximum(disc, 0.0))) / a
    hit = origin + t[:, None] * directions
    normals = (hit - centre) / radius
    return disc > 0, jnp.where(disc > 0, normals @ jnp.array([0.3, 0.5, 0.8]), 0.0)


def sphere_projected(origin, directions, centre, radius):
    gap = origin - centre
    half_b = jnp.sum(directions * gap, axis=-1)
    a = jnp.sum(directions * directions, axis=-1)
    foot = gap - (half_b / a)[:, None] * directions
    disc = radius * radius - jnp.sum(foot * foot, axis=-1)
    reach = jnp.sqrt(jnp.maximum(disc, 0.0) / a)
    normals = (foot - reach[:, None] * directions) / radius
    return disc > 0, jnp.where(disc > 0, normals @ jnp.array([0.3, 0.5, 0.8]), 0.0)


def sphere_arguments():
    centre = np.array([200.0, 260.0, 2000.0], np.float32)
    aim = centre + normal(750, 64, 3, scale=0.35)
    directions = aim / np.linalg.norm(aim, axis=-1, keepdims=True)
    return (
        np.zeros(3, np.float32),
        directions.astype(np.float32),
        centre,
        np.float32(0.7),
    )


def warp_bf16_grid(image, kernel, flow):
    """Bilinear warping by a predicted flow with the sampling grid in BF16."""
    h, w = image.shape
    moved = flow + 0.2 * conv(image[None, ..., None], kernel)[0]
    y, x = jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij")
    grid = jnp.stack([y, x], axis=-1).astype(jnp.float32)
    at = (grid + moved).astype(jnp.bfloat16)  # fault
    at = jnp.clip(at.astype(jnp.float32), 0.0, jnp.array([h - 2.0, w - 2.0]))
    corner = jnp.floor(at)
    fy, fx = jnp.moveaxis(at - corner, -1, 0)
    iy, ix = jnp.moveaxis(corner.astype(jnp.int32), -1, 0)
    top = image[iy, ix] * (1 - fx) + image[iy, ix + 1] * fx
    low = image[iy + 1, ix] * (1 - fx) + image[iy + 1, ix + 1] * fx
    return top * (1 - fy) + low * fy


def warp_fp32_grid(image, kernel, flow):
    h, w = image.shape
    moved = flow + 0.2 * conv(image[None, ..., None], kernel)[0]
    y, x = jnp.meshgrid(jnp.arange(h), jnp.arange(w), indexing="ij")
    grid = jnp.stack([y, x], axis=-1).astype(jnp.float32)
    at = jnp.clip(grid + moved, 0.0, jnp.array([h - 2.0, w - 2.0]))
    corner = jnp.floor(at)
    fy, fx = jnp.moveaxis(at - corner, -1, 0)
    iy, ix = jnp.moveaxis(corner.astype(jnp.int32), -1, 0)
    top = image[iy, ix] * (1 - fx) + image[iy, ix + 1] * fx
    low = image[iy + 1, ix] * (1 - fx) + image[iy + 1, ix + 1] * fx
    return top * (1 - fy) + low * fy


def warp_arguments():
    image = uniform(760, 0, 1, 24, 256)
    kernel = normal(761, 3, 3, 1, 2, scale=0.3)
    return image, kernel, uniform(762, 0.1, 0.9, 24, 256, 2)


FAULTS = (
    Fault(
        name="box-areas-in-half",
        kinds=("overflow",),
        faulty=iou_half_areas,
        healthy=iou_fp32_areas,
        arguments=iou_arguments,
        policy="bf16",
        source="detection libraries: IoU of large FP16 boxes is 0 or NaN",
    ),
    Fault(
        name="half-mish-of-exponentials",
        kinds=("overflow", "non-finite"),
        faulty=mish_half,
        healthy=mish_softplus,
        arguments=mish_arguments,
        policy="bf16",
        source="detector issues: the gradient of a naive Mish in FP16 is 0 times inf",
    ),
    Fault(
        name="display-gamma-gradient-at-black",
        kinds=("singular", "non-finite"),
        faulty=gamma_gradient,
        healthy=gamma_gradient_guarded,
        arguments=gamma_arguments,
        policy="bf16",
        source=(
            "differentiable rendering: x ** (1 / 2.2) has an infinite slope at black"
        ),
    ),
    Fault(
        name="integral-image-of-bright-photo",
        kinds=("cancellation",),
        faulty=box_filter_integral,
        healthy=box_filter_window,
        arguments=box_filter_arguments,
        policy="bf16",
        source="image libraries: summed-area tables in FP32 lose local means",
    ),
    Fault(
        name="frame-difference-unsigned",
        kinds=("integer",),
        faulty=motion_unsigned,
        healthy=motion_signed,
        arguments=motion_arguments,
        policy="bf16",
        source="vision forums: subtraction of uint8 images wraps around",
    ),
    Fault(
        name="ray-hits-far-small-sphere",
        kinds=("cancellation",),
        faulty=sphere_quadratic,
        healthy=sphere_projected,
        arguments=sphere_arguments,
        policy="fp32",
        source="Ray Tracing Gems, ch. 7: precision of ray and sphere intersection",
    ),
    Fault(
        name="warp-grid-in-bf16",
        kinds=("coarse",),
        faulty=warp_bf16_grid,
        healthy=warp_fp32_grid,
        arguments=warp_arguments,
        policy="bf16",
        source="optical flow under autocast: sampling coordinates lose their fractions",
    ),
)
