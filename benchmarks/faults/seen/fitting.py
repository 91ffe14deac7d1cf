"""Faults of fitting: optimizers, losses, samplers and solvers, most in loops."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.parts import cross_entropy, layer_norm, normal


@fault("singular", "overflow", "underflow", "non-finite")
@source("DPO implementations: torch.log(torch.sigmoid(x)) is -inf")
@inputs("8x1 w @4100; 12x8 @4101", lambda: 2 * normal(4102, 12, 8))
def preference_loss_log_of_sigmoid(params, chosen, rejected):
    """DPO with a large beta: the logarithm of a sigmoid of a very wrong margin."""

    def loss_of(params):
        margin = 60.0 * (chosen @ params - rejected @ params)
        return -jnp.log(1.0 / (1.0 + jnp.exp(-margin))).mean()  # fault
        # + return -jax.nn.log_sigmoid(margin).mean()

    return jax.value_and_grad(loss_of)(params)


@fault("non-finite", "singular")
@source("WGAN-GP: NaN gradients of norm() at zero")
@inputs("3x4 w @4104", lambda: 0.5 * normal(4105, 12, 3))
def penalty_on_zero_gradient(params, x):
    """A gradient penalty: the norm of an input gradient, zero at a dead unit."""

    def critic(x, w):
        return jnp.sum(jax.nn.relu(x @ w - 0.5))

    def loss_of(w):
        g = jax.vmap(jax.grad(critic), (0, None))(x, w)
        norm = jnp.sqrt((g * g).sum(-1))  # fault
        # + norm = jnp.sqrt((g * g).sum(-1) + 1e-12)
        return jnp.mean((norm - 1.0) ** 2)

    return jax.value_and_grad(loss_of)(params)


@fault("underflow", policy="fp16")
@source("fairseq Adafactor with memory-efficient FP16 states")
@inputs("8x6 w @4110; rows: 8 =0, columns: 6 =0; 20x8 @4111; 20x6 @4112")
def adafactor_squares_in_half(w, moments, x, y):
    """Adafactor: row and column means of squared gradients, kept in half."""

    def loss_of(w):
        return 2e-3 * jnp.mean((jnp.tanh(x @ w) - y) ** 2)

    g = jax.grad(loss_of)(w)
    square = (g * g).astype(jnp.float16)  # fault
    # + square = g * g
    rows = 0.9 * moments["rows"] + 0.1 * square.astype(jnp.float32).mean(1)  # -
    # + rows = 0.9 * moments["rows"] + 0.1 * square.mean(1)
    columns = 0.9 * moments["columns"] + 0.1 * square.astype(jnp.float32).mean(0)  # -
    # + columns = 0.9 * moments["columns"] + 0.1 * square.mean(0)
    scale = rows[:, None] * columns[None] / rows.mean()
    return w - 1e-3 * g * jax.lax.rsqrt(scale + 1e-30), rows, columns


@fault("coarse", "singular", "cancellation")
@source("optax and bf16 hyperparameters: 0.999 is 1 in BF16")
@inputs("w: 8x3 w @4120, beta: f32 0.995; 10x8 @4121; 10 int 0..3 @4122; f32 5")
def adam_beta_rounds_in_bf16(params, x, labels, step):
    """Bias correction of Adam, with powers of betas that were cast with the state."""
    beta = params["beta"].astype(jnp.bfloat16)  # fault
    correction = 1.0 - beta.astype(jnp.float32) ** step  # -
    # + correction = -jnp.expm1(step * jnp.log(params["beta"]))

    def loss_of(w):
        return cross_entropy(layer_norm(x) @ w, labels)

    grad = jax.grad(loss_of)(params["w"])
    moment = (1.0 - params["beta"]) * grad * grad / correction
    return correction, params["w"] - 1e-2 * grad / (jnp.sqrt(moment) + 1e-8)


def teacher_arguments():
    teacher = np.round(normal(4140, 8, 6, shift=3.0, scale=0.2) * 512) / 512
    student = teacher + 0.5 * normal(4141, 8, 6)
    return student.astype(np.float32), teacher.astype(np.float32), "90x3x8 @4142"


@fault("absorption", "stagnation", policy="fp16")
@source("MoCo and BYOL: the momentum encoder in FP16 stands still")
@inputs(by=teacher_arguments)
def momentum_encoder_in_half(student, teacher, x):
    """A momentum encoder in half, in a scan over batches, with its features."""

    def step(teacher, batch):  # -
        move = (2e-4 * (student - teacher.astype(jnp.float32))).astype(jnp.float16)
        teacher = teacher + move  # fault
        return teacher, jnp.tanh(batch @ teacher.astype(jnp.float32)).mean()

    # + def step(moved, batch):
    # +     moved = moved + 2e-4 * (student - teacher - moved)
    # +     return moved, jnp.tanh(batch @ (teacher + moved)).mean()

    half = teacher.astype(jnp.float16)  # -
    last, means = jax.lax.scan(step, half, x)  # -
    return last.astype(jnp.float32) - teacher, means  # -
    # + return jax.lax.scan(step, jnp.zeros_like(teacher), x)


@fault("underflow", policy="fp32")
@source("MCMC tutorials: ratios of densities instead of differences of logarithms")
@inputs("12 =-1; 20 0..1 @4130; 20x12 *0.2 @4131")
def metropolis_ratio_of_densities(x, draws, moves):
    """A Metropolis sampler: the ratio of two densities, each of which underflows."""

    def density(x):  # -
        return jnp.exp(-0.5 * jnp.sum((x - 4.0) ** 2))  # fault

    # + def energy(x):
    # +     return 0.5 * jnp.sum((x - 4.0) ** 2)

    def step(x, pair):
        move, u = pair
        ratio = density(x + move) / density(x)  # -
        # + ratio = jnp.exp(energy(x) - energy(x + move))
        x = jnp.where(u < ratio, x + move, x)
        return x, ratio

    return jax.lax.scan(step, x, (moves, draws))


@fault("coarse", "absorption", "cancellation", policy="fp32")
@source("iterative refinement (Higham): the residual needs the higher precision")
@inputs("12 1..2 @4135; 12 =0.7")
def newton_reciprocal_in_bf16(a, start):
    """Reciprocals by Newton's method in BF16, refined till they no longer change."""
    low = a.astype(jnp.bfloat16)  # -

    def refine(carry):
        r, n = carry
        residual = jnp.bfloat16(1) - low * r  # fault
        return r + r * residual, n + 1  # -
        # + return r + r * (1.0 - a * r), n + 1

    r, _ = jax.lax.while_loop(
        lambda c: c[1] < 6, refine, (start.astype(jnp.bfloat16), 0)
    )  # -
    # + r, _ = jax.lax.while_loop(lambda c: c[1] < 6, refine, (start, 0))
    r = r.astype(jnp.float32)  # -
    return 1.0 - a * r + 1e-2


@fault("cancellation", policy="fp32")
@source("FPBench NMSE: (1 - cos x) / x^2")
@inputs("5 0.0001..0.0004 @4145; 5 =0; 5 1..2 @4146")
def swing_energy_by_one_minus_cosine(angle, speed, masses):
    """Energies of a swing along a simulation: m g (1 - cos), of small angles."""

    def step(carry, _):
        angle, speed = carry
        speed = speed - 0.01 * jnp.sin(angle)
        angle = angle + 0.01 * speed
        return (angle, speed), masses * 9.81 * (1.0 - jnp.cos(angle))  # fault
        # + return (angle, speed), masses * 9.81 * 2.0 * jnp.sin(angle / 2) ** 2

    _, energy = jax.lax.scan(step, (angle, speed), None, length=30)
    return energy


@fault("cancellation", policy="fp32")
@source("Bierman: the conventional update loses positive definiteness")
@inputs(
    lambda: np.stack([np.eye(3)[n % 3] for n in range(6)]).astype(np.float32),
    lambda: np.diag(np.asarray([3e4, 5e4, 7e4], np.float32)),
    "f32 0.001",
)
def kalman_covariance_by_subtraction(states, prior, noise):
    """A Kalman filter: a covariance by subtraction, after a very exact reading."""

    def update(p, h):  # -
        s = h @ p @ h + noise
        k = p @ h / s
        return p - jnp.outer(k, h @ p), k  # fault

    # + def update(information, h):
    # +     information = information + jnp.outer(h, h) / noise
    # +     p = jnp.linalg.inv(information)
    # +     return information, p @ h / noise

    p, gains = jax.lax.scan(update, prior, states)  # -
    return jnp.diagonal(p), gains  # -
    # + information, gains = jax.lax.scan(
    # +     update, jnp.diag(1 / jnp.diagonal(prior)), states
    # + )
    # + return jnp.diagonal(jnp.linalg.inv(information)), gains


@fault("underflow", policy="fp16")
@source("Switch Transformer: router losses belong in FP32")
@inputs("gate: 12x64 w @4150, out: 12x3 w; 20x12 @4152")
def balance_loss_underflows_in_half(params, x):
    """A mixture's balance loss: the product of two shares, in half, of many experts."""
    p = jax.nn.softmax(layer_norm(x) @ params["gate"])
    share = p.mean(0).astype(jnp.float16)  # -
    load = (p > 0.004).astype(jnp.float16).mean(0) * jnp.float16(2e-5)  # -
    # + load = (p > 0.004).astype(jnp.float32).mean(0) * 2e-5
    term = share * load  # fault
    return term.astype(jnp.float32) * 1e7, layer_norm(x) @ params["out"]  # -
    # + return p.mean(0) * load * 1e7, layer_norm(x) @ params["out"]


@fault("underflow", policy="fp16")
@source("DEQ and Anderson acceleration in autocast: residuals of exactly zero")
@inputs("8x8 w*0.4 @4160; 6x8 @4161; f32 0")
def fixed_point_residual_in_half(params, x, target):
    """A DEQ solves by iteration; its stopping residual is the square of a half."""

    def step(carry, _):
        z, _ = carry
        new = jnp.tanh(z @ params + x)
        gap = (new - z).astype(jnp.float16)  # -
        # + gap = new - z
        square = gap * gap  # fault
        return (new, jnp.sqrt(square.astype(jnp.float32).mean())), None  # -
        # + return (new, jnp.sqrt((gap * gap).mean())), None

    (z, gap), _ = jax.lax.scan(step, (x, jnp.float32(0)), None, length=9)
    return z - target, jnp.log(gap + 1e-12)


def sphere_arguments():
    centre = np.full(4, 0.5, np.float32)
    return centre + 4e-4 * normal(4190, 12, 4), centre


@fault("cancellation", "singular", policy="fp32")
@source("Kahan on angles: the haversine instead of the law of cosines")
@inputs(by=sphere_arguments)
def chord_from_cosine(x, centre):
    """Attention by distances on a unit sphere: arccosh and sqrt near their ends."""
    u = x * jax.lax.rsqrt((x * x).sum(-1, keepdims=True))
    chord = jnp.sqrt(2.0 - 2.0 * (u @ centre))  # fault
    # + gap = u - centre
    # + chord = jnp.sqrt((gap * gap).sum(-1))
    return chord, jax.nn.softmax(-chord * 2e3)


@fault("stagnation", "absorption", "coarse")
@source("FP8-LM: gradients are accumulated above 8 bits")
@inputs("8x4 w @4185; 24x6x8 @4186; 24x6 int 0..4 @4187")
def micro_batches_added_in_e5m2(params, x, labels):
    """Gradients of micro-batches added up in E5M2, to save memory."""

    def add(total, batch):
        x, labels = batch
        g = jax.grad(lambda w: cross_entropy(x @ w, labels))(params)
        total = (total.astype(jnp.float32) + g).astype(jnp.float8_e5m2)  # fault
        return total, None  # -
        # + return total + g, None

    zero = jnp.zeros(params.shape, jnp.float8_e5m2)  # -
    total, _ = jax.lax.scan(add, zero, (x, labels))  # -
    # + total, _ = jax.lax.scan(add, jnp.zeros(params.shape), (x, labels))
    return total.astype(jnp.float32) / x.shape[0]  # -
    # + return total / x.shape[0]


@fault("absorption", "stagnation")
@source("MAML in BF16: fast weights that equal the slow ones")
@inputs(
    lambda: (np.round(normal(4200, 6, shift=2.0, scale=0.3) * 64) / 64).astype(
        np.float32
    ),
    lambda: 0.1 * normal(4201, 5, 8, 6),
)
def inner_loop_steps_lost_in_bf16(params, x):
    """An inner loop of a meta-learner keeps its weights where steps are lost."""

    def outer(w, task):
        def inner(n, w):
            g = jax.grad(lambda w: jnp.mean((task @ w) ** 2))(
                w.astype(jnp.float32)
            )  # -
            return w - (3e-3 * g).astype(jnp.bfloat16)  # fault
            # + return w - 3e-3 * jax.grad(lambda w: jnp.mean((task @ w) ** 2))(w)

        fast = jax.lax.fori_loop(0, 12, inner, w.astype(jnp.bfloat16))  # -
        return w, fast.astype(jnp.float32) - w  # -
        # + return w, jax.lax.fori_loop(0, 12, inner, w) - w

    return jax.lax.scan(outer, params, x)[1]
