"""The evidences by name, and the choice of ``"auto"``. A new one needs one file, and one line here."""

from __future__ import annotations

from ppl_backends.errors import ModelError
from ppl_backends.model_search.evidences.base import Evidence
from ppl_backends.model_search.evidences.ep import EPEvidence
from ppl_backends.model_search.evidences.laplace import ImportanceEvidence, LaplaceEvidence
from ppl_backends.model_search.evidences.linear import LinearEvidence
from ppl_backends.model_search.forms import Form

EVIDENCES = ("exact", "ep", "laplace", "importance_laplace", "importance_ep")
MOST_ENUMERATED = 24  # candidates, whose 2^24 models take about 1.6 GB
_LONG = 60.0  # seconds
# Of EP: of a model, a column, a row and an entry of the design. Times of the first models would make the choice, and so the
# result of a seed, depend on the load of the machine.
_SECONDS_EP, _SECONDS_EP_COLUMN, _SECONDS_EP_ROW, _SECONDS_EP_ENTRY = 2e-3, 2.5e-4, 6e-7, 1.2e-7
_SECONDS_ROW, _SECONDS_PRODUCT = 1.2e-7, 1.2e-9  # of a row and a product of rows in Newton's method
_SECONDS_PIVOT = 1e-9
_SECONDS_SITE, _SECONDS_OTHER_SITE = 2e-8, 1e-7  # of a site at a point: compiled, and others


def make_evidence(name: str, form: Form, n_candidates: int, enumerated: bool, points: int) -> Evidence:
    """Return the evidence of that name; ``"auto"`` is exact if possible, else EP if it is affordable, else Laplace.

    Raises
    ------
    ModelError
        If the name does not apply to the model.
    """
    if form.linear is not None:
        if name not in ("auto", "exact"):
            raise ModelError(f"evidence={name!r}: with a g-prior the evidence is exact; use 'auto' or 'exact'")
        return LinearEvidence(*form.linear)
    assert form.regression is not None
    if name == "exact":
        raise ModelError("evidence='exact' is for family='gaussian'; use 'ep', 'laplace' or 'importance_laplace'")
    if name == "auto":
        affordable = enumerated and seconds_per_model("ep", form, n_candidates, points) * 2.0**n_candidates <= _LONG
        name = "ep" if affordable or form.regression.compiled is None else "laplace"
    if name == "ep":
        return EPEvidence(form.regression)
    if name == "importance_ep":
        return ImportanceEvidence(EPEvidence(form.regression), points)
    laplace = LaplaceEvidence(form.regression)
    return laplace if name == "laplace" else ImportanceEvidence(laplace, points)


def seconds_per_model(name: str, form: Form, n_candidates: int, points: int) -> float:
    """Return a rough run time for the evidence of a model with half the candidates, from the sizes alone."""
    k = 1 + n_candidates / 2
    if form.linear is not None:
        return 1e-6 + _SECONDS_PIVOT * k**3
    assert form.regression is not None
    n, compiled = form.regression.factors.n_sites, form.regression.compiled is not None
    ep = _SECONDS_EP + _SECONDS_EP_COLUMN * k + n * (_SECONDS_EP_ROW + _SECONDS_EP_ENTRY * k)
    fit = n * (_SECONDS_ROW + _SECONDS_PRODUCT * k**2) if compiled and name != "importance_ep" else ep
    if name.startswith("importance"):
        return fit + points * n * ((_SECONDS_SITE if compiled else _SECONDS_OTHER_SITE) + 1e-9 * k)
    return ep if name == "ep" else fit


def can_enumerate(name: str, form: Form, n_candidates: int, points: int) -> bool:
    """Return whether all models together take at most a minute."""
    return (
        n_candidates <= MOST_ENUMERATED
        and seconds_per_model(name, form, n_candidates, points) * 2.0**n_candidates <= _LONG
    )
