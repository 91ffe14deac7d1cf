"""Physics, chemistry, and the numerical methods that go with them."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source


@fault("underflow", "singular", "non-finite", "overflow", policy="fp32")
@source("gravity with a softening whose square underflows")
@inputs("24x3 @11; 24 0.5..2 @12; 24x3 *0.1 @13; f32 1e-20")
def softening_whose_square_is_zero(place, mass, speed, soft):
    def pull(place):
        apart = place[None] - place[:, None]
        squares = jnp.sum(apart * apart, axis=-1)
        weight = (squares + soft * soft) ** -1.5  # fault
        # + same = jnp.eye(24, dtype=bool)
        # + weight = jnp.where(same, 0.0, jnp.where(same, 1.0, squares) ** -1.5)
        return jnp.sum((mass * weight)[:, :, None] * apart, axis=1)

    half = speed + 5e-4 * pull(place)
    place = place + 1e-3 * half
    return place, half + 5e-4 * pull(place)


@fault("absorption", "stagnation", "coarse", policy="bf16")
@source("explicit diffusion with a field in half")
@inputs("64 even 0..1; f32 0.1")
def heat_that_does_not_flow(x, rate):
    u = 1.0 + 0.5 * jnp.sin(2 * jnp.pi * x)
    u = u.astype(jnp.bfloat16)  # -

    def turn(u, _):
        wide = u.astype(jnp.float32)
        bend = jnp.roll(wide, 1) - 2.0 * wide + jnp.roll(wide, -1)
        u = (wide + rate * bend).astype(jnp.bfloat16)  # fault
        # + u = wide + rate * bend
        return u, None

    u, _ = jax.lax.scan(turn, u, None, length=400)
    return u.astype(jnp.float32)


@fault("stagnation", "absorption", policy="fp32")
@source("clocks of simulations that stop")
@inputs("6 0.5..2 @21; f32 0.01")
def clock_of_a_driven_pendulum(frequency, dt):
    def turn(state, n):
        place, speed, t = state
        force = jnp.cos(1.5 * t.astype(jnp.float32)) - jnp.square(frequency) * place
        speed = speed + dt * force
        place = place + dt * speed
        t = (t + dt).astype(jnp.float16)  # fault
        # + t = 40.0 + dt * (n + 1.0)
        return (place, speed, t), place

    start = jnp.asarray(40.0, jnp.float16)  # -
    # + start = jnp.float32(40.0)
    state = (jnp.zeros(6), jnp.zeros(6), start)
    return jax.lax.scan(turn, state, jnp.arange(500.0))


@fault("cancellation", policy="fp32")
@source("kinetics of tight binding: the smaller root of a quadratic")
@inputs("32 0.5..2 @31; 32 0.1..1 @32; 32 2e3..9e3 @33; f32 40")
def bound_share_of_a_weak_ligand(enzyme, ligand, constant, speed):
    total = enzyme + ligand + constant
    root = jnp.sqrt(total * total - 4.0 * enzyme * ligand)
    bound = (total - root) / 2.0  # fault
    # + bound = 2.0 * enzyme * ligand / (total + root)
    return speed * bound / enzyme


@fault("cancellation", policy="fp32")
@source("the Langevin function of paramagnets in a weak field")
@inputs("48x3 *1e-3 @41; 48 0.5..2 @42")
def magnet_in_a_weak_field(field, moment):
    size = jnp.sqrt(jnp.sum(field * field, axis=-1))
    a = moment * size
    pull = 1.0 / jnp.tanh(a) - 1.0 / a  # fault
    # + pull = a / 3.0 - a**3 / 45.0
    return (moment * pull / size)[:, None] * field


@fault("singular", "non-finite", policy="fp32")
@source("gradients of norms behind a where")
@inputs("12x3 @51; 12 0.5..1.5 @52")
def gradient_of_a_distance_to_itself(place, charge):
    def energy(place):
        apart = place[:, None] - place[None]
        squares = jnp.sum(apart * apart, axis=-1)
        # + squares = jnp.where(jnp.eye(12, dtype=bool), 1.0, squares)
        distance = jnp.sqrt(squares)  # here
        pairs = charge[:, None] * charge * jnp.exp(-distance)
        return 0.5 * jnp.sum(jnp.where(jnp.eye(12, dtype=bool), 0.0, pairs))

    value, force = jax.value_and_grad(energy)(place)
    return value, -force


@fault("cancellation", "absorption", policy="fp32")
@source("derivatives by differences with the step of double precision")
@inputs("24x4 @81; 4 0.5..2 @82; 24 @83")
def slope_by_a_tiny_difference(x, stiffness, start):
    def energy(t):
        stretched = x * (1.0 + 0.1 * t)
        return jnp.sum(stiffness * jnp.square(stretched) + jnp.cos(stretched))

    slope = (energy(start[0] + 1e-6) - energy(start[0])) / 1e-6  # fault
    # + slope = jax.grad(energy)(start[0])
    return start - 0.01 * slope, slope


@fault("underflow", "non-finite", policy="fp32")
@source("optimal transport with little entropy, by scaling rows and columns")
@inputs("16x12 0.7..3 @61; 16 0.5..2 @62; 12 0.5..2 @63; f32 0.005")
def transport_by_scaling(cost, mass, demand, heat):
    mass, demand = mass / mass.sum(), demand / demand.sum()
    kernel = jnp.exp(-cost / heat)  # fault
    # + kernel = -cost / heat

    def turn(state):
        n, rows, columns = state
        rows = mass / (kernel @ columns)  # -
        columns = demand / (rows @ kernel)  # -
        # + rest = jax.nn.logsumexp(kernel + columns, axis=1)
        # + rows = jnp.log(mass) - rest
        # + rest = jax.nn.logsumexp(kernel + rows[:, None], axis=0)
        # + columns = jnp.log(demand) - rest
        return n + 1, rows, columns

    start = (0, jnp.ones(16), jnp.ones(12))
    _, rows, columns = jax.lax.while_loop(lambda s: s[0] < 50, turn, start)
    plan = rows[:, None] * kernel * columns  # -
    # + plan = jnp.exp(rows[:, None] + kernel + columns)
    return plan, jnp.sum(plan * cost)
