"""Programs over several devices: sums, gathers, rings, pipelines."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source

EIGHT = nj.make_mesh((8,), ("d",))
FOUR = nj.make_mesh((4,), ("d",))
MACHINE = "trn2.48xlarge"  # with more than four cores


def over(mesh, inside, outside):
    """Spread a function over a mesh."""
    return lambda f: jax.shard_map(
        f, mesh=mesh, in_specs=inside, out_specs=outside, check_vma=False
    )


@fault("coarse", "cancellation", policy="fp32", target=MACHINE)
@source("tensor parallelism with partial sums in half that cancel")
@inputs("16x64 *0.2 @1; 64x12 w @2; 12 *0.1 @3; f32 6")
def partial_sums_in_half(x, w, bias, offset):
    signs = jnp.where(jnp.arange(64) < 32, 1.0, -1.0)

    @over(EIGHT, (P(None, "d"), P("d"), P("d")), P())
    def layer(x, w, signs):
        part = x @ w + offset * signs.mean()
        return jax.lax.psum(part.astype(jnp.bfloat16), "d")  # fault
        # + return jax.lax.psum(part, "d")

    return jnp.tanh(layer(x, w, signs).astype(jnp.float32) + bias)


@fault("overflow", policy="fp16", target=MACHINE)
@source("data parallelism that divides by the number of devices after the sum")
@inputs("64x24 +1 @11; 24x6 w @12; 64x6 *2 +-9 @13; f32 4096")
def scaled_gradients_that_are_added(x, w, y, scale):
    @over(EIGHT, (P("d"), P(), P("d")), P())
    def gradient(x, w, y):
        g = jax.grad(lambda w: jnp.mean(jnp.square(x @ w + 1.0 - y)))
        small = (scale * g(w)).astype(jnp.float16)
        # + small = (scale / 8 * g(w)).astype(jnp.float16)
        total = jax.lax.psum(small, "d").astype(jnp.float32)  # here
        return total / 8  # -
        # + return total

    return w - 0.01 * gradient(x, w, y) / scale


@fault("stagnation", "absorption", "coarse", policy="bf16")
@source("sharded optimizers that keep their part of the weights in half")
@inputs("64x32 @21; 32x16 w*3 @22; 64x16 @23")
def part_of_the_weights_in_half(x, w, y):
    @over(FOUR, (P("d"), P("d"), P("d")), P("d"))
    def train(x, part, y):
        def turn(part, _):
            wide = part.astype(jnp.float32)
            w = jax.lax.all_gather(wide, "d", tiled=True)
            g = jax.grad(lambda w: jnp.mean(jnp.square(jnp.tanh(x @ w) - y)))(w)
            g = jax.lax.psum_scatter(g / 4, "d", scatter_dimension=0, tiled=True)
            part = (wide - 5e-3 * g).astype(jnp.bfloat16)  # fault
            # + part = wide - 5e-3 * g
            return part, None

        part = part.astype(jnp.bfloat16)  # -
        return jax.lax.scan(turn, part, None, length=40)[0]

    return train(x, w, y).astype(jnp.float32)


@fault("overflow", policy="fp32")
@source("ring attention without a running maximum")
@inputs("32x16 *4 @31; 32x16 *4 @32; 32x8 @33")
def ring_without_a_running_maximum(q, k, v):
    ring = [(i, (i + 1) % 4) for i in range(4)]

    @over(FOUR, (P("d"), P("d"), P("d")), P("d"))
    def attend(q, k, v):
        top = jnp.zeros((8, 1))
        total, read = jnp.zeros((8, 1)), jnp.zeros((8, 8))
        for _ in range(4):
            scores = q @ k.T
            # + higher = jnp.maximum(top, scores.max(1, keepdims=True))
            # + total, read = (a * jnp.exp(top - higher) for a in (total, read))
            # + top = higher
            share = jnp.exp(scores - top)  # here
            total, read = total + share.sum(1, keepdims=True), read + share @ v
            k, v = (jax.lax.ppermute(a, "d", ring) for a in (k, v))
        return read / total

    return attend(q, k, v)


@fault("saturation", policy="bf16")
@source("pipelines that send FP8 without a scale")
@inputs("16x32 *200 @51; 4x32x32 *0.35 @52")
def pipeline_that_sends_small_floats(x, weights):
    line = [(i, i + 1) for i in range(3)]

    @over(FOUR, (P(), P("d")), P())
    def stages(x, w):
        for _ in range(3):
            h = jax.nn.relu(x @ w[0])
            scale = 1.0  # -
            # + scale = jax.lax.pmax(h.max(), "d") / 240.0
            sent = jnp.clip(h / scale, -240.0, 240.0).astype(jnp.float8_e4m3)  # here
            got = jax.lax.ppermute(sent, "d", line).astype(jnp.float32) * scale
            x = jnp.where(jax.lax.axis_index("d") == 0, x, got)
        last = jnp.where(jax.lax.axis_index("d") == 3, x @ w[0], 0.0)
        return jax.lax.psum(last, "d")

    return stages(x, weights)


@fault("cancellation", policy="fp32", target=MACHINE)
@source("variances of shards that are joined by the square of the mean")
@inputs("64x12 *0.05 +60 @61; 12x4 w @62")
def variance_between_the_devices(x, w):
    @over(EIGHT, (P("d"), P()), P("d"))
    def normed(x, w):
        mean = x.mean(0)
        within = jnp.mean(jnp.square(x - mean), axis=0)
        whole = jax.lax.pmean(mean, "d")
        between = jax.lax.pmean(mean * mean, "d") - whole * whole  # fault
        # + between = jax.lax.pmean(jnp.square(mean - whole), "d")
        var = jax.lax.pmean(within, "d") + between
        return (x - whole) * jax.lax.rsqrt(jnp.maximum(var, 0.0) + 1e-9) @ w

    return normed(x, w)


@fault("coarse", "cancellation", policy="bf16")
@source("local steps whose change is taken from weights in half")
@inputs("64x24 @71; 24x8 w @72; 64x8 @73; f32 0.7")
def change_of_local_weights_in_half(x, w, y, rate):
    @over(FOUR, (P("d"), P(), P("d")), P())
    def outer(x, w, y):
        local = w
        for _ in range(4):
            g = jax.grad(lambda w: jnp.mean(jnp.square(x @ w - y)))(local)
            local = local - 1e-3 * g
        sent = local.astype(jnp.bfloat16).astype(jnp.float32)  # fault
        # + sent = local
        return jax.lax.pmean(w - sent, "d")

    change = outer(x, w, y)
    return w - rate * change, change
