"""Scans and loops of 64 to 512 turns: filters, solvers, chains, running means."""

import jax
import jax.numpy as jnp

from benchmarks.faults.case import fault, inputs, source


@fault("stagnation", "absorption", "coarse", policy="fp32")
@source("simulations whose clock has the state's short format")
@inputs("6 @1; 6 =0; 6 1..3 @2")
def driven_oscillators_whose_clock_stops(place, speed, rate):
    step = 0.0125
    clock = jnp.zeros((), jnp.bfloat16)  # -
    # + clock = jnp.zeros(())

    def turn(state, _):
        place, speed, clock = state
        push = jnp.cos(rate * clock.astype(jnp.float32))
        speed = speed + step * (push - place - 0.1 * speed)
        place = place + step * speed
        clock = clock + jnp.asarray(step, clock.dtype)  # here
        return (place, speed, clock), jnp.mean(place * place)

    def stretch(state, _):
        state, power = jax.lax.scan(turn, state, length=64)
        return state, jnp.mean(power)

    state, power = jax.lax.scan(stretch, (place, speed, clock), length=8)
    return state[0], state[1], power


@fault("cancellation", policy="fp32")
@source("Kalman filters of precise sensors: (1 - K) P in FP32")
@inputs("96x16 @11; 16 1e-4..1e-2 @12; f32 3e4; 16 =0")
def kalman_variances_of_precise_sensors(seen, noise, drift, mean):
    def turn(state, z):
        mean, var = state
        ahead = var + drift
        gain = ahead / (ahead + noise)
        change = z - mean
        mean = mean + gain * change
        var = (1.0 - gain) * ahead  # fault
        # + var = gain * noise
        surprise = 0.5 * (change * change / (ahead + noise) + jnp.log(ahead + noise))
        return (mean, var), (surprise, var)

    (mean, var), (surprise, path) = jax.lax.scan(
        turn, (mean, drift * jnp.ones(16)), seen
    )
    weight = path / jnp.sum(path + 1e-12, axis=0)
    return mean, var, jnp.sum(surprise), jnp.sum(weight * seen, axis=0)


@fault("underflow", "non-finite", policy="fp32")
@source("the forward pass of a hidden Markov model, not normalized")
@inputs("8x8 @21; 8x20 @22; 128 int 0..20 @23")
def forward_probabilities_of_a_long_chain(moves, emissions, seen):
    moves = jax.nn.softmax(moves)
    emissions = jax.nn.softmax(emissions).T

    def turn(state, symbol):
        share, total = state
        share = (share @ moves) * emissions[symbol]  # here
        size = 1.0  # -
        # + size = jnp.sum(share)
        return (share / size, total + jnp.log(size)), None

    start = (jnp.full(8, 0.125), jnp.float32(0.0))
    (share, total), _ = jax.lax.scan(turn, start, seen)
    last = share / jnp.sum(share)
    return total + jnp.log(jnp.sum(share)), last, last @ moves


@fault("absorption", "cancellation", policy="fp32")
@source("moving averages by a running sum, after one wrong reading")
@inputs("256x3 0..1 @31; 3 2e8..9e8 @32")
def moving_average_after_a_wrong_reading(x, wrong):
    x = x.at[60].set(wrong)

    def turn(state, new):
        window, total = state
        total = total + (new - window[0])  # fault
        # + total = jnp.sum(window[1:], axis=0) + new
        window = jnp.concatenate([window[1:], new[None]])
        return (window, total), total / 16.0

    start = (jnp.zeros((16, 3)), jnp.zeros(3))
    _, means = jax.lax.scan(turn, start, x)
    late = means[128:]
    return late, x[128:] - late, jnp.max(means, axis=0)


@fault("underflow", policy="fp32")
@source("conjugate gradients in SI units: the squared residual is zero at once")
@inputs("48x48 @41; 48 *1e-24 @42")
def conjugate_gradients_in_small_units(m, b):
    a = m @ m.T / 48.0 + 0.02 * jnp.eye(48)
    unit = 1.0  # -
    # + unit = jnp.max(jnp.abs(b))
    b = b / unit
    first = jnp.vdot(b, b)  # here

    def unfinished(state):
        return (state[0] < 128) & (state[4] > 1e-10 * first)

    def turn(state):
        count, x, r, p, rr = state
        ap = a @ p
        alpha = rr / jnp.vdot(p, ap)
        x, r = x + alpha * p, r - alpha * ap
        new = jnp.vdot(r, r)
        return count + 1, x, r, r + new / rr * p, new

    start = (jnp.int32(0), jnp.zeros(48), b, b, first)
    x = jax.lax.while_loop(unfinished, turn, start)[1]
    x, b = x * unit * 1e24, b * unit * 1e24
    return x, jnp.vdot(x, b)


@fault("overflow", "non-finite", policy="bf16")
@source("power iterations that normalize after the loop only")
@inputs("32x32 0..0.4 @51; 32 0.5..1 @52; 200x32 @53")
def power_iteration_without_a_norm(links, start, x):
    links = links + links.T

    def turn(v, _):
        v = links @ v  # fault
        # + v = links @ v / jnp.sqrt(jnp.sum(jnp.square(links @ v)))
        return v, None

    v, _ = jax.lax.scan(turn, start, length=200)
    v = v / jnp.max(jnp.abs(v))
    v = v / jnp.sqrt(jnp.sum(v * v))
    value = v @ (links @ v)
    return v, value, x @ v


@fault("coarse", "absorption", "cancellation", policy="bf16")
@source("averaged weights whose decay is cast to the weights' format")
@inputs("24x3 w @61; 256x16x24 @62; 24x3 @63; f32 0.999")
def averaged_weights_with_a_decay_of_one(w, xs, target, decay):
    def step(state, x):
        w, average = state
        g = x.T @ (x @ (w - target)) / 16.0
        w = w - 0.02 * g
        keep = decay.astype(jnp.bfloat16)  # fault
        # + keep = decay
        average = keep * average + (1.0 - keep) * w
        return (w, average), jnp.mean(jnp.square(x @ (w - target)))

    (w, average), values = jax.lax.scan(step, (w, jnp.zeros_like(w)), xs)
    return average, w, values


@fault("stagnation", "absorption", policy="fp32")
@source("fast weights that are written into a BF16 state, over segments")
@inputs("8x64x6 @71; 6x8 w @72; 6x8 w @73; 6x8 w @74; 8x4 w @75")
def fast_weights_in_a_short_state(x, wk, wv, wq, out):
    k = jax.nn.softplus(x @ wk) + 0.5
    v, q = 1.0 + 0.3 * (x @ wv), jax.nn.softmax(x @ wq)
    state = jnp.zeros((8, 8), jnp.bfloat16)  # -
    # + state = jnp.zeros((8, 8))

    def token(state, entry):
        key, value, query = entry
        written = jnp.outer(key, value)
        state = state + written.astype(state.dtype)  # here
        return state, query @ state.astype(jnp.float32)

    def segment(state, entries):
        state, reads = jax.lax.scan(token, state, entries)
        size = jnp.sqrt(jnp.mean(reads * reads))
        return state, (reads[-1] @ out, size)

    state, (reads, sizes) = jax.lax.scan(segment, state, (k, v, q))
    return reads, sizes, state.astype(jnp.float32)


@fault("stagnation", "integer", "absorption", policy="fp32")
@source("running means whose count has the format of the data")
@inputs("512 even 0..4; 512x4 @81")
def running_mean_with_a_count_that_stops(trend, noise):
    x = trend[:, None] + 0.1 * noise
    count = jnp.zeros((), jnp.bfloat16)  # -
    # + count = jnp.zeros(())

    def unfinished(state):
        return state[0] < 512

    def turn(state):
        index, count, mean, square = state
        count = count + jnp.ones((), count.dtype)  # here
        change = x[index] - mean
        mean = mean + change / count.astype(jnp.float32)
        square = square + change * (x[index] - mean)
        return index + 1, count, mean, square

    start = (jnp.int32(0), count, jnp.zeros(4), jnp.zeros(4))
    _, count, mean, square = jax.lax.while_loop(unfinished, turn, start)
    return mean, square / 511.0, count.astype(jnp.float32)


@fault("underflow", "non-finite", policy="fp32")
@source("Sinkhorn's iteration on a kernel of two kinds of data that lie apart")
@inputs("24x6 @91; 20x6 @92; f32 9; f32 0.5")
def transport_between_clouds_that_lie_apart(x, y, apart, heat):
    cost = jnp.sum(jnp.square(x[:, None] - y), axis=-1) / 6.0 + apart * apart
    kernel = jnp.exp(-cost / heat)  # fault
    # + kernel = jnp.exp((jnp.min(cost, axis=1, keepdims=True) - cost) / heat)

    def turn(state, _):
        u, v = state
        u = (1.0 / 24.0) / (kernel @ v)
        v = (1.0 / 20.0) / (kernel.T @ u)
        return (u, v), jnp.mean(jnp.abs(u * (kernel @ v) - 1.0 / 24.0))

    (u, v), gaps = jax.lax.scan(turn, (jnp.ones(24), jnp.ones(20)), length=64)
    plan = u[:, None] * kernel * v
    return plan, jnp.sum(plan * (cost - apart * apart)), 24.0 * plan @ y, gaps[0]
