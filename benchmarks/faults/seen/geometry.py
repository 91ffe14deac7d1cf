"""Faults in geometry: rays, triangles, rotations, distances, maps."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.parts import normal, uniform, weight


def ray_faulty(heights, slopes, radius, features, colours):
    """The way from a low camera down to the ground of a planet, and its haze."""
    b = -2.0 * (radius + heights) * slopes
    c = heights * (2.0 * radius + heights)
    root = jnp.sqrt(b * b - 4.0 * c)
    t = (-b - root) / 2.0  # fault
    haze = jnp.exp(-t / 50.0)
    return t, haze[:, None] * (features @ colours)


def ray_healthy(heights, slopes, radius, features, colours):
    b = -2.0 * (radius + heights) * slopes
    c = heights * (2.0 * radius + heights)
    root = jnp.sqrt(b * b - 4.0 * c)
    t = 2.0 * c / (-b + root)
    haze = jnp.exp(-t / 50.0)
    return t, haze[:, None] * (features @ colours)


def ray_arguments():
    heights = uniform(320, 64, low=0.1, high=20.0)
    slopes = uniform(321, 64, low=0.7, high=1.0)
    features, colours = normal(322, 64, 8), weight(323, 8, 3)
    return heights, slopes, np.float32(6371000.0), features, colours


def heron_faulty(points, faces, values):
    """Area-weighted vertex values of a mesh with needle triangles."""
    p = points[faces]
    sides = p - jnp.roll(p, 1, axis=1)
    lengths = jnp.sqrt(jnp.sum(sides * sides, axis=-1))
    a, b, c = lengths[:, 0], lengths[:, 1], lengths[:, 2]
    s = (a + b + c) / 2
    squared = s * (s - a) * (s - b) * (s - c)  # fault
    area = jnp.sqrt(jnp.maximum(squared, 0.0))
    mean = (values[faces].mean(1) * area[:, None]).sum(0) / area.sum()
    return area, mean @ jnp.ones((values.shape[1], 4))


def heron_healthy(points, faces, values):
    p = points[faces]
    first, second = p[:, 1] - p[:, 0], p[:, 2] - p[:, 0]
    cross = jnp.cross(first, second)
    area = jnp.sqrt(jnp.sum(cross * cross, axis=-1)) / 2
    mean = (values[faces].mean(1) * area[:, None]).sum(0) / area.sum()
    return area, mean @ jnp.ones((values.shape[1], 4))


def heron_arguments():
    x = np.arange(34, dtype=np.float32) % 17 / 4
    points = np.stack([x, np.arange(34) // 17 * 0.0002, 0 * x], -1)
    low = np.arange(15)
    faces = np.concatenate(
        [
            np.stack([low, low + 2, low + 18], -1),
            np.stack([low + 17, low + 19, low + 1], -1),
        ]
    )
    return points.astype(np.float32), faces.astype(np.int32), normal(324, 34, 8)


def splat_faulty(means, log_scales, angles, opacity, pixels):
    """Two-dimensional Gaussian splatting with thin, long splats."""
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    u, v = jnp.exp(2 * log_scales[:, 0]), jnp.exp(2 * log_scales[:, 1])
    a = cos * cos * u + sin * sin * v
    c = sin * sin * u + cos * cos * v
    b = sin * cos * (u - v)
    det = a * c - b * b  # fault
    density = opacity / (2 * jnp.pi * jnp.sqrt(det))
    d = pixels[:, None, :] - means
    along = d[..., 0] * cos + d[..., 1] * sin
    across = d[..., 1] * cos - d[..., 0] * sin
    power = along * along / u + across * across / v
    image = jnp.exp(-0.5 * power) * density
    return image @ jnp.ones((opacity.shape[0], 3)), density


def splat_healthy(means, log_scales, angles, opacity, pixels):
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    u, v = jnp.exp(2 * log_scales[:, 0]), jnp.exp(2 * log_scales[:, 1])
    density = opacity / (2 * jnp.pi * jnp.exp(log_scales.sum(-1)))
    d = pixels[:, None, :] - means
    along = d[..., 0] * cos + d[..., 1] * sin
    across = d[..., 1] * cos - d[..., 0] * sin
    power = along * along / u + across * across / v
    image = jnp.exp(-0.5 * power) * density
    return image @ jnp.ones((opacity.shape[0], 3)), density


def splat_arguments():
    long = uniform(325, 24, low=2.5, high=3.5)
    thin = uniform(326, 24, low=-6.5, high=-5.5)
    means = uniform(327, 24, 2, low=0.0, high=0.01)
    angles = uniform(329, 24, low=0.3, high=1.2)
    pixels = uniform(328, 32, 2, low=0.0, high=0.01)
    return means, np.stack([long, thin], -1), angles, uniform(331, 24) + 0.2, pixels


def parcel_faulty(corners, weights, prices):
    """Areas of parcels of land in UTM metres, by the shoelace formula."""
    x, y = corners[..., 0], corners[..., 1]
    right = x * jnp.roll(y, -1, axis=1)
    left = jnp.roll(x, -1, axis=1) * y
    twice = (right - left).sum(axis=1)  # fault
    area = jnp.abs(twice) / 2
    return area, (area[:, None] * weights) @ prices


def parcel_healthy(corners, weights, prices):
    local = corners - corners[:, :1]
    x, y = local[..., 0], local[..., 1]
    right = x * jnp.roll(y, -1, axis=1)
    left = jnp.roll(x, -1, axis=1) * y
    twice = (right - left).sum(axis=1)
    area = jnp.abs(twice) / 2
    return area, (area[:, None] * weights) @ prices


def parcel_arguments():
    angle = np.arange(6) / 6 * 2 * np.pi
    ring = np.stack([np.cos(angle), np.sin(angle)], -1) * 30
    corners = np.array([551200.0, 5410800.0]) + uniform(332, 16, 1, 2) * 2000 + ring
    return corners.astype(np.float32), uniform(333, 16, 8), uniform(334, 8, 2)


def pose_faulty(params, image, target):
    """Geodesic loss between rotations, of which one is already right."""

    def loss_of(params):
        h = jnp.tanh(image @ params["in"])
        raw = h @ params["out"] + target.reshape(-1, 9)
        raw = jnp.where(params["fixed"][:, None], target.reshape(-1, 9), raw)
        a, b = raw[:, :3], raw[:, 3:6]
        a = a / jnp.sqrt(jnp.sum(a * a, -1, keepdims=True))
        b = b - a * jnp.sum(a * b, -1, keepdims=True)
        b = b / jnp.sqrt(jnp.sum(b * b, -1, keepdims=True))
        rotation = jnp.stack([a, b, jnp.cross(a, b)], axis=1)
        trace = jnp.sum(rotation * target, axis=(1, 2))
        angle = jnp.arccos((trace - 1) / 2)  # fault
        return jnp.mean(angle)

    value, grads = jax.value_and_grad(loss_of, allow_int=True)(params)
    return value, grads["out"]


def pose_healthy(params, image, target):
    def loss_of(params):
        h = jnp.tanh(image @ params["in"])
        raw = h @ params["out"] + target.reshape(-1, 9)
        raw = jnp.where(params["fixed"][:, None], target.reshape(-1, 9), raw)
        a, b = raw[:, :3], raw[:, 3:6]
        a = a / jnp.sqrt(jnp.sum(a * a, -1, keepdims=True))
        b = b - a * jnp.sum(a * b, -1, keepdims=True)
        b = b / jnp.sqrt(jnp.sum(b * b, -1, keepdims=True))
        rotation = jnp.stack([a, b, jnp.cross(a, b)], axis=1)
        # |R - S| = 2 sqrt(2) sin(angle / 2), well conditioned at 0.
        square = jnp.sum((rotation - target) ** 2, axis=(1, 2))
        equal = square < 1e-10
        chord = jnp.sqrt(jnp.where(equal, 1.0, square) / 8)
        angle = 2 * jnp.arcsin(jnp.minimum(chord, 0.999))
        return jnp.mean(jnp.where(equal, 0.0, angle))

    value, grads = jax.value_and_grad(loss_of, allow_int=True)(params)
    return value, grads["out"]


def pose_arguments():
    target = np.linalg.qr(normal(335, 8, 3, 3))[0]
    target[:, 2] = np.cross(target[:, 0], target[:, 1])
    fixed = np.arange(8) % 3 == 1
    params = {"in": weight(336, 16, 32), "out": weight(337, 32, 9, 0.3)}
    return params | {"fixed": fixed}, normal(338, 8, 16), target.astype(np.float32)


def route_faulty(latitude, longitude, speeds, cost):
    """Lengths of the legs of a GPS track by the spherical law of cosines."""
    phi, lam = jnp.deg2rad(latitude), jnp.deg2rad(longitude)
    sines = jnp.sin(phi[1:]) * jnp.sin(phi[:-1])
    cosines = jnp.cos(phi[1:]) * jnp.cos(phi[:-1]) * jnp.cos(lam[1:] - lam[:-1])
    cosine = jnp.minimum(sines + cosines, 1.0)
    legs = 6371000.0 * jnp.arccos(cosine)  # fault
    hours = legs / speeds
    return legs, hours @ cost


def route_healthy(latitude, longitude, speeds, cost):
    phi = jnp.deg2rad(latitude)
    north = jnp.sin(jnp.deg2rad(latitude[1:] - latitude[:-1]) / 2)
    east = jnp.sin(jnp.deg2rad(longitude[1:] - longitude[:-1]) / 2)
    half = north * north + jnp.cos(phi[1:]) * jnp.cos(phi[:-1]) * east * east
    legs = 6371000.0 * 2 * jnp.arcsin(jnp.sqrt(half))
    hours = legs / speeds
    return legs, hours @ cost


def route_arguments():
    steps = np.cumsum(uniform(339, 65, 2, low=0.0004, high=0.001), axis=0)
    latitude, longitude = 48.1 + steps[:, 0], 11.5 + steps[:, 1]
    speeds = uniform(340, 64, low=3.0, high=6.0)
    # As the device delivers them: FP32 degrees.
    return np.float32(latitude), np.float32(longitude), speeds, uniform(341, 64, 2)


def normals_faulty(points, faces, light):
    """Unit normals of a mesh of molecules in metres."""
    a, b, c = (points[faces[:, i]] for i in range(3))
    normal_of = jnp.cross(b - a, c - a)
    square = jnp.sum(normal_of * normal_of, axis=-1, keepdims=True)  # fault
    unit = normal_of * jax.lax.rsqrt(jnp.maximum(square, 1e-37))
    return jax.nn.relu(unit @ light)


def normals_healthy(points, faces, light):
    a, b, c = (points[faces[:, i]] for i in range(3))
    normal_of = jnp.cross(b - a, c - a)
    normal_of = normal_of / jnp.max(jnp.abs(normal_of), axis=-1, keepdims=True)
    square = jnp.sum(normal_of * normal_of, axis=-1, keepdims=True)
    unit = normal_of * jax.lax.rsqrt(square)
    return jax.nn.relu(unit @ light)


def neighbours_faulty(params, queries, base):
    """Nearest neighbours of embeddings that lie far from the origin."""
    q = jnp.tanh(queries @ params["w"]) + params["offset"]
    k = jnp.tanh(base @ params["w"]) + params["offset"]
    dots = q @ k.T
    norms = jnp.sum(q * q, -1)[:, None] + jnp.sum(k * k, -1)
    squared = norms - 2 * dots  # fault
    order = jnp.argsort(squared, axis=-1)[:, :4]
    return jnp.sqrt(jnp.maximum(squared, 0.0)), order


def neighbours_healthy(params, queries, base):
    q = jnp.tanh(queries @ params["w"]) + params["offset"]
    k = jnp.tanh(base @ params["w"]) + params["offset"]
    gaps = q[:, None, :] - k
    squared = jnp.sum(gaps * gaps, axis=-1)
    order = jnp.argsort(squared, axis=-1)[:, :4]
    return jnp.sqrt(squared), order


def neighbours_arguments():
    base = normal(345, 32, 16)
    params = {"w": weight(346, 16, 16), "offset": np.float32(20.0)}
    return params, base[:16] + normal(347, 16, 16, scale=0.05), base


FAULTS = (
    Fault(
        name="ray-from-low-camera-to-planet",
        kinds=("cancellation",),
        faulty=ray_faulty,
        healthy=ray_healthy,
        arguments=ray_arguments,
        policy="bf16",
        source="Haines et al., Precision Improvements for Ray/Sphere Intersection",
    ),
    Fault(
        name="heron-of-needle-triangles",
        kinds=("cancellation",),
        faulty=heron_faulty,
        healthy=heron_healthy,
        arguments=heron_arguments,
        policy="fp32",
        source="Kahan, Miscalculating Area and Angles of a Needle-like Triangle",
    ),
    Fault(
        name="determinant-of-thin-splats",
        kinds=("cancellation",),
        faulty=splat_faulty,
        healthy=splat_healthy,
        arguments=splat_arguments,
        policy="bf16",
        source="gsplat and 3DGS issues: negative determinants of 2D covariances",
    ),
    Fault(
        name="shoelace-in-utm-metres",
        kinds=("cancellation",),
        faulty=parcel_faulty,
        healthy=parcel_healthy,
        arguments=parcel_arguments,
        policy="bf16",
        source="GIS questions: polygon areas in FP32 with large coordinates",
    ),
    Fault(
        name="geodesic-loss-by-arccos",
        kinds=("singular", "non-finite"),
        faulty=pose_faulty,
        healthy=pose_healthy,
        arguments=pose_arguments,
        policy="bf16",
        source="PyTorch3D and JAX issues: arccos of a trace at or above one",
    ),
    Fault(
        name="short-legs-by-law-of-cosines",
        kinds=("singular", "cancellation"),
        faulty=route_faulty,
        healthy=route_healthy,
        arguments=route_arguments,
        policy="bf16",
        source="Sinnott, Virtues of the Haversine, 1984",
    ),
    Fault(
        name="normals-of-nanometre-mesh",
        kinds=("underflow",),
        faulty=normals_faulty,
        healthy=normals_healthy,
        arguments=lambda: (
            normal(342, 40, 3, scale=1e-10),
            np.random.default_rng(343)
            .permuted(np.tile(np.arange(40, dtype=np.int32), (32, 1)), axis=1)[:, :3]
            .copy(),
            normal(344, 3, 4),
        ),
        policy="bf16",
        source="mesh libraries: normals of tiny triangles are zero, squares underflow",
    ),
    Fault(
        name="distances-by-expanded-square",
        kinds=("cancellation",),
        faulty=neighbours_faulty,
        healthy=neighbours_healthy,
        arguments=neighbours_arguments,
        policy="bf16",
        source="scikit-learn and torch.cdist: |x|^2 + |y|^2 - 2xy of near points",
    ),
)
