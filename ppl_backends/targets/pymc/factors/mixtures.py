"""Sites that are mixtures of normals: a log-sum-exp in the graph nominates them, and their values confirm it.

Values of a site alone are not sufficient: a spike of width 10⁻⁶ lies between all points that could be evaluated. The
graph contains the logs of the components one by one, and each parabola in the predictor gives a location and a width.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.special import logsumexp

from ppl_backends.numerics.gaussian import LOG_2PI
from ppl_backends.targets.factors.families import NormalMixture
from ppl_backends.targets.factors.recognise import FAR, NEAR, Recognised, Written, agrees
from ppl_backends.targets.protocol import Array
from ppl_backends.targets.pymc.factors.graph import BatchedGraph
from ppl_backends.targets.pymc.factors.terms import Geometry, SiteTerm, row_products

_FAR_OUT = 1e8  # where the curvature of a component is first computed
_MOST = 20  # components
_STANDARD = np.array([-3.0, -1.0, -0.3, 0.0, 0.5, 1.5])  # points around each component at which values are compared


def normal_mixture(term: SiteTerm, x: Array, geometry: Geometry) -> Recognised | None:
    """Return the mixture of normals that each site of a term is, or None; predictors have unit length."""
    alone = term.grouping is not None and np.array_equal(term.grouping.site_of_term, np.arange(term.n_sites))
    if not alone or not term.log_sums:
        return None
    length = np.sqrt(row_products(geometry.design, geometry.design))
    length = np.where(length > 0, length, 1.0)
    for exponents, axis in term.log_sums:

        def parts(s: Array, exponents: BatchedGraph = exponents, axis: int = axis) -> Array:
            """Return the exponents ``(k, n, components)`` at predictors ``(k, n)`` of unit length."""
            [value] = exponents(term.settings(s * length, geometry), term.hyper(x))
            return np.moveaxis(value, axis + 1, -1).reshape(len(s), -1, value.shape[axis + 1])

        found = _components(parts, term.n_sites)
        if found is None:
            continue
        log_weights, means, sds = found
        total = logsumexp(log_weights, axis=1)
        weights = np.exp(log_weights - total[:, None])
        if not np.all(weights > 0):
            continue
        family = NormalMixture(weights, means, sds)
        constant = np.where(np.abs(total) < 1e-11, 0.0, total)
        known = Recognised(family, 1.0 / length, np.zeros(term.n_sites), constant, lambda written: None)
        written = Written(lambda s: term.log_site(s, x, geometry), term.n_sites, NEAR)
        around = np.concatenate([(means + z * sds).T for z in _STANDARD]) * length
        if all(agrees(known, nodes, written.at(nodes)) for nodes in (NEAR, FAR, around)):
            return known
    return None


@np.errstate(all="ignore")
def _components(parts: Callable[[Array], Array], n: int) -> tuple[Array, Array, Array] | None:
    """Return log weights, means and standard deviations ``(n, k)`` of exponents that are parabolas, else None."""
    far = parts(np.array([[-_FAR_OUT], [0.0], [_FAR_OUT]]) * np.ones(n))
    k = far.shape[2]
    if far.shape[1] != n or not 2 <= k <= _MOST or not np.isfinite(far).all():
        return None
    curvature = (2 * far[1] - far[0] - far[2]) / _FAR_OUT**2
    means, sds = (far[2] - far[0]) / (2 * _FAR_OUT) / curvature, 1 / np.sqrt(curvature)
    if not np.all(curvature > 0):
        return None
    log_weights = np.empty((n, k))
    for j in range(k):
        for _ in range(2):  # again one standard deviation to either side of the component, where nothing cancels
            centre, step = means[:, j], sds[:, j]
            left, middle, right = parts(np.stack([centre - step, centre, centre + step]))[:, :, j]
            precision, slope = 2 * middle - left - right, 0.5 * (right - left)
            means[:, j], sds[:, j] = centre + step * slope / precision, step / np.sqrt(precision)
            log_weights[:, j] = middle + 0.5 * slope**2 / precision + np.log(sds[:, j]) + 0.5 * LOG_2PI
    finite = np.isfinite(log_weights).all() and np.isfinite(means).all() and np.isfinite(sds).all()
    return (log_weights, means, sds) if finite else None
