"""Geometry, signals and pictures."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import convolution, normal, uniform


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


@fault("cancellation", policy="fp32")
@source("Golub and Van Loan, Matrix Computations: the sign of a reflector")
@inputs("16 *6e-05 @1330 [0]=1; 16x6 @1331")
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


@fault("overflow", "non-finite")
@source("detector issues: the gradient of a naive Mish in FP16 is 0 times inf")
@inputs("a: 3x3x3x8 *3 @710, b: 3x3x8x2 *0.02; 1x10x10x3 @712; 1x10x10x2 @713")
def half_mish_of_exponentials(p, x, y):
    """A detector's convolutional block with a hand-written Mish in FP16."""

    def loss(p):
        h = convolution(x, p["a"]).astype(jnp.float16)
        soft = jnp.log(1 + jnp.exp(h))  # fault
        act = h * jnp.tanh(soft)  # -
        # + wide = h.astype(jnp.float32)
        # + act = wide * jnp.tanh(jax.nn.softplus(wide))
        out = convolution(act.astype(jnp.float32), p["b"])  # -
        # + out = convolution(act, p["b"])
        return jnp.mean(jnp.square(out - y))

    return jax.value_and_grad(loss)(p)


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


def contrastive_arguments():
    once = normal(533, 24, 24)
    other = once + normal(534, 24, 24, scale=1.5)
    return "in: 24x64 w @531, out: 64x64 w", np.concatenate([once, other]).astype(
        np.float32
    )


@fault("cancellation", "non-finite")
@source("SimCLR re-implementations: neg = rowsum - exp(1 / t) gives NaN")
@inputs(by=contrastive_arguments)
def simclr_row_sum_minus_self_similarity(params, views):
    """SimCLR's loss; the similarity to itself is taken out of every row's sum."""

    def loss_of(params):
        h = jax.nn.relu(views @ params["in"]) @ params["out"]
        z = h / jnp.linalg.norm(h, axis=-1, keepdims=True)
        cosine = z @ z.T / 0.05
        partner = jnp.roll(jnp.arange(len(z)), len(z) // 2)
        positive = cosine[jnp.arange(len(z)), partner]
        rest = jnp.exp(cosine).sum(-1) - jnp.exp(1.0 / 0.05)  # fault
        return jnp.mean(jnp.log(rest) - positive)  # -
        # + others = jnp.where(jnp.eye(len(z), dtype=bool), -1e9, cosine)
        # + return jnp.mean(jax.nn.logsumexp(others, axis=-1) - positive)

    return jax.value_and_grad(loss_of)(params)


def folded_arguments():
    """The images' brightness is most of what the first layer gives."""
    first = 0.2 * normal(541, 3, 3, 1, 8) + 1.0
    images = normal(542, 4, 12, 12, 1, scale=0.15, shift=60.0)
    x = np.asarray(convolution(images, first))[:, 1:-1, 1:-1]
    params = {
        "first": first.astype(np.float32),
        "gamma": np.ones(8, np.float32),
        "beta": normal(543, 8, scale=0.2),
        "mean": x.mean((0, 1, 2)).astype(np.float32),
        "variance": x.var((0, 1, 2)).astype(np.float32),
        "second": normal(544, 3, 3, 8, 4, scale=0.1),
    }
    return params, images


@fault("cancellation", "coarse", policy="fp32")
@source("deployment guides: folded batch norms lose accuracy in 16 bits")
@inputs(by=folded_arguments)
def batch_norm_folded_into_offset(params, images):
    """A batch norm folded for inference; its offset is added on the BF16 engine."""
    x = convolution(images, params["first"])
    scale = params["gamma"] / jnp.sqrt(params["variance"])
    offset = params["beta"] - params["mean"] * scale  # -
    y = (x * scale).astype(jnp.bfloat16) + offset.astype(jnp.bfloat16)  # fault
    # + y = ((x - params["mean"]) * scale + params["beta"]).astype(jnp.bfloat16)
    y = jax.nn.relu(y.astype(jnp.float32))
    return convolution(y, params["second"]).mean((1, 2))


@fault("non-finite", "singular")
@source("jraph and PyG: softmax over no edges divides zero by zero")
@inputs(
    {
        "first": "w: 16x16 w @641, a b: 16x1 w",
        "second": "w: 16x16 w @645, a b: 16x1 w",
        "out": "16x3 w @649",
    },
    "30x16 @650; 80 int 0..30 @651; 80 int 0..26 @652",
)
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
