"""Physics, graphs, chances, diffusion: what a laboratory computes on accelerators."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp


def descent(params, grads, rate=0.05):
    return jax.tree.map(lambda p, g: p - rate * g, params, grads)


@fault("cancellation", policy="fp32")
@source("reports of count models (scVI): lgamma(k + r) - lgamma(r) for a large r")
@inputs("mlp 10x16x6 @6", "32x10 @7; 32x6 int 0..12 @8; 6 11..13 @9")
def counts_with_little_dispersion(params, x, counts, log_r):
    k = counts.astype(jnp.float32)

    def loss(params):
        log_mean = 0.3 * mlp(params, x) + 1.0
        r = jnp.exp(log_r)
        ratio = jnp.exp(log_mean) / r
        grown = jax.lax.lgamma(k + r) - jax.lax.lgamma(r) - k * log_r  # fault
        # + steps = jnp.arange(12.0)
        # + each = jnp.where(steps < k[..., None], jnp.log1p(steps / r[:, None]), 0.0)
        # + grown = jnp.sum(each, axis=-1)
        rest = k * log_mean - (k + r) * jnp.log1p(ratio)
        likelihood = grown + rest - jax.lax.lgamma(k + 1)
        return -jnp.mean(likelihood), likelihood

    value, likelihood = loss(params)
    return likelihood, value


@fault("overflow", policy="fp32")
@source("reports of orbits in SI units: G m m' is beyond FP32")
@inputs("f32 1.99e30 5.97e24 7.35e22; f32 6.674e-11")
def forces_in_si_units(mass, gravity):
    place = jnp.array([[0.0, 0.0], [1.496e11, 0.0], [1.49984e11, 0.0]])
    speed = jnp.array([[0.0, 0.0], [0.0, 29780.0], [0.0, 30800.0]])
    hour = 3600.0
    apart = ~jnp.eye(3, dtype=bool)

    def pull(place):
        between = place[None] - place[:, None]
        far = jnp.sqrt(jnp.sum(jnp.square(between), axis=-1))
        far = jnp.where(apart, far, 1.0)
        force = gravity * mass[:, None] * mass[None] / far**2  # fault
        # + force = gravity * mass[None] / far**2
        force = jnp.where(apart, force, 0.0)
        total = jnp.sum(force[..., None] * between / far[..., None], axis=1)
        total = total / mass[:, None]  # -
        return total

    def turn(carry, _):
        place, speed = carry
        speed = speed + 0.5 * hour * pull(place)
        place = place + hour * speed
        speed = speed + 0.5 * hour * pull(place)
        return (place, speed), jnp.sum(jnp.square(speed), axis=-1)

    (place, speed), energy = jax.lax.scan(turn, (place, speed), length=96)
    return place / 1.496e11, speed / 3e4, energy[::8] * 1e-9


@fault("absorption", "cancellation", "coarse", policy="fp16")
@source("reports of diffusion schedules in half precision: 1 - beta is 1")
@inputs(
    "mlp 9x32x8 @10", "48x8 @12; 48x8 @13; 48 int 0..60 @14; 128 even 0.00008..0.0006"
)
def a_schedule_that_adds_no_noise(params, clean, noise, step, betas):
    keep = 1.0 - betas.astype(jnp.float16)  # fault
    # + keep = 1.0 - betas
    kept = jnp.cumprod(keep.astype(jnp.float32))
    # + kept = jnp.exp(jnp.cumsum(jnp.log1p(-betas)))
    signal = jnp.sqrt(kept)[step][:, None]
    spread = jnp.sqrt(-jnp.expm1(jnp.log(kept)))[step][:, None]
    noisy = signal * clean + spread * noise

    def loss(params):
        level = (step / 64.0).astype(jnp.float32)[:, None]
        guess = mlp(params, jnp.concatenate([noisy, level], axis=1))
        return jnp.mean(jnp.square(guess - noise))

    value, grads = jax.value_and_grad(loss)(params)
    average = jax.tree.map(lambda p, g: p - 0.01 * g, params, grads)
    ahead = (noisy - spread * mlp(average, jnp.pad(noisy, ((0, 0), (0, 1))))) / signal
    return descent(params, grads), noisy - clean, ahead, value


@fault("singular", "non-finite", policy="mxfp8", target="trn3")
@source("reports of graph networks: nodes of padding have the degree 0")
@inputs(
    "w1: 8x16 w @15, w2: 16x4 w, bias: 16 =0",
    "20x8 @17; 60 int 0..14 @18; 60 int 0..14 @19; 20 int 0..4 @20",
)
def nodes_without_edges(params, x, senders, receivers, labels):
    degree = jnp.zeros(20).at[receivers].add(1.0)
    degree = degree.at[15:].set(0.0)
    size = degree**-0.5  # fault
    # + size = jnp.where(degree > 0, jnp.maximum(degree, 1.0) ** -0.5, 0.0)
    real = degree > 0

    def layer(h, w):
        h = h @ w
        sent = jnp.where(real[senders][:, None], (size[:, None] * h)[senders], 0.0)
        came = jnp.zeros_like(h).at[receivers].add(sent)
        return size[:, None] * came

    def loss(params):
        h = jax.nn.relu(layer(x, params["w1"]) + params["bias"])
        scores = jax.nn.log_softmax(layer(h, params["w2"]))
        chosen = jnp.take_along_axis(scores, labels[:, None], axis=1)[:, 0]
        return -jnp.sum(chosen * real) / jnp.sum(real)

    value, grads = jax.value_and_grad(loss)(params)
    momentum = jax.tree.map(lambda g: 0.9 * jnp.zeros_like(g) + g, grads)
    return descent(params, momentum), momentum, value


@fault("singular", "non-finite", policy="bf16")
@source("reports of molecular networks: the gradient of a distance of zero is NaN")
@inputs("mlp 10x16x1 @21", "3x8x3 @23; i32 8 6 5; 10 even 0.2..4; 3 @24")
def distances_between_atoms_of_padding(params, places, count, centres, energies):
    real = jnp.arange(8) < count[:, None]
    places = jnp.where(real[..., None], places, 0.0)

    def energy(params, place, real):
        between = place[:, None] - place[None]
        squares = jnp.sum(jnp.square(between), axis=-1)
        both = real[:, None] & real[None] & ~jnp.eye(8, dtype=bool)
        # + squares = jnp.where(both, squares, 1.0)
        far = jnp.sqrt(squares)  # here
        shells = jnp.exp(-2.0 * jnp.square(far[..., None] - centres))
        pairs = mlp(params, shells)[..., 0] * jnp.exp(-0.3 * far)
        return 0.5 * jnp.sum(jnp.where(both, pairs, 0.0))

    def loss(params):
        guess = jax.vmap(energy, (None, 0, 0))(params, places, real)
        force = jax.vmap(jax.grad(energy, 1), (None, 0, 0))(params, places, real)
        pull = jnp.sum(jnp.square(force), axis=-1) * real
        return jnp.mean(jnp.square(guess - energies)) + 0.01 * jnp.mean(pull)

    value, grads = jax.value_and_grad(loss)(params)
    mu = jax.tree.map(lambda g: 0.1 * jnp.clip(g, -1, 1), grads)
    return descent(params, mu), mu, value


@fault("underflow", policy="fp32")
@source("reports of Sinkhorn iterations whose kernel is zero for small regularization")
@inputs("16x2 @25; 20x2 *0.8 +4 @26; f32 0.06; 20x5 @27")
def a_transport_kernel_of_zeros(a, b, sharpness, values):
    cost = jnp.sum(jnp.square(a[:, None] - b[None]), axis=-1)
    kernel = jnp.exp(-cost / sharpness)  # fault
    # + logs = -cost / sharpness

    def turn(carry, _):
        u, v = carry
        u = 1.0 / 16 / (kernel @ v)  # -
        # + u = -jnp.log(16.0) - jax.nn.logsumexp(logs + v, axis=1)
        v = 1.0 / 20 / (kernel.T @ u)  # -
        # + v = -jnp.log(20.0) - jax.nn.logsumexp(logs + u[:, None], axis=0)
        return (u, v), None

    start = (jnp.ones(16), jnp.ones(20))
    # + start = (jnp.zeros(16), jnp.zeros(20))
    (u, v), _ = jax.lax.scan(turn, start, length=96)
    plan = u[:, None] * kernel * v  # -
    # + plan = jnp.exp(u[:, None] + logs + v)
    return 16 * plan @ values, jnp.sum(plan * cost)


@fault("singular", "cancellation", policy="fp32")
@source("reports of distances on the globe by arccos for places close to each other")
@inputs("24 0.8..0.9 @28; 24 0.1..0.2 @29; 24x2 *0.0001 @30; 24x4 @31; 4x4 w @32")
def near_places_by_the_cosine(latitude, longitude, steps, features, w):
    there, across = latitude + steps[:, 0], longitude + steps[:, 1]
    sines = jnp.sin(latitude) * jnp.sin(there)
    cosines = jnp.cos(latitude) * jnp.cos(there)
    cosine = sines + cosines * jnp.cos(across - longitude)
    angle = jnp.arccos(jnp.clip(cosine, -1.0, 1.0))  # fault
    # + rise = jnp.square(jnp.sin((there - latitude) / 2))
    # + swing = jnp.square(jnp.sin((across - longitude) / 2))
    # + angle = 2 * jnp.arcsin(jnp.sqrt(rise + cosines * swing))
    kilometres = 6371.0 * angle
    weights = jnp.exp(-kilometres)
    mixed = weights[:, None] * jax.nn.gelu(features @ w)
    return kilometres, jnp.sum(mixed, axis=0) / jnp.sum(weights)


@fault("cancellation", policy="fp32")
@source("reports of ray tracers: the nearer root of a quadratic for distant rays")
@inputs("64x2 *0.2 @33; f32 0.1 -0.1 0.2; f32 0.5; 3 0.2..1 @34; 64x3 0..1 @35")
def the_nearer_root_for_distant_rays(pixels, centre, radius, light, target):
    eye = jnp.array([0.0, 0.0, -900.0])
    aim = jnp.concatenate([pixels, jnp.zeros((64, 1))], axis=1) - eye
    ray = aim / jnp.sqrt(jnp.sum(jnp.square(aim), axis=-1, keepdims=True))
    back = eye - centre
    half = jnp.sum(ray * back, axis=-1)
    inner = half * half - (jnp.sum(back * back) - radius * radius)  # fault
    # + nearest = back - half[:, None] * ray
    # + inner = radius * radius - jnp.sum(jnp.square(nearest), axis=-1)
    hit = inner > 0
    depth = jnp.sqrt(jnp.where(hit, inner, 1.0))
    place = eye + (-half - depth)[:, None] * ray
    # + place = centre + nearest - depth[:, None] * ray
    normal = (place - centre) / radius
    bright = jax.nn.relu(normal @ (light / jnp.linalg.norm(light)) * -1.0)
    colour = jnp.where(hit[:, None], bright[:, None] * jnp.array([0.9, 0.5, 0.2]), 0.1)
    return colour, jnp.where(hit, depth, 0.0), jnp.mean(jnp.square(colour - target))


@fault("cancellation", policy="fp32")
@source("reports of physics-informed networks with second differences in FP32")
@inputs("mlp 1x16x16x1 @36", "32 even -1..1; 4x1 =0")
def second_differences_of_a_network(params, x, ends):
    def field(params, x):
        return mlp(params, x[None])[0]

    def curve(params, x):
        h = 5e-4
        after, at, before = (field(params, x + d) for d in (h, 0.0, -h))
        around = after - 2 * at + before  # fault
        return around / (h * h)  # -
        # + slope = jax.grad(field, 1)
        # + return jax.grad(slope, 1)(params, x)

    def loss(params):
        bend = jax.vmap(curve, (None, 0))(params, x)
        value = jax.vmap(field, (None, 0))(params, x)
        residual = bend + jnp.pi**2 * jnp.sin(jnp.pi * x) * 0.1 + value
        edge = mlp(params, jnp.array([[-1.0], [1.0]]))
        return jnp.mean(jnp.square(residual)) + jnp.mean(jnp.square(edge)), bend

    (value, bend), grads = jax.value_and_grad(loss, has_aux=True)(params)
    mu = jax.tree.map(lambda g: 0.1 * g, grads)
    return descent(params, mu), bend, value + jnp.sum(ends)


@fault("other", "cancellation", policy="bf16")
@source(
    "reports of particle codes: a particle on a cell's edge falls into the next cell"
)
@inputs("40 int 0..40 @38; f32 3; f32 0.1; 40x3 @39; 3x8 w @40; 40x8 *0.2 @41")
def particles_on_the_edges_of_cells(where, low, width, speed, w, table):
    place = low + where.astype(jnp.float32) * width
    cell = jnp.floor((place - low) / width).astype(jnp.int32)  # fault
    # + cell = jnp.floor((place - low) / width + 0.5).astype(jnp.int32)
    cell = jnp.clip(cell, 0, 39)
    weight = jnp.exp(-0.5 * jnp.sum(jnp.square(speed), axis=-1))
    density = jnp.zeros(40).at[cell].add(weight)
    smooth = jnp.convolve(density, jnp.array([0.25, 0.5, 0.25]), mode="same")
    field = jnp.gradient(smooth)[cell]
    pushed = speed + 0.1 * field[:, None]
    return density, jax.nn.silu(pushed @ w) + table[cell]
