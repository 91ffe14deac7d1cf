"""Geometry and linear algebra: distances, areas, poses, orthogonal factors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import Fault
from benchmarks.faults.seen.common import normal, uniform


def pose_one_minus_cos(twists, points):
    """Points moved by small twists of SE(3): the coefficients of its exponential."""
    w, v = twists[:, :3], twists[:, 3:]
    theta2 = jnp.sum(w * w, axis=-1, keepdims=True)
    theta = jnp.sqrt(theta2)
    a = jnp.sin(theta) / theta
    b = (1.0 - jnp.cos(theta)) / theta2  # fault
    c = 1.0 / 6.0 - theta2 / 120.0
    turn, twice = jnp.cross(w, v), jnp.cross(w, jnp.cross(w, v))
    shift = b * turn + c * twice
    moved = a * jnp.cross(w, points) + b * jnp.cross(w, jnp.cross(w, points))
    return shift, moved + v


def pose_half_angle(twists, points):
    w, v = twists[:, :3], twists[:, 3:]
    theta2 = jnp.sum(w * w, axis=-1, keepdims=True)
    theta = jnp.sqrt(theta2)
    a = jnp.sin(theta) / theta
    b = 0.5 * jnp.square(jnp.sin(theta / 2.0) / (theta / 2.0))
    c = 1.0 / 6.0 - theta2 / 120.0
    turn, twice = jnp.cross(w, v), jnp.cross(w, jnp.cross(w, v))
    shift = b * turn + c * twice
    moved = a * jnp.cross(w, points) + b * jnp.cross(w, jnp.cross(w, points))
    return shift, moved + v


def pose_arguments():
    twists = np.concatenate(
        [normal(1300, 32, 3, scale=2e-4), normal(1301, 32, 3, scale=50.0)], axis=-1
    )
    return twists, normal(1302, 32, 3)


def parcels_shoelace(corners, rates):
    """Taxes on parcels whose corners are given in a national grid, in metres."""
    x, y = corners[..., 0], corners[..., 1]
    next_x, next_y = jnp.roll(x, -1, axis=1), jnp.roll(y, -1, axis=1)
    cross = x * next_y - next_x * y  # fault
    area = 0.5 * jnp.abs(jnp.sum(cross, axis=1))
    return area, jnp.sum(area * rates)


def parcels_local(corners, rates):
    corners = corners - corners[:, :1]
    x, y = corners[..., 0], corners[..., 1]
    next_x, next_y = jnp.roll(x, -1, axis=1), jnp.roll(y, -1, axis=1)
    cross = x * next_y - next_x * y
    area = 0.5 * jnp.abs(jnp.sum(cross, axis=1))
    return area, jnp.sum(area * rates)


def parcels_arguments():
    angle = np.linspace(0, 2 * np.pi, 6, endpoint=False)
    ring = np.stack([np.cos(angle), np.sin(angle)], -1)
    size = uniform(1310, 12, 40, 20, 1, 1)
    centre = np.stack([uniform(1311, 4e5, 6e5, 20), uniform(1312, 4e6, 5e6, 20)], -1)
    corners = np.round((centre[:, None] + size * ring) * 2) / 2
    return corners.astype(np.float32), uniform(1313, 1, 3, 20)


def neighbours_expanded(points, queries, labels):
    """Nearest neighbours by |x|^2 + |y|^2 - 2xy of embeddings far from the origin."""
    square = jnp.sum(points * points, axis=-1)
    wanted = jnp.sum(queries * queries, axis=-1)
    d2 = wanted[:, None] + square[None] - 2.0 * queries @ points.T  # fault
    near = jnp.argmin(d2, axis=-1)
    kernel = jax.nn.softmax(-d2, axis=-1)
    return near, kernel @ jax.nn.one_hot(labels, 5)


def neighbours_centred(points, queries, labels):
    middle = jnp.mean(points, axis=0)
    gap = (queries - middle)[:, None] - (points - middle)[None]
    d2 = jnp.sum(gap * gap, axis=-1)
    near = jnp.argmin(d2, axis=-1)
    kernel = jax.nn.softmax(-d2, axis=-1)
    return near, kernel @ jax.nn.one_hot(labels, 5)


def neighbours_arguments():
    points = normal(1320, 40, 8, scale=1.6)
    near = np.random.default_rng(1321).integers(0, 40, 24)
    queries = points[near] + normal(1322, 24, 8, scale=0.1)
    labels = np.random.default_rng(1323).integers(0, 5, 40).astype(np.int32)
    return points + np.float32(100), queries + np.float32(100), labels


def reflector_wrong_sign(x, basis):
    """A Householder reflector for a vector that almost is the first axis."""
    size = jnp.sqrt(jnp.sum(x * x))
    first = x[0] - size  # fault
    v = x.at[0].set(first)
    beta = 2.0 / jnp.sum(v * v)
    turned = basis - beta * v[:, None] * jnp.sum(v[:, None] * basis, axis=0)
    return v[1:] / first, turned


def reflector_stable(x, basis):
    size = jnp.sqrt(jnp.sum(x * x))
    first = -jnp.sum(x[1:] * x[1:]) / (x[0] + size)
    v = x.at[0].set(first)
    beta = 2.0 / jnp.sum(v * v)
    turned = basis - beta * v[:, None] * jnp.sum(v[:, None] * basis, axis=0)
    return v[1:] / first, turned


def reflector_arguments():
    x = normal(1330, 16, scale=6e-5)
    x[0] = 1.0
    return x, normal(1331, 16, 6)


def rides_by_arccos(start, end, rate):
    """Fares of short rides by the spherical law of cosines."""
    lat1, lat2 = start[:, 0], end[:, 0]
    turn = end[:, 1] - start[:, 1]
    sines = jnp.sin(lat1) * jnp.sin(lat2)
    cosines = jnp.cos(lat1) * jnp.cos(lat2) * jnp.cos(turn)
    angle = jnp.arccos(jnp.clip(sines + cosines, -1.0, 1.0))  # fault
    metres = 6.371e6 * angle
    return metres, jnp.sum(rate * metres)


def rides_by_haversine(start, end, rate):
    lat1, lat2 = start[:, 0], end[:, 0]
    turn = end[:, 1] - start[:, 1]
    up = jnp.square(jnp.sin((lat2 - lat1) / 2.0))
    side = jnp.square(jnp.sin(turn / 2.0))
    half = up + jnp.cos(lat1) * jnp.cos(lat2) * side
    angle = 2.0 * jnp.arcsin(jnp.sqrt(jnp.minimum(half, 1.0)))
    metres = 6.371e6 * angle
    return metres, jnp.sum(rate * metres)


def rides_arguments():
    start = np.radians(
        np.stack([uniform(1350, 40, 52, 64), uniform(1351, 2, 20, 64)], 1)
    )
    start = start.astype(np.float32)
    end = start + normal(1352, 64, 2, scale=4e-5)
    return start, end.astype(np.float32), uniform(1353, 0.001, 0.002, 64)


FAULTS = (
    Fault(
        name="pose-exponential-one-minus-cosine",
        kinds=("cancellation",),
        faulty=pose_one_minus_cos,
        healthy=pose_half_angle,
        arguments=pose_arguments,
        policy="fp32",
        source="Lie group libraries: small angles need another form of 1 - cos",
    ),
    Fault(
        name="parcel-area-in-national-grid",
        kinds=("cancellation",),
        faulty=parcels_shoelace,
        healthy=parcels_local,
        arguments=parcels_arguments,
        policy="fp32",
        source="GIS issues: shoelace areas of small polygons with large coordinates",
    ),
    Fault(
        name="neighbours-by-expanded-square",
        kinds=("cancellation", "coarse"),
        faulty=neighbours_expanded,
        healthy=neighbours_centred,
        arguments=neighbours_arguments,
        policy="bf16",
        source="distance issues: the matmul form of pairwise distances for offset data",
    ),
    Fault(
        name="householder-sign",
        kinds=("cancellation",),
        faulty=reflector_wrong_sign,
        healthy=reflector_stable,
        arguments=reflector_arguments,
        policy="fp32",
        source="Golub and Van Loan, Matrix Computations: the sign of a reflector",
    ),
    Fault(
        name="short-rides-by-law-of-cosines",
        kinds=("singular", "cancellation"),
        faulty=rides_by_arccos,
        healthy=rides_by_haversine,
        arguments=rides_arguments,
        policy="fp32",
        source="navigation FAQs: the law of cosines is useless for short distances",
    ),
)
