"""Solvers: Diffrax, Optimistix, Lineax, JAXopt, OTT and Exponax."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from tests.strangers.program import Call, stranger
from tests.zoo.program import uniform

KEY = jax.random.key(0)


def _field(time, y, matrix):
    return jnp.tanh(matrix @ y) - 0.3 * y


@stranger("diffrax")
def diffrax_adaptive() -> Call:
    """An ordinary equation with adaptive steps."""
    import diffrax

    def solve(y, matrix):
        return diffrax.diffeqsolve(
            diffrax.ODETerm(_field),
            diffrax.Tsit5(),
            0.0,
            1.0,
            0.1,
            y,
            matrix,
            stepsize_controller=diffrax.PIDController(rtol=1e-3, atol=1e-4),
            throw=False,
        ).ys

    return solve, (uniform(1, (4,)), uniform(2, (4, 4)))


@stranger("diffrax")
def diffrax_adjoint() -> Call:
    """The gradient through an ordinary equation with fixed steps."""
    import diffrax

    def loss(matrix, y):
        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(_field),
            diffrax.Heun(),
            0.0,
            1.0,
            0.1,
            y,
            matrix,
            max_steps=16,
            throw=False,
        )
        return jnp.sum(solution.ys**2)

    return jax.value_and_grad(loss), (uniform(2, (4, 4)), uniform(1, (4,)))


@stranger("diffrax")
def diffrax_stochastic() -> Call:
    """A stochastic equation along a Brownian tree."""
    import diffrax

    def solve(y, matrix, key):
        path = diffrax.VirtualBrownianTree(0.0, 1.0, 1e-2, (), key)
        terms = diffrax.MultiTerm(
            diffrax.ODETerm(_field),
            diffrax.ControlTerm(lambda t, y, args: 0.1 * y, path),
        )
        return diffrax.diffeqsolve(
            terms, diffrax.Euler(), 0.0, 1.0, 0.1, y, matrix, throw=False
        ).ys

    return solve, (uniform(1, (4,)), uniform(2, (4, 4)), KEY)


def _residual(y, args):
    matrix, target = args
    return jnp.tanh(matrix @ y) + y - target


@stranger("optimistix")
def optimistix_newton() -> Call:
    """A root by Newton's method."""
    import optimistix as optx

    def root(y, args):
        solver = optx.Newton(rtol=1e-4, atol=1e-4)
        return optx.root_find(_residual, solver, y, args, throw=False).value

    return root, (uniform(1, (4,)), (uniform(2, (4, 4)), uniform(3, (4,))))


@stranger("optimistix")
def optimistix_levenberg() -> Call:
    """Least squares by Levenberg and Marquardt."""
    import optimistix as optx

    def fit(y, args):
        solver = optx.LevenbergMarquardt(rtol=1e-3, atol=1e-3)
        return optx.least_squares(_residual, solver, y, args, throw=False).value

    return fit, (uniform(1, (4,)), (uniform(2, (4, 4)), uniform(3, (4,))))


@stranger("optimistix")
def optimistix_bfgs() -> Call:
    """A minimum by BFGS."""
    import optimistix as optx

    def minimum(y, args):
        solver = optx.BFGS(rtol=1e-3, atol=1e-3)
        squared = lambda y, args: jnp.sum(_residual(y, args) ** 2)  # noqa: E731
        return optx.minimise(squared, solver, y, args, throw=False).value

    return minimum, (uniform(1, (4,)), (uniform(2, (4, 4)), uniform(3, (4,))))


def _positive(matrix):
    return matrix @ matrix.T + jnp.eye(len(matrix))


def _lineax(solver_name, **options) -> Call:
    import lineax as lx

    def solve(matrix, vector):
        matrix = _positive(matrix)
        operator = lx.MatrixLinearOperator(matrix, lx.positive_semidefinite_tag)
        solver = getattr(lx, solver_name)(**options)
        return lx.linear_solve(operator, vector, solver, throw=False).value

    return solve, (uniform(1, (5, 5)), uniform(2, (5,)))


@stranger("lineax")
def lineax_cholesky() -> Call:
    """A system by Cholesky's factors."""
    return _lineax("Cholesky")


@stranger("lineax")
def lineax_cg() -> Call:
    """A system by conjugate gradients."""
    return _lineax("CG", rtol=1e-4, atol=1e-4)


@stranger("lineax")
def lineax_gmres() -> Call:
    """A system by GMRES."""
    return _lineax("GMRES", rtol=1e-4, atol=1e-4)


@stranger("lineax")
def lineax_lu() -> Call:
    """A system by LU factors."""
    return _lineax("LU")


def _least_squares(w, data):
    x, y = data
    return jnp.mean((x @ w - y) ** 2)


DATA = uniform(1, (12, 4)), uniform(2, (12,))


@stranger("jaxopt")
def jaxopt_lbfgs() -> Call:
    """L-BFGS, five iterations."""
    import jaxopt

    def fit(w, data):
        return jaxopt.LBFGS(_least_squares, maxiter=5, implicit_diff=False).run(w, data)

    return lambda w, data: fit(w, data).params, (uniform(3, (4,)), DATA)


@stranger("jaxopt")
def jaxopt_lasso() -> Call:
    """Lasso by proximal gradients."""
    import jaxopt

    def fit(w, data):
        solver = jaxopt.ProximalGradient(
            _least_squares, prox=jaxopt.prox.prox_lasso, maxiter=10
        )
        return solver.run(w, 0.05, data).params

    return fit, (uniform(3, (4,)), DATA)


@stranger("jaxopt")
def jaxopt_simplex() -> Call:
    """Projected gradients on the simplex."""
    import jaxopt

    def fit(w, data):
        solver = jaxopt.ProjectedGradient(
            _least_squares, jaxopt.projection.projection_simplex, maxiter=10
        )
        return solver.run(w, None, data).params

    return fit, (jnp.full(4, 0.25), DATA)


@stranger("jaxopt")
def jaxopt_implicit() -> Call:
    """The implicit gradient of a ridge regression."""
    import jaxopt

    def ridge(penalty, data):
        x, y = data
        objective = lambda w, p: jnp.sum((x @ w - y) ** 2) + p * jnp.sum(w**2)  # noqa: E731
        solver = jaxopt.GradientDescent(objective, maxiter=30, stepsize=0.02)
        return jnp.sum(solver.run(jnp.zeros(4), penalty).params ** 2)

    return jax.value_and_grad(ridge), (jnp.float32(0.5), DATA)


@stranger("ott-jax")
def ott_sinkhorn() -> Call:
    """Sinkhorn's distance of two clouds and its gradient."""
    from ott.geometry import pointcloud
    from ott.solvers import linear

    def cost(x, y):
        cloud = pointcloud.PointCloud(x, y, epsilon=0.1)
        return linear.solve(cloud, max_iterations=50).reg_ot_cost

    return jax.value_and_grad(cost), (uniform(1, (6, 2)), uniform(2, (7, 2)))


@stranger("ott-jax")
def ott_soft_sort() -> Call:
    """A differentiable sort."""
    from ott.tools import soft_sort

    return lambda x: soft_sort.sort(x, epsilon=0.1), (uniform(1, (8,)),)


@stranger("exponax")
def exponax_burgers() -> Call:
    """Burgers' equation by exponential time differences: Fourier transforms."""
    import exponax

    stepper = exponax.stepper.Burgers(1, 3.0, 16, 0.1, diffusivity=0.1)
    return lambda u: stepper(u), (uniform(1, (1, 16)),)
