"""Geometry: rays, triangles, rotations, distances, maps, orthogonal factors."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import normal, uniform, weight


@fault("cancellation")
@source("Haines et al., Precision Improvements for Ray/Sphere Intersection")
@inputs("64 0.1..20 @320; 64 0.7..1 @321; f32 6.371e+06; 64x8 @322; 8x3 w @323")
def ray_from_low_camera_to_planet(heights, slopes, radius, features, colours):
    """The way from a low camera down to the ground of a planet, and its haze."""
    b = -2.0 * (radius + heights) * slopes
    c = heights * (2.0 * radius + heights)
    root = jnp.sqrt(b * b - 4.0 * c)
    t = (-b - root) / 2.0  # fault
    # + t = 2.0 * c / (-b + root)
    haze = jnp.exp(-t / 50.0)
    return t, haze[:, None] * (features @ colours)


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
    return points.astype(np.float32), faces.astype(np.int32), "34x8 @324"


@fault("cancellation", policy="fp32")
@source("Kahan, Miscalculating Area and Angles of a Needle-like Triangle")
@inputs(by=heron_arguments)
def heron_of_needle_triangles(points, faces, values):
    """Area-weighted vertex values of a mesh with needle triangles."""
    p = points[faces]
    sides = p - jnp.roll(p, 1, axis=1)  # -
    lengths = jnp.sqrt(jnp.sum(sides * sides, axis=-1))  # -
    a, b, c = lengths[:, 0], lengths[:, 1], lengths[:, 2]  # -
    s = (a + b + c) / 2  # -
    squared = s * (s - a) * (s - b) * (s - c)  # fault
    area = jnp.sqrt(jnp.maximum(squared, 0.0))  # -
    # + first, second = p[:, 1] - p[:, 0], p[:, 2] - p[:, 0]
    # + cross = jnp.cross(first, second)
    # + area = jnp.sqrt(jnp.sum(cross * cross, axis=-1)) / 2
    mean = (values[faces].mean(1) * area[:, None]).sum(0) / area.sum()
    return area, mean @ jnp.ones((values.shape[1], 4))


@fault("cancellation")
@source("gsplat and 3DGS issues: negative determinants of 2D covariances")
@inputs(
    "24x2 0..0.01 @327",
    lambda: np.stack(
        [uniform(325, 24, low=2.5, high=3.5), uniform(326, 24, low=-6.5, high=-5.5)], -1
    ),
    "24 0.3..1.2 @329",
    lambda: uniform(331, 24) + 0.2,
    "32x2 0..0.01 @328",
)
def determinant_of_thin_splats(means, log_scales, angles, opacity, pixels):
    """Two-dimensional Gaussian splatting with thin, long splats."""
    sin, cos = jnp.sin(angles), jnp.cos(angles)
    u, v = jnp.exp(2 * log_scales[:, 0]), jnp.exp(2 * log_scales[:, 1])
    a = cos * cos * u + sin * sin * v  # -
    c = sin * sin * u + cos * cos * v  # -
    b = sin * cos * (u - v)  # -
    det = a * c - b * b  # fault
    density = opacity / (2 * jnp.pi * jnp.sqrt(det))  # -
    # + density = opacity / (2 * jnp.pi * jnp.exp(log_scales.sum(-1)))
    d = pixels[:, None, :] - means
    along = d[..., 0] * cos + d[..., 1] * sin
    across = d[..., 1] * cos - d[..., 0] * sin
    power = along * along / u + across * across / v
    image = jnp.exp(-0.5 * power) * density
    return image @ jnp.ones((opacity.shape[0], 3)), density


def parcel_arguments():
    angle = np.arange(6) / 6 * 2 * np.pi
    ring = np.stack([np.cos(angle), np.sin(angle)], -1) * 30
    corners = np.array([551200.0, 5410800.0]) + uniform(332, 16, 1, 2) * 2000 + ring
    return corners.astype(np.float32), "16x8 0..1 @333; 8x2 0..1 @334"


@fault("cancellation")
@source("GIS questions: polygon areas in FP32 with large coordinates")
@inputs(by=parcel_arguments)
def shoelace_in_utm_metres(corners, weights, prices):
    """Areas of parcels of land in UTM metres, by the shoelace formula."""
    x, y = corners[..., 0], corners[..., 1]  # -
    # + local = corners - corners[:, :1]
    # + x, y = local[..., 0], local[..., 1]
    right = x * jnp.roll(y, -1, axis=1)
    left = jnp.roll(x, -1, axis=1) * y
    twice = (right - left).sum(axis=1)  # here
    area = jnp.abs(twice) / 2
    return area, (area[:, None] * weights) @ prices


def pose_arguments():
    target = np.linalg.qr(normal(335, 8, 3, 3))[0]
    target[:, 2] = np.cross(target[:, 0], target[:, 1])
    fixed = np.arange(8) % 3 == 1
    params = {"in": weight(336, 16, 32), "out": weight(337, 32, 9, 0.3)}
    return params | {"fixed": fixed}, "8x16 @338", target.astype(np.float32)


@fault("singular", "non-finite")
@source("PyTorch3D and JAX issues: arccos of a trace at or above one")
@inputs(by=pose_arguments)
def geodesic_loss_by_arccos(params, image, target):
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
        trace = jnp.sum(rotation * target, axis=(1, 2))  # -
        angle = jnp.arccos((trace - 1) / 2)  # fault
        # + square = jnp.sum((rotation - target) ** 2, axis=(1, 2))
        # + equal = square < 1e-10
        # + chord = jnp.sqrt(jnp.where(equal, 1.0, square) / 8)
        # + angle = 2 * jnp.arcsin(jnp.minimum(chord, 0.999))
        return jnp.mean(angle)  # -
        # + return jnp.mean(jnp.where(equal, 0.0, angle))

    value, grads = jax.value_and_grad(loss_of, allow_int=True)(params)
    return value, grads["out"]


def route_arguments():
    steps = np.cumsum(uniform(339, 65, 2, low=0.0004, high=0.001), axis=0)
    latitude, longitude = 48.1 + steps[:, 0], 11.5 + steps[:, 1]
    speeds = uniform(340, 64, low=3.0, high=6.0)
    # As the device delivers them: FP32 degrees.
    return np.float32(latitude), np.float32(longitude), speeds, uniform(341, 64, 2)


@fault("singular", "cancellation")
@source("Sinnott, Virtues of the Haversine, 1984")
@inputs(by=route_arguments)
def short_legs_by_law_of_cosines(latitude, longitude, speeds, cost):
    """Lengths of the legs of a GPS track by the spherical law of cosines."""
    phi, lam = jnp.deg2rad(latitude), jnp.deg2rad(longitude)  # -
    sines = jnp.sin(phi[1:]) * jnp.sin(phi[:-1])  # -
    cosines = jnp.cos(phi[1:]) * jnp.cos(phi[:-1]) * jnp.cos(lam[1:] - lam[:-1])  # -
    cosine = jnp.minimum(sines + cosines, 1.0)  # -
    legs = 6371000.0 * jnp.arccos(cosine)  # fault
    # + phi = jnp.deg2rad(latitude)
    # + north = jnp.sin(jnp.deg2rad(latitude[1:] - latitude[:-1]) / 2)
    # + east = jnp.sin(jnp.deg2rad(longitude[1:] - longitude[:-1]) / 2)
    # + half = north * north + jnp.cos(phi[1:]) * jnp.cos(phi[:-1]) * east * east
    # + legs = 6371000.0 * 2 * jnp.arcsin(jnp.sqrt(half))
    hours = legs / speeds
    return legs, hours @ cost


@fault("underflow")
@source("mesh libraries: normals of tiny triangles are zero, squares underflow")
@inputs(
    "40x3 *1e-10 @342",
    lambda: (
        np.random.default_rng(343)
        .permuted(np.tile(np.arange(40, dtype=np.int32), (32, 1)), axis=1)[:, :3]
        .copy()
    ),
    "3x4 @344",
)
def normals_of_nanometre_mesh(points, faces, light):
    """Unit normals of a mesh of molecules in metres."""
    a, b, c = (points[faces[:, i]] for i in range(3))
    normal_of = jnp.cross(b - a, c - a)
    # + normal_of = normal_of / jnp.max(jnp.abs(normal_of), axis=-1, keepdims=True)
    square = jnp.sum(normal_of * normal_of, axis=-1, keepdims=True)  # here
    unit = normal_of * jax.lax.rsqrt(jnp.maximum(square, 1e-37))  # -
    # + unit = normal_of * jax.lax.rsqrt(square)
    return jax.nn.relu(unit @ light)


def neighbours_arguments():
    base = normal(345, 32, 16)
    return (
        "w: 16x16 w @346, offset: f32 20",
        base[:16] + normal(347, 16, 16, scale=0.05),
        base,
    )


@fault("cancellation")
@source("scikit-learn and torch.cdist: |x|^2 + |y|^2 - 2xy of near points")
@inputs(by=neighbours_arguments)
def distances_by_expanded_square(params, queries, base):
    """Nearest neighbours of embeddings that lie far from the origin."""
    q = jnp.tanh(queries @ params["w"]) + params["offset"]
    k = jnp.tanh(base @ params["w"]) + params["offset"]
    dots = q @ k.T  # -
    norms = jnp.sum(q * q, -1)[:, None] + jnp.sum(k * k, -1)  # -
    squared = norms - 2 * dots  # fault
    # + gaps = q[:, None, :] - k
    # + squared = jnp.sum(gaps * gaps, axis=-1)
    order = jnp.argsort(squared, axis=-1)[:, :4]
    return jnp.sqrt(jnp.maximum(squared, 0.0)), order  # -
    # + return jnp.sqrt(squared), order


@fault("cancellation", policy="fp32")
@source("Lie group libraries: small angles need another form of 1 - cos")
@inputs(
    lambda: np.concatenate(
        [normal(1300, 32, 3, scale=2e-4), normal(1301, 32, 3, scale=50.0)], axis=-1
    ),
    "32x3 @1302",
)
def pose_exponential_one_minus_cosine(twists, points):
    """Points moved by small twists of SE(3): the coefficients of its exponential."""
    w, v = twists[:, :3], twists[:, 3:]
    theta2 = jnp.sum(w * w, axis=-1, keepdims=True)
    theta = jnp.sqrt(theta2)
    a = jnp.sin(theta) / theta
    b = (1.0 - jnp.cos(theta)) / theta2  # fault
    # + b = 0.5 * jnp.square(jnp.sin(theta / 2.0) / (theta / 2.0))
    c = 1.0 / 6.0 - theta2 / 120.0
    turn, twice = jnp.cross(w, v), jnp.cross(w, jnp.cross(w, v))
    shift = b * turn + c * twice
    moved = a * jnp.cross(w, points) + b * jnp.cross(w, jnp.cross(w, points))
    return shift, moved + v


def parcels_arguments():
    angle = np.linspace(0, 2 * np.pi, 6, endpoint=False)
    ring = np.stack([np.cos(angle), np.sin(angle)], -1)
    size = uniform(1310, 20, 1, 1, low=12, high=40)
    centre = np.stack(
        [uniform(1311, 20, low=4e5, high=6e5), uniform(1312, 20, low=4e6, high=5e6)], -1
    )
    corners = np.round((centre[:, None] + size * ring) * 2) / 2
    return corners.astype(np.float32), "20 1..3 @1313"


@fault("cancellation", policy="fp32")
@source("GIS issues: shoelace areas of small polygons with large coordinates")
@inputs(by=parcels_arguments)
def parcel_area_in_national_grid(corners, rates):
    """Taxes on parcels whose corners are given in a national grid, in metres."""
    # + corners = corners - corners[:, :1]
    x, y = corners[..., 0], corners[..., 1]
    next_x, next_y = jnp.roll(x, -1, axis=1), jnp.roll(y, -1, axis=1)
    cross = x * next_y - next_x * y  # here
    area = 0.5 * jnp.abs(jnp.sum(cross, axis=1))
    return area, jnp.sum(area * rates)


def nearest_arguments():
    points = normal(1320, 40, 8, scale=1.6)
    near = np.random.default_rng(1321).integers(0, 40, 24)
    queries = points[near] + normal(1322, 24, 8, scale=0.1)
    return points + np.float32(100), queries + np.float32(100), "40 int 0..5 @1323"


@fault("cancellation", "coarse")
@source("distance issues: the matmul form of pairwise distances for offset data")
@inputs(by=nearest_arguments)
def neighbours_by_expanded_square(points, queries, labels):
    """Nearest neighbours by |x|^2 + |y|^2 - 2xy of embeddings far from the origin."""
    square = jnp.sum(points * points, axis=-1)  # -
    wanted = jnp.sum(queries * queries, axis=-1)  # -
    d2 = wanted[:, None] + square[None] - 2.0 * queries @ points.T  # fault
    # + middle = jnp.mean(points, axis=0)
    # + gap = (queries - middle)[:, None] - (points - middle)[None]
    # + d2 = jnp.sum(gap * gap, axis=-1)
    near = jnp.argmin(d2, axis=-1)
    kernel = jax.nn.softmax(-d2, axis=-1)
    return near, kernel @ jax.nn.one_hot(labels, 5)


def reflector_arguments():
    x = normal(1330, 16, scale=6e-5)
    x[0] = 1.0
    return x, "16x6 @1331"


@fault("cancellation", policy="fp32")
@source("Golub and Van Loan, Matrix Computations: the sign of a reflector")
@inputs(by=reflector_arguments)
def householder_sign(x, basis):
    """A Householder reflector for a vector that almost is the first axis."""
    size = jnp.sqrt(jnp.sum(x * x))
    first = x[0] - size  # fault
    # + first = -jnp.sum(x[1:] * x[1:]) / (x[0] + size)
    v = x.at[0].set(first)
    beta = 2.0 / jnp.sum(v * v)
    turned = basis - beta * v[:, None] * jnp.sum(v[:, None] * basis, axis=0)
    return v[1:] / first, turned


def rides_arguments():
    start = np.radians(
        np.stack(
            [uniform(1350, 64, low=40, high=52), uniform(1351, 64, low=2, high=20)], 1
        )
    )
    start = start.astype(np.float32)
    end = start + normal(1352, 64, 2, scale=4e-5)
    return start, end.astype(np.float32), "64 0.001..0.002 @1353"


@fault("singular", "cancellation", policy="fp32")
@source("navigation FAQs: the law of cosines is useless for short distances")
@inputs(by=rides_arguments)
def short_rides_by_law_of_cosines(start, end, rate):
    """Fares of short rides by the spherical law of cosines."""
    lat1, lat2 = start[:, 0], end[:, 0]
    turn = end[:, 1] - start[:, 1]
    sines = jnp.sin(lat1) * jnp.sin(lat2)  # -
    cosines = jnp.cos(lat1) * jnp.cos(lat2) * jnp.cos(turn)  # -
    angle = jnp.arccos(jnp.clip(sines + cosines, -1.0, 1.0))  # fault
    # + up = jnp.square(jnp.sin((lat2 - lat1) / 2.0))
    # + side = jnp.square(jnp.sin(turn / 2.0))
    # + half = up + jnp.cos(lat1) * jnp.cos(lat2) * side
    # + angle = 2.0 * jnp.arcsin(jnp.sqrt(jnp.minimum(half, 1.0)))
    metres = 6.371e6 * angle
    return metres, jnp.sum(rate * metres)
