"""jax.scipy.special, jax.nn and the statistics: compositions of many elementary ops.

Compared with the host's FP32 relatively, as neither is right to the last bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.scipy import special, stats

from tests.conformance.table.case import Case, Close, Input

Function = Any
SIZE = (24,)

#: name -> (function, kinds of its inputs)
QUICK: Mapping[str, tuple[Function, tuple[str, ...]]] = {
    "relu6": (jax.nn.relu6, ("spread",)),
    "elu": (jax.nn.elu, ("normal",)),
    "celu": (jax.nn.celu, ("normal",)),
    "selu": (jax.nn.selu, ("normal",)),
    "gelu": (jax.nn.gelu, ("normal",)),
    "gelu_exact": (lambda x: jax.nn.gelu(x, approximate=False), ("unit",)),
    "silu": (jax.nn.silu, ("normal",)),
    "mish": (jax.nn.mish, ("normal",)),
    "softplus": (jax.nn.softplus, ("normal",)),
    "softsign": (jax.nn.soft_sign, ("normal",)),
    "squareplus": (jax.nn.squareplus, ("normal",)),
    "hard_swish": (jax.nn.hard_swish, ("normal",)),
    "hard_tanh": (jax.nn.hard_tanh, ("normal",)),
    "log_sigmoid": (jax.nn.log_sigmoid, ("normal",)),
    "leaky_relu": (jax.nn.leaky_relu, ("normal",)),
    "glu": (jax.nn.glu, ("normal",)),
    "one_hot": (lambda x: jax.nn.one_hot(x.astype(int), 4), ("digits",)),
    "entr": (special.entr, ("positive",)),
    "expit": (special.expit, ("normal",)),
    "logit": (special.logit, ("fraction",)),
    "xlogy": (special.xlogy, ("normal", "positive")),
    "xlog1py": (special.xlog1py, ("normal", "positive")),
    "rel_entr": (special.rel_entr, ("positive", "positive")),
    "kl_div": (special.kl_div, ("positive", "above_one")),
    "ndtr": (special.ndtr, ("unit",)),
    "log_ndtr": (special.log_ndtr, ("normal",)),
    "gammaln": (special.gammaln, ("above_one",)),
    "betaln": (special.betaln, ("positive", "positive")),
    "i0": (special.i0, ("normal",)),
    "i0e": (special.i0e, ("normal",)),
    "i1": (special.i1, ("normal",)),
    "i1e": (special.i1e, ("normal",)),
    "boxcox": (lambda x: special.boxcox(x, 0.5), ("positive",)),
    "norm_logpdf": (stats.norm.logpdf, ("normal",)),
    "t_logpdf": (lambda x: stats.t.logpdf(x, 3.0), ("normal",)),
    "poly": (lambda x: jnp.polyval(jnp.arange(1.0, 5), x), ("unit",)),
    "interp": (
        lambda x: jnp.interp(x, jnp.arange(4.0), jnp.arange(4.0) ** 2),
        ("fraction",),
    ),
    "cross": (lambda x: jnp.cross(x.reshape(8, 3), x[::-1].reshape(8, 3)), ("normal",)),
    "unwrap": (jnp.unwrap, ("normal",)),
    "trapezoid": (jnp.trapezoid, ("normal",)),
    "convolve": (lambda x: jnp.convolve(x, x[:5], mode="same"), ("normal",)),
    "cov": (lambda x: jnp.cov(x.reshape(3, 8)), ("normal",)),
}
SLOW: Mapping[str, tuple[Function, tuple[str, ...]]] = {
    "betainc": (special.betainc, ("positive", "positive", "fraction")),
    "igamma": (lax.igamma, ("positive", "positive")),
    "igammac": (lax.igammac, ("positive", "positive")),
    "igamma_grad_a": (lax.igamma_grad_a, ("positive", "positive")),
    "random_gamma_grad": (lax.random_gamma_grad, ("positive", "positive")),
    "polygamma": (lambda x: special.polygamma(2, x), ("above_one",)),
    "zeta": (special.zeta, ("above_one", "positive")),
    "expi": (special.expi, ("positive",)),
    "exp1": (special.exp1, ("positive",)),
    "expn": (lambda x: special.expn(3, x), ("positive",)),
    "gamma": (special.gamma, ("above_one",)),
    "beta": (special.beta, ("above_one", "above_one")),
    "multigammaln": (lambda x: special.multigammaln(x + 2, 3), ("above_one",)),
    "factorial": (lambda x: special.factorial(x.astype(int)), ("digits",)),
    "ndtri": (special.ndtri, ("fraction",)),
    "spence": (special.spence, ("positive",)),
    "bessel_jn": (lambda x: special.bessel_jn(x, v=3, n_iter=20), ("above_one",)),
    "hyp1f1": (lambda x: special.hyp1f1(1.5, 2.5, x), ("fraction",)),
    "hyp2f1": (lambda x: special.hyp2f1(1.5, 0.5, 2.5, x), ("fraction",)),
    "comb": (lambda x: special.comb(9, x), ("digits",)),
    "poch": (lambda x: special.poch(x, 2.0), ("above_one",)),
    "fresnel": (special.fresnel, ("positive",)),
    "sici": (special.sici, ("positive",)),
    "owens_t": (special.owens_t, ("fraction", "fraction")),
    "dawsn": (special.dawsn, ("normal",)),
    "erfcx": (special.erfcx, ("positive",)),
    "gamma_cdf": (lambda x: stats.gamma.cdf(x, 2.0), ("positive",)),
    "beta_cdf": (lambda x: stats.beta.cdf(x, 2.0, 3.0), ("fraction",)),
}


def cases(
    table: Mapping[str, tuple[Function, tuple[str, ...]]], slow: bool
) -> Iterator[Case]:
    for name, (function, kinds) in table.items():
        yield Case(
            name=f"special-{name}-float32",
            function=function,
            inputs=tuple(Input(SIZE, "float32", kind) for kind in kinds),
            check=Close(2e-4, 2e-5) if slow else Close(2e-5, 5e-6),
            interpreter=not slow,
            slow=slow,
        )


CASES = (*cases(QUICK, slow=False), *cases(SLOW, slow=True))
