"""Faults of fitting: optimizers, losses, samplers and solvers, most in loops."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.seen.parts import (
    block,
    block_params,
    cross_entropy,
    integers,
    layer_norm,
    normal,
    uniform,
    weight,
)
from benchmarks.faults.seen.serving import case


def preference_faulty(params, chosen, rejected):
    """DPO with a large beta: the logarithm of a sigmoid of a very wrong margin."""

    def loss_of(params):
        margin = 60.0 * (chosen @ params - rejected @ params)
        return -jnp.log(1.0 / (1.0 + jnp.exp(-margin))).mean()  # fault

    return jax.value_and_grad(loss_of)(params)


def preference_healthy(params, chosen, rejected):
    def loss_of(params):
        margin = 60.0 * (chosen @ params - rejected @ params)
        return -jax.nn.log_sigmoid(margin).mean()

    return jax.value_and_grad(loss_of)(params)


def penalty_faulty(params, x):
    """A gradient penalty: the norm of an input gradient, zero at a dead unit."""

    def critic(x, w):
        return jnp.sum(jax.nn.relu(x @ w - 0.5))

    def loss_of(w):
        g = jax.vmap(jax.grad(critic), (0, None))(x, w)
        norm = jnp.sqrt((g * g).sum(-1))  # fault
        return jnp.mean((norm - 1.0) ** 2)

    return jax.value_and_grad(loss_of)(params)


def penalty_healthy(params, x):
    def critic(x, w):
        return jnp.sum(jax.nn.relu(x @ w - 0.5))

    def loss_of(w):
        g = jax.vmap(jax.grad(critic), (0, None))(x, w)
        norm = jnp.sqrt((g * g).sum(-1) + 1e-12)
        return jnp.mean((norm - 1.0) ** 2)

    return jax.value_and_grad(loss_of)(params)


def factored_faulty(w, moments, x, y):
    """Adafactor: row and column means of squared gradients, kept in half."""

    def loss_of(w):
        return 2e-3 * jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    g = jax.grad(loss_of)(w)
    square = (g * g).astype(jnp.float16)  # fault
    rows = 0.9 * moments["rows"] + 0.1 * square.astype(jnp.float32).mean(1)
    columns = 0.9 * moments["columns"] + 0.1 * square.astype(jnp.float32).mean(0)
    scale = rows[:, None] * columns[None] / rows.mean()
    return w - 1e-3 * g * jax.lax.rsqrt(scale + 1e-30), rows, columns


def factored_healthy(w, moments, x, y):
    def loss_of(w):
        return 2e-3 * jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    g = jax.grad(loss_of)(w)
    square = g * g
    rows = 0.9 * moments["rows"] + 0.1 * square.mean(1)
    columns = 0.9 * moments["columns"] + 0.1 * square.mean(0)
    scale = rows[:, None] * columns[None] / rows.mean()
    return w - 1e-3 * g * jax.lax.rsqrt(scale + 1e-30), rows, columns


def warm_restart_faulty(params, x, labels, step):
    """Bias correction of Adam, with powers of betas that were cast with the state."""
    beta = params["beta"].astype(jnp.bfloat16)  # fault
    correction = 1.0 - beta.astype(jnp.float32) ** step

    def loss_of(w):
        return cross_entropy(layer_norm(x) @ w, labels)

    grad = jax.grad(loss_of)(params["w"])
    moment = (1.0 - params["beta"]) * grad * grad / correction
    return correction, params["w"] - 1e-2 * grad / (jnp.sqrt(moment) + 1e-8)


def warm_restart_healthy(params, x, labels, step):
    correction = -jnp.expm1(step * jnp.log(params["beta"]))

    def loss_of(w):
        return cross_entropy(layer_norm(x) @ w, labels)

    grad = jax.grad(loss_of)(params["w"])
    moment = (1.0 - params["beta"]) * grad * grad / correction
    return correction, params["w"] - 1e-2 * grad / (jnp.sqrt(moment) + 1e-8)


def teacher_faulty(student, teacher, x):
    """A momentum encoder in half, in a scan over batches, with its features."""

    def step(teacher, batch):
        move = (2e-4 * (student - teacher.astype(jnp.float32))).astype(jnp.float16)
        teacher = teacher + move  # fault
        return teacher, jnp.tanh(batch @ teacher.astype(jnp.float32)).mean()

    half = teacher.astype(jnp.float16)
    last, means = jax.lax.scan(step, half, x)
    return last.astype(jnp.float32) - teacher, means


def teacher_healthy(student, teacher, x):
    def step(moved, batch):
        moved = moved + 2e-4 * (student - teacher - moved)
        return moved, jnp.tanh(batch @ (teacher + moved)).mean()

    return jax.lax.scan(step, jnp.zeros_like(teacher), x)


def teacher_arguments():
    teacher = np.round(normal(4140, 8, 6, shift=3.0, scale=0.2) * 512) / 512
    student = teacher + 0.5 * normal(4141, 8, 6)
    return (
        student.astype(np.float32),
        teacher.astype(np.float32),
        normal(4142, 90, 3, 8),
    )


def metropolis_faulty(x, draws, moves):
    """A Metropolis sampler: the ratio of two densities, each of which underflows."""

    def density(x):
        return jnp.exp(-0.5 * jnp.sum((x - 4.0) ** 2))  # fault

    def step(x, pair):
        move, u = pair
        ratio = density(x + move) / density(x)
        x = jnp.where(u < ratio, x + move, x)
        return x, ratio

    return jax.lax.scan(step, x, (moves, draws))


def metropolis_healthy(x, draws, moves):
    def energy(x):
        return 0.5 * jnp.sum((x - 4.0) ** 2)

    def step(x, pair):
        move, u = pair
        ratio = jnp.exp(energy(x) - energy(x + move))
        x = jnp.where(u < ratio, x + move, x)
        return x, ratio

    return jax.lax.scan(step, x, (moves, draws))


def newton_faulty(a, start):
    """Reciprocals by Newton's method in BF16, refined till they no longer change."""
    low = a.astype(jnp.bfloat16)

    def refine(carry):
        r, n = carry
        residual = jnp.bfloat16(1) - low * r  # fault
        return r + r * residual, n + 1

    r, _ = jax.lax.while_loop(
        lambda c: c[1] < 6, refine, (start.astype(jnp.bfloat16), 0)
    )
    r = r.astype(jnp.float32)
    return 1.0 - a * r + 1e-2


def newton_healthy(a, start):
    def refine(carry):
        r, n = carry
        return r + r * (1.0 - a * r), n + 1

    r, _ = jax.lax.while_loop(lambda c: c[1] < 6, refine, (start, 0))
    return 1.0 - a * r + 1e-2


def pendulum_faulty(angle, speed, masses):
    """Energies of a swing along a simulation: m g (1 - cos), of small angles."""

    def step(carry, _):
        angle, speed = carry
        speed = speed - 0.01 * jnp.sin(angle)
        angle = angle + 0.01 * speed
        return (angle, speed), masses * 9.81 * (1.0 - jnp.cos(angle))  # fault

    _, energy = jax.lax.scan(step, (angle, speed), None, length=30)
    return energy


def pendulum_healthy(angle, speed, masses):
    def step(carry, _):
        angle, speed = carry
        speed = speed - 0.01 * jnp.sin(angle)
        angle = angle + 0.01 * speed
        return (angle, speed), masses * 9.81 * 2.0 * jnp.sin(angle / 2) ** 2

    _, energy = jax.lax.scan(step, (angle, speed), None, length=30)
    return energy


def covariance_faulty(states, prior, noise):
    """A Kalman filter: a covariance by subtraction, after a very exact reading."""

    def update(p, h):
        s = h @ p @ h + noise
        k = p @ h / s
        return p - jnp.outer(k, h @ p), k  # fault

    p, gains = jax.lax.scan(update, prior, states)
    return jnp.diagonal(p), gains


def covariance_healthy(states, prior, noise):
    def update(information, h):
        information = information + jnp.outer(h, h) / noise
        p = jnp.linalg.inv(information)
        return information, p @ h / noise

    information, gains = jax.lax.scan(update, jnp.diag(1 / jnp.diagonal(prior)), states)
    return jnp.diagonal(jnp.linalg.inv(information)), gains


def gate_faulty(params, x):
    """A mixture's balance loss: the product of two shares, in half, of many experts."""
    p = jax.nn.softmax(layer_norm(x) @ params["gate"])
    share = p.mean(0).astype(jnp.float16)
    load = (p > 0.004).astype(jnp.float16).mean(0) * jnp.float16(2e-5)
    term = share * load  # fault
    return term.astype(jnp.float32) * 1e7, layer_norm(x) @ params["out"]


def gate_healthy(params, x):
    p = jax.nn.softmax(layer_norm(x) @ params["gate"])
    load = (p > 0.004).astype(jnp.float32).mean(0) * 2e-5
    return p.mean(0) * load * 1e7, layer_norm(x) @ params["out"]


def residuals_faulty(params, x, target):
    """A DEQ solves by iteration; its stopping residual is the square of a half."""

    def step(carry, _):
        z, _ = carry
        new = jnp.tanh(z @ params + x)
        gap = (new - z).astype(jnp.float16)
        square = gap * gap  # fault
        return (new, jnp.sqrt(square.astype(jnp.float32).mean())), None

    (z, gap), _ = jax.lax.scan(step, (x, jnp.float32(0)), None, length=9)
    return z - target, jnp.log(gap + 1e-12)


def residuals_healthy(params, x, target):
    def step(carry, _):
        z, _ = carry
        new = jnp.tanh(z @ params + x)
        gap = new - z
        return (new, jnp.sqrt((gap * gap).mean())), None

    (z, gap), _ = jax.lax.scan(step, (x, jnp.float32(0)), None, length=9)
    return z - target, jnp.log(gap + 1e-12)


def lottery_faulty(params, x, labels, epoch):
    """Trains with sample weights that decay with the square of a short epoch."""
    squared = epoch * epoch  # fault
    weights = 1.0 / (1.0 + squared.astype(jnp.float32) / 1e4)

    def loss_of(params):
        scores = jax.nn.log_softmax(block(params, x))
        chosen = jnp.take_along_axis(scores, labels[:, None], -1)[:, 0]
        return -jnp.mean(weights * chosen)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, weights, grads["down"]


def lottery_healthy(params, x, labels, epoch):
    squared = epoch.astype(jnp.float32) ** 2
    weights = 1.0 / (1.0 + squared / 1e4)

    def loss_of(params):
        scores = jax.nn.log_softmax(block(params, x))
        chosen = jnp.take_along_axis(scores, labels[:, None], -1)[:, 0]
        return -jnp.mean(weights * chosen)

    loss, grads = jax.value_and_grad(loss_of)(params)
    return loss, weights, grads["down"]


def sphere_faulty(x, centre):
    """Attention by distances on a unit sphere: arccosh and sqrt near their ends."""
    u = x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True))
    chord = jnp.sqrt(2.0 - 2.0 * (u @ centre))  # fault
    return chord, jax.nn.softmax(-chord * 2e3)


def sphere_healthy(x, centre):
    u = x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True))
    gap = u - centre
    chord = jnp.sqrt((gap * gap).sum(-1))
    return chord, jax.nn.softmax(-chord * 2e3)


def sphere_arguments():
    centre = np.full(4, 0.5, np.float32)
    return centre + 4e-4 * normal(4190, 12, 4), centre


def micro_faulty(params, x, labels):
    """Gradients of micro-batches added up in E5M2, to save memory."""

    def add(total, batch):
        x, labels = batch
        g = jax.grad(lambda w: cross_entropy(x @ w, labels))(params)
        total = (total.astype(jnp.float32) + g).astype(jnp.float8_e5m2)  # fault
        return total, None

    zero = jnp.zeros(params.shape, jnp.float8_e5m2)
    total, _ = jax.lax.scan(add, zero, (x, labels))
    return total.astype(jnp.float32) / x.shape[0]


def micro_healthy(params, x, labels):
    def add(total, batch):
        x, labels = batch
        g = jax.grad(lambda w: cross_entropy(x @ w, labels))(params)
        return total + g, None

    total, _ = jax.lax.scan(add, jnp.zeros(params.shape), (x, labels))
    return total / x.shape[0]


def nested_faulty(params, x):
    """An inner loop of a meta-learner keeps its weights where steps are lost."""

    def outer(w, task):
        def inner(n, w):
            g = jax.grad(lambda w: jnp.mean((task @ w) ** 2))(w.astype(jnp.float32))
            return w - (3e-3 * g).astype(jnp.bfloat16)  # fault

        fast = jax.lax.fori_loop(0, 12, inner, w.astype(jnp.bfloat16))
        return w, fast.astype(jnp.float32) - w

    return jax.lax.scan(outer, params, x)[1]


def nested_healthy(params, x):
    def outer(w, task):
        def inner(n, w):
            return w - 3e-3 * jax.grad(lambda w: jnp.mean((task @ w) ** 2))(w)

        return w, jax.lax.fori_loop(0, 12, inner, w) - w

    return jax.lax.scan(outer, params, x)[1]


def nested_arguments():
    w = np.round(normal(4200, 6, shift=2.0, scale=0.3) * 64) / 64
    return w.astype(np.float32), 0.1 * normal(4201, 5, 8, 6)


FAULTS = (
    case(
        "preference-loss-log-of-sigmoid",
        ("singular", "overflow", "underflow", "non-finite"),
        (preference_faulty, preference_healthy),
        lambda: (weight(4100, 8, 1), normal(4101, 12, 8), 2 * normal(4102, 12, 8)),
        "bf16",
        "DPO implementations: torch.log(torch.sigmoid(x)) is -inf",
    ),
    case(
        "penalty-on-zero-gradient",
        ("non-finite", "singular"),
        (penalty_faulty, penalty_healthy),
        lambda: (weight(4104, 3, 4), 0.5 * normal(4105, 12, 3)),
        "bf16",
        "WGAN-GP: NaN gradients of norm() at zero",
    ),
    case(
        "adafactor-squares-in-half",
        ("underflow",),
        (factored_faulty, factored_healthy),
        lambda: (
            weight(4110, 8, 6),
            {"rows": np.zeros(8, np.float32), "columns": np.zeros(6, np.float32)},
            normal(4111, 20, 8),
            normal(4112, 20, 6),
        ),
        "fp16",
        "fairseq Adafactor with memory-efficient FP16 states",
    ),
    case(
        "adam-beta-rounds-in-bf16",
        ("coarse", "singular", "cancellation"),
        (warm_restart_faulty, warm_restart_healthy),
        lambda: (
            {"w": weight(4120, 8, 3), "beta": np.float32(0.995)},
            normal(4121, 10, 8),
            integers(4122, 3, 10),
            np.float32(5.0),
        ),
        "bf16",
        "optax and bf16 hyperparameters: 0.999 is 1 in BF16",
    ),
    case(
        "momentum-encoder-in-half",
        ("absorption", "stagnation"),
        (teacher_faulty, teacher_healthy),
        teacher_arguments,
        "fp16",
        "MoCo and BYOL: the momentum encoder in FP16 stands still",
    ),
    case(
        "metropolis-ratio-of-densities",
        ("underflow",),
        (metropolis_faulty, metropolis_healthy),
        lambda: (
            np.full(12, -1.0, np.float32),
            uniform(4130, 20),
            normal(4131, 20, 12, scale=0.2),
        ),
        "fp32",
        "MCMC tutorials: ratios of densities instead of differences of logarithms",
    ),
    case(
        "newton-reciprocal-in-bf16",
        ("coarse", "absorption", "cancellation"),
        (newton_faulty, newton_healthy),
        lambda: (uniform(4135, 12, low=1.0, high=2.0), np.full(12, 0.7, np.float32)),
        "fp32",
        "iterative refinement (Higham): the residual needs the higher precision",
    ),
    case(
        "swing-energy-by-one-minus-cosine",
        ("cancellation",),
        (pendulum_faulty, pendulum_healthy),
        lambda: (
            uniform(4145, 5, low=1e-4, high=4e-4),
            np.zeros(5, np.float32),
            uniform(4146, 5, low=1.0, high=2.0),
        ),
        "fp32",
        "FPBench NMSE: (1 - cos x) / x^2",
    ),
    case(
        "kalman-covariance-by-subtraction",
        ("cancellation",),
        (covariance_faulty, covariance_healthy),
        lambda: (
            np.stack([np.eye(3)[n % 3] for n in range(6)]).astype(np.float32),
            np.diag(np.asarray([3e4, 5e4, 7e4], np.float32)),
            np.float32(1e-3),
        ),
        "fp32",
        "Bierman: the conventional update loses positive definiteness",
    ),
    case(
        "balance-loss-underflows-in-half",
        ("underflow",),
        (gate_faulty, gate_healthy),
        lambda: (
            {"gate": weight(4150, 12, 64), "out": weight(4151, 12, 3)},
            normal(4152, 20, 12),
        ),
        "fp16",
        "Switch Transformer: router losses belong in FP32",
    ),
    case(
        "fixed-point-residual-in-half",
        ("underflow",),
        (residuals_faulty, residuals_healthy),
        lambda: (weight(4160, 8, 8, 0.4), normal(4161, 6, 8), np.float32(0.0)),
        "fp16",
        "DEQ and Anderson acceleration in autocast: residuals of exactly zero",
    ),
    case(
        "epoch-squared-in-int16",
        ("integer",),
        (lottery_faulty, lottery_healthy),
        lambda: (
            block_params(4170, 12),
            normal(4180, 10, 12),
            integers(4181, 12, 10),
            (integers(4182, 80, 10) + 170).astype(np.int16),
        ),
        "bf16",
        "short integer columns of data frames that are squared",
    ),
    case(
        "chord-from-cosine",
        ("cancellation", "singular"),
        (sphere_faulty, sphere_healthy),
        sphere_arguments,
        "fp32",
        "Kahan on angles: the haversine instead of the law of cosines",
    ),
    case(
        "micro-batches-added-in-e5m2",
        ("stagnation", "absorption", "coarse"),
        (micro_faulty, micro_healthy),
        lambda: (
            weight(4185, 8, 4),
            normal(4186, 24, 6, 8),
            integers(4187, 4, 24, 6),
        ),
        "bf16",
        "FP8-LM: gradients are accumulated above 8 bits",
    ),
    case(
        "inner-loop-steps-lost-in-bf16",
        ("absorption", "stagnation"),
        (nested_faulty, nested_healthy),
        nested_arguments,
        "bf16",
        "MAML in BF16: fast weights that equal the slow ones",
    ),
)
