"""Probability: NumPyro, BlackJAX, TFP, Distrax, FlowJAX and Gaussian processes."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.strangers.program import Call, stranger
from tests.zoo.program import integers, uniform

KEY = jax.random.key(0)


def _regression(x, y=None):
    """Bayesian regression with a scale to learn."""
    import numpyro
    import numpyro.distributions as dist

    weights = numpyro.sample("weights", dist.Normal(jnp.zeros(3), 1.0).to_event(1))
    scale = numpyro.sample("scale", dist.HalfNormal(1.0))
    with numpyro.plate("data", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, scale), obs=y)


DATA = uniform(1, (20, 3)), uniform(2, (20,))


@stranger("numpyro")
def numpyro_density() -> Call:
    """The density of a hierarchical model and its gradient."""
    from numpyro.infer.util import log_density

    def density(params, x, y):
        return log_density(_regression, (x, y), {}, params)[0]

    params = {"weights": uniform(3, (3,)), "scale": jnp.float32(0.7)}
    return jax.value_and_grad(density), (params, *DATA)


@stranger("numpyro")
def numpyro_nuts() -> Call:
    """One transition of NUTS."""
    from numpyro.infer import NUTS

    kernel = NUTS(_regression, max_tree_depth=3)
    state = kernel.init(KEY, 0, None, DATA, {})
    return lambda state, x, y: kernel.sample(state, (x, y), {}), (state, *DATA)


@stranger("numpyro")
def numpyro_svi() -> Call:
    """One step of variational inference."""
    import numpyro
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoNormal

    guide = AutoNormal(_regression)
    svi = SVI(_regression, guide, numpyro.optim.Adam(0.01), Trace_ELBO(2))
    return lambda state, x, y: svi.update(state, x, y), (svi.init(KEY, *DATA), *DATA)


# ---- BlackJAX.


def _banana(x):
    return -0.5 * (x[0] ** 2 + 3 * (x[1] - x[0] ** 2) ** 2)


def _blackjax(algorithm) -> Call:
    step = lambda state, key: algorithm.step(key, state)  # noqa: E731
    return step, (algorithm.init(uniform(1, (2,))), KEY)


@stranger("blackjax")
def blackjax_hmc() -> Call:
    """One transition of HMC."""
    import blackjax

    return _blackjax(blackjax.hmc(_banana, 0.1, jnp.ones(2), 5))


@stranger("blackjax")
def blackjax_nuts() -> Call:
    """One transition of NUTS."""
    import blackjax

    return _blackjax(blackjax.nuts(_banana, 0.1, jnp.ones(2), max_num_doublings=3))


@stranger("blackjax")
def blackjax_mala() -> Call:
    """One transition of MALA."""
    import blackjax

    return _blackjax(blackjax.mala(_banana, 0.05))


@stranger("blackjax")
def blackjax_sgld() -> Call:
    """A step of stochastic gradient Langevin dynamics."""
    import blackjax

    def gradient(w, batch):
        x, y = batch
        return jax.grad(lambda w: -jnp.sum((x @ w - y) ** 2) - jnp.sum(w**2))(w)

    step = blackjax.sgld(gradient).step
    return lambda w, batch, key: step(key, w, batch, 1e-3), (
        uniform(3, (3,)),
        DATA,
        KEY,
    )


# ---- TensorFlow Probability on JAX.


@stranger("tfp-nightly")
def tfp_mixture() -> Call:
    """The density of a mixture and its gradient."""
    from tensorflow_probability.substrates import jax as tfp

    tfd = tfp.distributions

    def density(logits, means, x):
        mixture = tfd.MixtureSameFamily(
            tfd.Categorical(logits=logits), tfd.MultivariateNormalDiag(means)
        )
        return mixture.log_prob(x).sum()

    args = uniform(1, (3,)), uniform(2, (3, 2)), uniform(3, (7, 2))
    return jax.value_and_grad(density, argnums=(0, 1)), args


@stranger("tfp-nightly")
def tfp_hmc() -> Call:
    """One transition of HMC."""
    from tensorflow_probability.substrates import jax as tfp

    kernel = tfp.mcmc.HamiltonianMonteCarlo(_banana, 0.1, 3)

    def transition(x, key):
        results = kernel.bootstrap_results(x)
        return kernel.one_step(x, results, seed=key)[0]

    return transition, (uniform(1, (2,)), KEY)


@stranger("tfp-nightly")
def tfp_gaussian_process() -> Call:
    """The marginal likelihood of a Gaussian process: a Cholesky factor."""
    from tensorflow_probability.substrates import jax as tfp

    def density(scale, x, y):
        kernel = tfp.math.psd_kernels.MaternFiveHalves(1.0, scale)
        process = tfp.distributions.GaussianProcess(
            kernel, x, observation_noise_variance=0.1
        )
        return process.log_prob(y)

    return jax.value_and_grad(density), (jnp.float32(0.8), *DATA)


@stranger("tfp-nightly")
def tfp_bijectors() -> Call:
    """A chain of bijectors, forward and its log determinant."""
    from tensorflow_probability.substrates import jax as tfp

    tfb = tfp.bijectors

    def push(scale, x):
        chain = tfb.Chain([tfb.SoftmaxCentered(), tfb.Scale(scale), tfb.Softsign()])
        return chain.forward(x), chain.forward_log_det_jacobian(x, 1)

    return push, (jnp.float32(1.7), uniform(1, (6, 3)))


# ---- Others.


@stranger("distrax")
def distrax_flow() -> Call:
    """An affine coupling flow, its density and samples."""
    import distrax

    def bijector(params):
        return distrax.ScalarAffine(params[..., :2], jnp.exp(params[..., 2:]))

    def density(weights, x, key):
        coupling = distrax.MaskedCoupling(
            jnp.array([True, False]), lambda x: jnp.tanh(x @ weights), bijector
        )
        base = distrax.MultivariateNormalDiag(jnp.zeros(2), jnp.ones(2))
        flow = distrax.Transformed(base, coupling)
        return flow.log_prob(x), flow.sample(seed=key, sample_shape=(3,))

    return density, (uniform(1, (2, 4)), uniform(2, (7, 2)), KEY)


@stranger("distrax")
def distrax_categorical() -> Call:
    """Entropy, divergence and greedy choice of categoricals."""
    import distrax

    def measures(a, b):
        p, q = distrax.Categorical(logits=a), distrax.Categorical(logits=b)
        return p.entropy(), p.kl_divergence(q), distrax.Greedy(a).mode()

    return measures, (uniform(1, (5, 6)), uniform(2, (5, 6)))


@stranger("flowjax")
def flowjax_spline() -> Call:
    """A rational quadratic spline flow, its density and gradient."""
    import equinox as eqx
    import paramax
    from flowjax.bijections import RationalQuadraticSpline
    from flowjax.distributions import Normal
    from flowjax.flows import coupling_flow

    flow = coupling_flow(
        KEY,
        base_dist=Normal(jnp.zeros(2)),
        transformer=RationalQuadraticSpline(knots=4, interval=4),
        flow_layers=2,
        nn_width=8,
    )
    params, static = eqx.partition(flow, eqx.is_inexact_array)

    def density(params, x):
        model = paramax.unwrap(eqx.combine(params, static))
        return model.log_prob(x).mean()

    return jax.value_and_grad(density), (params, uniform(1, (6, 2)))


@stranger("tinygp")
def tinygp_likelihood() -> Call:
    """The marginal likelihood of a Gaussian process and its gradient."""
    import tinygp

    def density(scale, x, y):
        kernel = tinygp.kernels.Matern32(jnp.exp(scale))
        return tinygp.GaussianProcess(kernel, x, diag=0.1).log_probability(y)

    args = jnp.float32(0.1), jnp.sort(uniform(1, (15,))), uniform(2, (15,))
    return jax.value_and_grad(density), args


@stranger("gpjax")
def gpjax_kernel() -> Call:
    """A sum of kernels: its cross covariance."""
    import gpjax

    def covariance(x):
        kernel = gpjax.kernels.RBF() + gpjax.kernels.Periodic()
        return kernel.cross_covariance(x, x + 0.1)

    return covariance, (uniform(1, (8, 1)),)


@stranger("dynamax")
def dynamax_hmm() -> Call:
    """The forward and backward passes of a hidden Markov model."""
    from dynamax.hidden_markov_model import hmm_smoother

    def smooth(initial, transition, likelihoods):
        soft = jax.nn.softmax
        return hmm_smoother(soft(initial), soft(transition), likelihoods)

    args = uniform(1, (3,)), uniform(2, (3, 3)), uniform(3, (12, 3))
    return smooth, args


@stranger("dynamax")
def dynamax_kalman() -> Call:
    """A Kalman filter."""
    from dynamax.linear_gaussian_ssm import LinearGaussianSSM, lgssm_filter

    model = LinearGaussianSSM(state_dim=2, emission_dim=1)
    params, _ = model.initialize(KEY)
    return lgssm_filter, (params, uniform(1, (6, 1)))


@stranger("matfree")
def matfree_trace() -> Call:
    """A stochastic estimate of a trace."""
    from matfree import stochtrace

    def estimate(matrix, key):
        signs = stochtrace.sampler_signs(matrix[0], num=8)
        trace = stochtrace.monte_carlo_trace()
        estimator = stochtrace.estimator_monte_carlo(trace, sampler=signs)
        return estimator(lambda v: matrix @ v, key)

    return estimate, (uniform(1, (6, 6)), KEY)


@stranger("mctx")
def mctx_gumbel() -> Call:
    """A search of Gumbel MuZero."""
    import mctx

    return _search(mctx.gumbel_muzero_policy)


@stranger("mctx")
def mctx_muzero() -> Call:
    """A search of MuZero."""
    import mctx

    return _search(mctx.muzero_policy)


def _search(policy) -> Call:
    import mctx

    def recurrent(params, key, action, embedding):
        embedding = jnp.tanh(embedding @ params["move"] + action[:, None])
        output = mctx.RecurrentFnOutput(
            reward=embedding[:, 0],
            discount=jnp.full(len(action), 0.9),
            prior_logits=embedding @ params["prior"],
            value=embedding[:, 1],
        )
        return output, embedding

    def search(params, embedding, key):
        root = mctx.RootFnOutput(
            prior_logits=embedding @ params["prior"],
            value=embedding[:, 1],
            embedding=embedding,
        )
        out = policy(params, key, root, recurrent, num_simulations=6)
        return out.action, out.action_weights

    params = {"move": uniform(1, (4, 4)), "prior": uniform(2, (4, 3))}
    return search, (params, uniform(3, (2, 4)), KEY)


@stranger("rlax")
def rlax_vtrace() -> Call:
    """V-trace and generalised advantages."""
    import rlax

    def returns(values, rewards, rhos):
        discounts = jnp.full(9, 0.95)
        traced = rlax.vtrace_td_error_and_advantage(
            values[:-1], values[1:], rewards, discounts, jnp.exp(rhos)
        )
        gae = rlax.truncated_generalized_advantage_estimation(
            rewards, discounts, 0.9, values
        )
        return traced, gae

    return returns, (uniform(1, (10,)), uniform(2, (9,)), uniform(3, (9,)))


@stranger("rlax")
def rlax_distributional() -> Call:
    """A quantile regression loss and categorical Q learning."""
    import rlax

    def losses(quantiles, logits, reward):
        atoms = jnp.linspace(-1, 1, 7)
        taus = (jnp.arange(5) + 0.5) / 5
        quantile = rlax.quantile_q_learning(
            quantiles, taus, 1, reward, 0.9, quantiles + 0.1, quantiles, 1.0
        )
        soft = rlax.categorical_q_learning(
            atoms, logits, 1, reward, 0.9, atoms, logits * 0.5
        )
        return quantile, soft

    return losses, (uniform(1, (5, 3)), uniform(2, (3, 7)), jnp.float32(0.3))


@stranger("rlax")
def rlax_policy_gradient() -> Call:
    """A policy gradient with entropy, its derivative."""
    import rlax

    def loss(logits, actions, advantages):
        weights = jnp.ones(len(actions))
        policy = rlax.policy_gradient_loss(logits, actions, advantages, weights)
        return policy + 0.01 * rlax.entropy_loss(logits, weights)

    args = uniform(1, (8, 4)), integers(2, (8,), 4), uniform(3, (8,))
    return jax.value_and_grad(loss), args
