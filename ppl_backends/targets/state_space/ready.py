"""Ready-made state-space models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.options import checked, flag, integer, none, number
from ppl_backends.options import function as a_function
from ppl_backends.targets.state_space.model import LinearGaussian, StateSpaceModel


def _numpy() -> Any:
    """Return jax.numpy, imported when a model's functions are first called."""
    import jax.numpy as jnp

    return jnp


def _normal(x: Any, mean: Any, sd: Any) -> Any:
    """Return the log density of a normal."""
    return -0.5 * ((x - mean) / sd) ** 2 - _numpy().log(sd) - 0.5 * LOG_2PI


def _seen_with_noise(
    first: Callable[[Any], tuple[Any, Any]], mean_of: Callable[[Any, Any], Any], linear: LinearGaussian | None = None
) -> StateSpaceModel:
    """Return a scalar state with transition N(mean, σ_x²), seen with noise σ_y; ``first`` has its first mean and sd."""

    def propose(p: Any, t: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        """Return a draw of the exact conditional distribution of the state, and its log density."""
        mean, sd = first(p) if x is None else (mean_of(p, x), p.sigma_x)
        noise = p.sigma_y**2
        variance = 1 / (1 / sd**2 + 1 / noise)
        new_mean, new_sd = variance * (mean / sd**2 + y / noise), _numpy().sqrt(variance)
        return new_mean + new_sd * z, -0.5 * z**2 - _numpy().log(new_sd) - 0.5 * LOG_2PI

    return StateSpaceModel(
        initial=lambda p, z: first(p)[1] * z,
        transition=lambda p, t, x, z: mean_of(p, x) + p.sigma_x * z,
        log_observation=lambda p, t, x, y: _normal(y, x, p.sigma_y),
        log_transition=lambda p, t, x, new: _normal(new, mean_of(p, x), p.sigma_x),
        log_initial=lambda p, x: _normal(x, *first(p)),
        proposal=propose,
        linear_gaussian=linear,
    )


@checked(matrices=none | a_function("a function of p that returns (m0, P0, A, c, Q, H, d, R)"), dim=integer(1))
def linear_gaussian(matrices: Callable[[Any], tuple[Any, ...]] | None = None, *, dim: int = 1) -> StateSpaceModel:
    r"""Return a linear Gaussian model, whose likelihood is exact.

    .. math:: x_0 \sim N(m_0, P_0),\quad x_t = A x_{t-1} + c + N(0, Q),\quad y_t = H x_t + d + N(0, R).

    Parameters
    ----------
    matrices : callable, optional
        ``p -> (m0, P0, A, c, Q, H, d, R)`` in ``jax.numpy``, of one parameter value: ``p.rho`` is a scalar here. By default
        a stationary autoregression observed with noise, with parameters ``rho``, ``sigma_x`` and ``sigma_y``.
    dim : int
        Dimension of the state, if ``matrices`` is given.

    Returns
    -------
    StateSpaceModel
        Its proposal is the exact conditional distribution of a state.

    Raises
    ------
    ModelError
        If ``dim`` is given and ``matrices`` is not.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.state_space.linear_gaussian().n_normals
    1
    """
    if matrices is not None:
        return _vector_linear_gaussian(matrices, dim)
    if dim != 1:
        raise ModelError(f"dim={dim} needs matrices=: the default model has a scalar state")

    def stationary(p: Any) -> Any:
        return p.sigma_x / _numpy().sqrt(1 - p.rho**2)

    def scalar_matrices(p: Any) -> tuple[Any, ...]:
        return 0.0, stationary(p) ** 2, p.rho, 0.0, p.sigma_x**2, 1.0, 0.0, p.sigma_y**2

    return _seen_with_noise(
        lambda p: (0.0 * p.rho, stationary(p)), lambda p, x: p.rho * x, LinearGaussian(scalar_matrices)
    )


def _matrices_of(matrices: Callable[[Any], tuple[Any, ...]], dim: int, p: Any) -> list[Any]:
    """Return m0, c, d and P0, A, Q, H, R of every parameter value, ``(n_theta, …)``."""
    jnp = _numpy()

    def one(p: Any) -> tuple[Any, ...]:
        m0, p0, a, c, q, h, d, r = (jnp.asarray(part, dtype=jnp.float64) for part in matrices(p))
        square = [jnp.atleast_2d(part) for part in (p0, a, q, h, r)]
        _check_matrices(square, dim)
        return jnp.broadcast_to(m0, dim), jnp.broadcast_to(c, dim), jnp.atleast_1d(d), *square

    return p.each(one)


def _check_matrices(square: list[Any], dim: int) -> None:
    """Refuse matrices of other shapes, such as a vector of variances, which JAX would repeat in every row."""
    k = square[3].shape[0]
    for name, part, shape in zip(
        ["P0", "A", "Q", "H", "R"], square, [(dim, dim)] * 3 + [(k, dim), (k, k)], strict=True
    ):
        if part.shape != shape:
            raise ModelError(f"linear_gaussian: {name} has shape {part.shape}; expected {shape}")


def _times(matrix: Any, x: Any) -> Any:
    """Return matrices ``(n_theta, i, j)`` times vectors ``(n_theta, n_x, j)``."""
    return _numpy().einsum("nij,nxj->nxi", matrix, x)


def _density(x: Any, mean: Any, cov: Any) -> Any:
    """Return the log density of normal vectors."""
    import jax

    jnp = _numpy()
    factor = jnp.linalg.cholesky(cov)
    white = jax.scipy.linalg.solve_triangular(factor, jnp.swapaxes(x - mean, 1, 2), lower=True)
    log_det = jnp.sum(jnp.log(jnp.diagonal(factor, axis1=1, axis2=2)), axis=1)[:, None]
    return -0.5 * jnp.sum(white**2, axis=1) - log_det - 0.5 * x.shape[-1] * LOG_2PI


def _vector_linear_gaussian(matrices: Callable[[Any], tuple[Any, ...]], dim: int) -> StateSpaceModel:
    """Return the model of given matrices, its states ``(n_theta, n_x, dim)``."""

    def each(p: Any) -> list[Any]:
        return _matrices_of(matrices, dim, p)

    def noise(cov: Any, z: Any) -> Any:
        return _times(_numpy().linalg.cholesky(cov), z[..., None] if dim == 1 else z)

    def mean_of(p: Any, x: Any) -> Any:
        _, c, _, _, a, *_ = each(p)
        return _times(a, x) + c[:, None]

    def initial(p: Any, z: Any) -> Any:
        m0, _, _, p0, *_ = each(p)
        return m0[:, None] + noise(p0, z)

    def log_observation(p: Any, t: Any, x: Any, y: Any) -> Any:
        _, _, d, _, _, _, h, r = each(p)
        return _density(_numpy().atleast_1d(y) + 0 * d[:, None], _times(h, x) + d[:, None], r)

    def propose(p: Any, t: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        jnp = _numpy()
        m0, _, d, p0, _, q, h, r = each(p)
        mean, cov = (m0[:, None], p0) if x is None else (mean_of(p, x), q)
        hc = h @ cov
        gain = jnp.swapaxes(jnp.linalg.solve(hc @ jnp.swapaxes(h, 1, 2) + r, hc), 1, 2)
        mean = mean + _times(gain, jnp.atleast_1d(y) - _times(h, mean) - d[:, None])
        cov = cov - gain @ hc
        new = mean + noise(cov, z)
        return new, _density(new, mean, cov)

    return StateSpaceModel(
        initial=initial,
        transition=lambda p, t, x, z: mean_of(p, x) + noise(each(p)[5], z),
        log_observation=log_observation,
        n_normals=dim,
        log_transition=lambda p, t, x, new: _density(new, mean_of(p, x), each(p)[5]),
        log_initial=lambda p, x: _density(x, each(p)[0][:, None], each(p)[3]),
        proposal=propose,
        linear_gaussian=LinearGaussian(matrices),
    )


@checked(leverage=flag)
def stochastic_volatility(*, leverage: bool = False) -> StateSpaceModel:
    r"""Return the stochastic volatility model: an autoregression is the log variance of the observations.

    .. math:: x_0 \sim N\left(\mu, \frac{\sigma^2}{1-\rho^2}\right),\quad
        x_t = \mu + \rho(x_{t-1} - \mu) + \sigma\eta_t,\quad y_t = e^{x_t/2}\varepsilon_t.

    Parameters
    ----------
    leverage : bool
        Whether ε\ :sub:`t−1` and η\ :sub:`t` are correlated, with a fourth parameter ``phi``. A negative ``phi`` means
        that a loss raises the next volatility.

    Returns
    -------
    StateSpaceModel
        Parameters ``mu``, ``rho`` and ``sigma``. The proposal is the normal around the mode of the state
        given the row, with the scale of the transition. Log weights are then distances of a concave function from its tangent
        at its mode (Pitt & Shephard 1999), and bounded.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.state_space.stochastic_volatility(leverage=True).proposal is not None
    True
    """

    def moments(p: Any, x: Any) -> tuple[Any, Any]:
        mean = p.mu + p.rho * (x - p.mu)
        if not leverage:
            return mean, p.sigma
        jnp = _numpy()
        unknown = jnp.isnan(p.y_previous)
        shock = jnp.where(unknown, 0.0, p.y_previous) * jnp.exp(-0.5 * x)
        return mean + p.phi * p.sigma * shock, p.sigma * jnp.sqrt(jnp.where(unknown, 1.0, 1 - p.phi**2))

    def first(p: Any) -> tuple[Any, Any]:
        return p.mu, p.sigma / _numpy().sqrt(1 - p.rho**2)

    def transition(p: Any, t: Any, x: Any, z: Any) -> Any:
        mean, sd = moments(p, x)
        return mean + sd * z

    def propose(p: Any, t: Any, x: Any, y: Any, z: Any) -> tuple[Any, Any]:
        mean, sd = first(p) if x is None else moments(p, x)
        mode = _mode_of_log_variance(mean, sd, y)
        return mode + sd * z, -0.5 * z**2 - _numpy().log(sd) - 0.5 * LOG_2PI

    return StateSpaceModel(
        initial=lambda p, z: first(p)[0] + first(p)[1] * z,
        transition=transition,
        log_observation=lambda p, t, x, y: -0.5 * (x + y**2 * _numpy().exp(-x) + LOG_2PI),
        log_transition=lambda p, t, x, new: _normal(new, *moments(p, x)),
        log_initial=lambda p, x: _normal(x, *first(p)),
        proposal=propose,
    )


def _mode_of_log_variance(mean: Any, sd: Any, y: Any) -> Any:
    """Return the mode of −½((x − mean)/sd)² − ½(x + y²e^{−x}): c + W(½ sd² y² e^{−c}) with c = mean − ½ sd².

    Lambert's W is Winitzki's approximation, accurate to two per cent; any point near the mode suffices for a proposal.
    """
    jnp = _numpy()
    centre = mean - 0.5 * sd**2
    log_1 = jnp.log1p(jnp.minimum(0.5 * sd**2 * y**2 * jnp.exp(-centre), 1e300))
    return centre + log_1 * (1.0 - jnp.log1p(log_1) / (2.0 + log_1))


def theta_logistic() -> StateSpaceModel:
    r"""Return the theta-logistic model of a population's log size.

    .. math:: x_0 \sim N(0, 1),\quad x_t = x_{t-1} + \tau_0 - \tau_1 e^{\tau_2 x_{t-1}} + \sigma_x\eta_t,\quad
        y_t = x_t + \sigma_y\varepsilon_t.

    Returns
    -------
    StateSpaceModel
        Parameters ``tau0``, ``tau1``, ``tau2``, ``sigma_x`` and ``sigma_y``. Its proposal is the exact conditional
        distribution of a state.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.state_space.theta_logistic().n_normals
    1
    """
    return _seen_with_noise(lambda p: (0.0 * p.tau0, 1.0), lambda p, x: x + p.tau0 - p.tau1 * _numpy().exp(p.tau2 * x))


@checked(interval=number(above=0), steps=integer(1))
def lotka_volterra(*, interval: float = 1.0, steps: int = 10) -> StateSpaceModel:
    r"""Return the predator-prey equations of Lotka and Volterra with noise in the growth rates, observed with errors.

    .. math:: d\log u = (\alpha - \beta v)\,dt + \sigma\,dW_1,\quad d\log v = (\delta u - \gamma)\,dt + \sigma\,dW_2,

    by Euler steps between the rows. Rows ``(log u, log v)`` have errors of standard deviation ``sigma_y``; NaN entries are
    skipped.

    Parameters
    ----------
    interval : float
        Time between two rows.
    steps : int
        Euler steps between two rows. With one step the density of a transition is known, and states can be smoothed.

    Returns
    -------
    StateSpaceModel
        Parameters ``alpha``, ``beta``, ``gamma``, ``delta``, ``sigma``, ``sigma_y``, and the logs of both populations
        in the first row, ``prey`` and ``predators``, around which it starts with standard deviation ``sigma``.

    Examples
    --------
    >>> import ppl_backends as pb
    >>> pb.state_space.lotka_volterra(steps=5).n_normals
    10
    """
    dt = interval / steps

    def euler(p: Any, x: Any) -> Any:
        u, v = _numpy().exp(x[..., 0]), _numpy().exp(x[..., 1])
        return x + dt * _numpy().stack([p.alpha - p.beta * v, p.delta * u - p.gamma], axis=-1)

    def transition(p: Any, t: Any, x: Any, z: Any) -> Any:
        for step in range(steps):
            x = euler(p, x) + p.sigma[..., None] * np.sqrt(dt) * z[..., 2 * step : 2 * step + 2]
        return x

    def start(p: Any) -> Any:
        return _numpy().stack([p.prey, p.predators], axis=-1)

    def log_observation(p: Any, t: Any, x: Any, y: Any) -> Any:
        jnp = _numpy()
        seen = ~jnp.isnan(y)
        terms = _normal(jnp.where(seen, y, 0.0), jnp.where(seen, x, 0.0), p.sigma_y[..., None])
        return jnp.sum(jnp.where(seen, terms, 0.0), axis=-1)

    def density(new: Any, mean: Any, sd: Any) -> Any:
        return _numpy().sum(_normal(new, mean, sd[..., None]), axis=-1)

    return StateSpaceModel(
        initial=lambda p, z: start(p) + p.sigma[..., None] * z[..., :2],
        transition=transition,
        log_observation=log_observation,
        n_normals=2 * steps,
        log_transition=(lambda p, t, x, new: density(new, euler(p, x), p.sigma * np.sqrt(dt))) if steps == 1 else None,
        log_initial=lambda p, x: density(x, start(p), p.sigma),
    )
