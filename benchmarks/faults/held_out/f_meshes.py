"""Programs over 4 or 8 devices: sums, exchanges, rings, means, variances."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

import neuronjax as nj
from benchmarks.faults.case import fault, inputs, source
from benchmarks.faults.common import mlp
from benchmarks.faults.parts import layer_norm

FOUR = nj.make_mesh((4,), ("x",))
EIGHT = nj.make_mesh((8,), ("x",))
MANY = "trn2.48xlarge"


def four(ins, outs):
    return lambda f: jax.shard_map(f, mesh=FOUR, in_specs=ins, out_specs=outs)


def eight(ins, outs):
    return lambda f: jax.shard_map(f, mesh=EIGHT, in_specs=ins, out_specs=outs)


@fault("overflow", policy="fp16", target=MANY)
@source("root mean squares over features that are parted between devices, in half")
@inputs("24x64 *36 @1; 64 0.5..2 @2; 64x8 w @3")
def features_whose_squares_meet_in_half(x, gain, out):
    @eight((P(None, "x"), P("x"), P("x")), (P(None, "x"), P()))
    def layer(x, gain, out):
        part = jnp.sum(jnp.square(x.astype(jnp.float16)), axis=-1, keepdims=True)
        total = jax.lax.psum(part, "x")  # fault
        # + total = jax.lax.psum(part.astype(jnp.float32), "x")
        size = jax.lax.rsqrt(total.astype(jnp.float32) / 64.0 + 1e-6)
        h = x * size * gain
        return h, jax.lax.psum(jax.nn.silu(h) @ out, "x")

    h, y = layer(x, gain, out)
    return h, y


@fault("saturation", policy="bf16")
@source("expert parallelism: tokens are exchanged in FP8 without a scale")
@inputs("32x16 *300 @11; 4x16x16 *0.25 @12; 16x6 w @13")
def tokens_exchanged_in_fp8_without_scales(x, experts, out):
    @four((P("x"), P("x")), P("x"))
    def exchange(x, expert):
        size = 1.0  # -
        # + size = 8.0
        sent = jnp.clip(x / size, -240.0, 240.0).astype(jnp.float8_e4m3)  # here
        came = jax.lax.all_to_all(sent.reshape(4, 2, 16), "x", 0, 0)
        h = came.astype(jnp.float32) * size @ expert[0]
        back = jax.lax.all_to_all(h, "x", 0, 0)
        return back.reshape(8, 16)

    h = x + exchange(x, experts)
    return h, layer_norm(h) @ out


@fault("overflow", policy="bf16", target=MANY)
@source("masked means over devices that count their tokens in half")
@inputs("81920x2 @21; 2 @22; 81920 @23; 81920 0..1 @24")
def tokens_of_all_devices_counted_in_half(x, w, noise, drawn):
    @eight((P(), P("x"), P("x"), P("x")), (P(), P()))
    def loss_and_gradient(w, x, y, drawn):
        mask = (drawn < 0.95).astype(jnp.bfloat16)
        error = (jnp.sum(x * w, axis=-1) - y) * mask.astype(jnp.float32)
        own = jnp.sum(mask.astype(jnp.float32)).astype(jnp.float16)
        count = jax.lax.psum(own, "x")  # fault
        # + count = jax.lax.psum(own.astype(jnp.float32), "x")
        count = jnp.maximum(count.astype(jnp.float32), 1.0)
        value = jax.lax.psum(jnp.sum(error * error), "x") / count
        slope = jax.lax.psum(jnp.sum(2.0 * error[:, None] * x, axis=0), "x")
        return value, slope / count

    value, g = loss_and_gradient(w, x, jnp.sum(x, axis=-1) + noise, drawn)
    return value, g, w - 0.1 * g


@fault("cancellation", policy="fp32", target=MANY)
@source("estimates of the gradient noise from norms of local and mean gradients")
@inputs("mlp 8x16x2 @31", "8x8 @32; 64x8 *1e-4 @33; 64x2 @34")
def gradient_noise_by_difference_of_norms(params, base, change, y):
    x = jnp.tile(base, (8, 1)) + change
    y = jnp.tile(y[:8], (8, 1))

    @eight((P(), P("x"), P("x")), (P(), P()))
    def measured(params, x, y):
        params = jax.lax.pcast(params, "x", to="varying")
        g = jax.grad(lambda p: jnp.mean(jnp.square(mlp(p, x) - y)))(params)
        g = jnp.concatenate([leaf.ravel() for leaf in jax.tree.leaves(g)])
        mean = jax.lax.pmean(g, "x")
        size = jnp.sum(mean * mean)
        spread = jax.lax.pmean(jnp.sum(g * g), "x") - size  # fault
        # + spread = jax.lax.pmean(jnp.sum(jnp.square(g - mean)), "x")
        return spread * 8.0 / 7.0, mean

    spread, mean = measured(params, x, y)
    return spread, spread / jnp.sum(mean * mean), mean


@fault("absorption", "stagnation", policy="fp32", target=MANY)
@source("decentralized averaging over a ring with parameters in BF16")
@inputs("8x6 *0.4 +12 @41; 8x6 *1e-5 @42")
def gossip_that_does_not_agree(x, g):
    x = x.astype(jnp.bfloat16)  # -

    @eight((P("x"), P("x")), (P("x"), P("x")))
    def agree(x, g):
        right = [(i, (i + 1) % 8) for i in range(8)]
        left = [(i, (i - 1) % 8) for i in range(8)]

        def turn(x, _):
            before = jax.lax.ppermute(x, "x", right).astype(jnp.float32)
            after = jax.lax.ppermute(x, "x", left).astype(jnp.float32)
            pull = 0.1 * (before + after - 2.0 * x.astype(jnp.float32)) - 0.01 * g
            return x + pull.astype(x.dtype), None  # here

        x, _ = jax.lax.scan(turn, x, length=64)
        x = x.astype(jnp.float32)
        return x, x - jax.lax.pmean(x, "x")

    x, apart = agree(x, g)
    return x, apart, jnp.max(jnp.abs(apart), axis=0)


@fault("coarse", "cancellation", policy="fp32")
@source("row-parallel layers that send their partial sums in BF16")
@inputs("24x32 +200 @51; 32x16 w @52; 16x6 w @53; 24 int 0..6 @54")
def partial_sums_sent_in_bfloat16(x, w, out, labels):
    w = w - jnp.mean(w, axis=0)

    @four((P(None, "x"), P("x")), P())
    def project(x, w):
        part = (x @ w).astype(jnp.bfloat16)  # fault
        # + part = x @ w
        return jax.lax.psum(part.astype(jnp.float32), "x")

    def loss(out):
        h = project(x, w)
        gate = jax.nn.sigmoid(h).astype(jnp.bfloat16).astype(jnp.float32)
        scores = jax.nn.log_softmax((h * gate) @ out)
        return -jnp.mean(jnp.take_along_axis(scores, labels[:, None], axis=1)), h

    (value, h), grad = jax.value_and_grad(loss, has_aux=True)(out)
    return value, h, out - 0.1 * grad


@fault("integer", policy="bf16", target=MANY)
@source("histograms for calibration, whose bytes are added over devices")
@inputs("8192 @61; f32 4")
def histograms_joined_as_bytes(x, limit):
    @eight((P("x"), P()), P())
    def histogram(x, limit):
        place = jnp.floor((jnp.clip(x / limit, -0.999, 0.999) + 1.0) * 16.0)
        inside = jax.nn.one_hot(place.astype(jnp.int32), 32)
        count = jnp.sum(inside, axis=0)
        count = jnp.minimum(count, 127.0).astype(jnp.int8)
        total = jax.lax.psum(count, "x")  # fault
        # + total = jax.lax.psum(count.astype(jnp.float32), "x")
        return total.astype(jnp.float32)

    count = histogram(x, limit)
    share = jnp.abs(count) / jnp.sum(jnp.abs(count))
    entropy = -jnp.sum(share * jnp.log(share + 1e-9))
    return count, entropy, jnp.cumsum(share)


@fault("integer", "coarse", policy="fp32", target=MANY)
@source("packed documents over devices: places from sums of lengths in half")
@inputs("8 int 901..1100 @71; 64x16 @72; 16x16 w @73; 8 0.05..3 @74")
def places_after_the_documents_before(lengths, x, w, rate):
    @eight((P(), P("x"), P(), P()), (P("x"), P("x")))
    def encode(lengths, x, w, rate):
        earlier = jnp.arange(8) < jax.lax.axis_index("x")
        passed = jnp.where(earlier, lengths, 0).astype(jnp.float16)
        before = jnp.sum(passed)  # fault
        # + before = jnp.sum(passed.astype(jnp.float32))
        place = before.astype(jnp.float32) + jnp.arange(8)
        angle = place[:, None] * rate
        code = jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)
        mask = (place < 1e6).astype(jnp.float16)
        h = (x + code) * mask.astype(jnp.float32)[:, None]
        return code, jnp.tanh(h @ w)

    return encode(lengths, x, w, rate)


@fault("underflow", "non-finite", policy="fp32", target=MANY)
@source("posteriors from the likelihoods of all devices, multiplied")
@inputs("5 @81; 64x4 @82; 5x4 *0.2 @83")
def likelihoods_multiplied_over_devices(prior, x, centres):
    @eight((P(), P("x"), P()), P())
    def posterior(prior, x, centres):
        far = jnp.sum(jnp.square(x[:, None] - centres), axis=-1)
        own = jnp.sum(-0.5 * far, axis=0)
        every = jnp.prod(jax.lax.all_gather(jnp.exp(own), "x"), axis=0)  # fault
        # + total = jnp.sum(jax.lax.all_gather(own, "x"), axis=0)
        # + every = jnp.exp(total - jnp.max(total + jnp.log(prior)))
        share = prior * every / jnp.sum(prior * every)
        return jax.lax.pmean(share, "x")

    share = posterior(jax.nn.softmax(prior), x, centres)
    return share, share @ centres


@fault("saturation", "stale-scale", policy="bf16")
@source("INT8 all-reduce with the range of the first device")
@inputs("24x16 w @91; 32x24 @92; 32x16 @93; 4 =1; 16x4 w @94")
def codes_with_the_range_of_the_first_device(w, x, y, weight, head):
    weight = weight * jnp.array([0.1, 1.0, 2.0, 4.0])

    @four((P(), P("x"), P("x"), P("x")), P())
    def gradient(w, x, y, weight):
        w = jax.lax.pcast(w, "x", to="varying")

        def loss(w):
            return weight[0] * jnp.mean(jnp.square(jnp.tanh(x @ w) - y))

        g = jax.grad(loss)(w)
        tops = jax.lax.all_gather(jnp.max(jnp.abs(g)), "x")
        step = jax.lax.pmean(tops[0], "x") / 31.0  # -
        # + step = jax.lax.pmean(jnp.max(tops), "x") / 31.0
        code = jnp.clip(jnp.round(g / step), -31, 31).astype(jnp.int8)  # here
        total = jax.lax.psum(code, "x")
        return total.astype(jnp.float32) * step / 4.0

    g = gradient(w, x, y, weight)
    moved = w - 0.5 * g
    return g, moved, jnp.tanh(x @ moved) @ head
