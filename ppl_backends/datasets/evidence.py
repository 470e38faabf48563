"""Reference evidences of posteriors, read from ``evidences.json``, and the rules for that file.

>>> from ppl_backends.datasets import reference_evidence
>>> known = reference_evidence("plasma-logit_gaussian")
>>> known.status, round(known.log_evidence, 2)
('verified', -18.21)
"""

from __future__ import annotations

import difflib
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from importlib.resources import files
from typing import Any

from scipy import stats

from ppl_backends.errors import ModelError

__all__ = [
    "EvidenceEstimate",
    "ReferenceEvidence",
    "data_digest",
    "evidence_failures",
    "program_digest",
    "reference_evidence",
    "reference_evidence_names",
    "validate_reference_evidences",
]

SCHEMA = 1
STATUSES = ("exact", "verified", "provisional", "improper")
SOURCES = ("ours", "others", "exact")
LARGEST_Z = 4.0
_ROUNDING = 1e-9  # relative error of an exact value
_DIGITS = 64


@dataclass(frozen=True)
class EvidenceEstimate:
    """One method's log evidence of a posterior.

    Attributes
    ----------
    method : str
        Short description.
    by : {"ours", "others", "exact"}
        Origin of the software; a closed form is exact.
    software, version : str
        The package, and its version.
    log_evidence, log_evidence_se : float
    log_evidence_df : float or None
        Degrees of freedom of the standard error; None if it is normal, or zero.
    seed : int or None
    command : str
        Command that computes the number.
    seconds : float
        CPU seconds.
    z : float or None
        Distance from the reference in combined standard errors; None for the reference itself.
    """

    method: str
    by: str
    software: str
    version: str
    log_evidence: float
    log_evidence_se: float
    log_evidence_df: float | None
    seed: int | None
    command: str
    seconds: float
    z: float | None = None


@dataclass(frozen=True)
class ReferenceEvidence:
    """The log evidence of one posterior, and its sources.

    Attributes
    ----------
    name : str
        Posterior's name: data and model, as in posteriordb.
    family : str
    dim : int
        Number of unconstrained coordinates.
    status : {"exact", "verified", "provisional", "improper"}
        ``"exact"``: a closed form or a one-dimensional integral. ``"verified"``: two methods of this package and one of
        others' software agree within four combined standard errors. ``"provisional"``: one of these is missing.
        ``"improper"``: the prior does not integrate, so that the evidence is known up to a constant only.
    log_evidence : float or None
        Log integral of the density as written, with its Jacobian and all constants. None if it was not computed.
    log_evidence_se, log_evidence_df : float or None
    log_prior_normalizer : float or None
        Log integral of the prior as written, 0 for normalised ones; None if it is not known.
    program : str
        Location of the program, or the density in words.
    program_digest, data_digest : str
        SHA-256 of :func:`program_digest` and :func:`data_digest`.
    data : str
        Location of the data.
    estimate : EvidenceEstimate or None
        The estimate that gives this value.
    cross_checks : tuple of EvidenceEstimate
    note : str
    """

    name: str
    family: str
    dim: int
    status: str
    log_evidence: float | None
    log_evidence_se: float | None
    log_evidence_df: float | None
    log_prior_normalizer: float | None
    program: str
    program_digest: str
    data: str
    data_digest: str
    estimate: EvidenceEstimate | None
    cross_checks: tuple[EvidenceEstimate, ...]
    note: str = ""

    def z(self, log_evidence: float, log_evidence_se: float = 0.0) -> float:
        """Return how many combined standard errors an estimate is above this reference.

        Parameters
        ----------
        log_evidence, log_evidence_se : float

        Returns
        -------
        float

        Raises
        ------
        ModelError
            If this posterior has no evidence.

        Examples
        --------
        >>> from ppl_backends.datasets import reference_evidence
        >>> round(reference_evidence("funnel-10").z(-0.19, 0.02), 1)
        -9.5
        """
        if self.log_evidence is None:
            raise ModelError(f"{self.name} has no evidence: {self.note}")
        error = math.hypot(self.log_evidence_se or 0.0, log_evidence_se)
        difference = log_evidence - self.log_evidence
        return difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Return the interval of a level, by Student's t.

        Parameters
        ----------
        level : float

        Returns
        -------
        tuple of float

        Raises
        ------
        ModelError
            If this posterior has no evidence, or the level is not between 0 and 1.

        Examples
        --------
        >>> from ppl_backends.datasets import reference_evidence
        >>> reference_evidence("funnel-10").interval()
        (0.0, 0.0)
        """
        if self.log_evidence is None:
            raise ModelError(f"{self.name} has no evidence: {self.note}")
        if not 0 < level < 1:
            raise ModelError(f"level={level!r}: a level is between 0 and 1, such as 0.95")
        half = float(stats.t.ppf(0.5 + level / 2, self.log_evidence_df or math.inf)) * (self.log_evidence_se or 0.0)
        return self.log_evidence - half, self.log_evidence + half


def reference_evidence(name: str) -> ReferenceEvidence:
    """Return the reference evidence of a posterior.

    Parameters
    ----------
    name : str
        A name from :func:`reference_evidence_names`.

    Returns
    -------
    ReferenceEvidence

    Raises
    ------
    ModelError
        If there is none of this name; the message lists the nearest names.

    References
    ----------
    .. [1] M. Magnusson et al. (2025). posteriordb: testing, benchmarking and developing Bayesian inference algorithms.
       AISTATS.

    Examples
    --------
    >>> from ppl_backends.datasets import reference_evidence
    >>> reference_evidence("horse_kicks-gamma_poisson").status
    'exact'
    """
    known = _entries()
    if name not in known:
        near = difflib.get_close_matches(str(name), known, n=3, cutoff=0.5) or sorted(known)[:3]
        raise ModelError(
            f"no reference evidence of {name!r}; the nearest names are {', '.join(map(repr, near))}, and "
            "datasets.reference_evidence_names() lists all"
        )
    return known[name]


def reference_evidence_names(family: str | None = None, status: str | None = None) -> tuple[str, ...]:
    """Return the names of posteriors with a reference evidence, in the file's order.

    Parameters
    ----------
    family : str, optional
        Only names of one family, such as ``"posteriordb"``.
    status : {"exact", "verified", "provisional", "improper"}, optional
        Only names of one status.

    Returns
    -------
    tuple of str

    Raises
    ------
    ModelError
        If there is no such family or status.

    Examples
    --------
    >>> from ppl_backends.datasets import reference_evidence_names
    >>> reference_evidence_names(family="g-and-k")
    ('g_and_k_100-uniform',)
    """
    known = _entries().values()
    families = dict.fromkeys(one.family for one in known)
    if family is not None and family not in families:
        raise ModelError(f"family={family!r}: choose one of {', '.join(map(repr, families))}")
    if status is not None and status not in STATUSES:
        raise ModelError(f"status={status!r}: choose one of {', '.join(map(repr, STATUSES))}")
    return tuple(one.name for one in known if family in (None, one.family) and status in (None, one.status))


def evidence_failures() -> tuple[dict[str, Any], ...]:
    """Return cases in which a common method gives a wrong evidence, with the right one.

    Returns
    -------
    tuple of dict
        ``name`` of the posterior, ``method``, ``software``, ``log_evidence`` and ``log_evidence_se`` as the method
        reports them, ``flagged`` (whether it warns), ``right``, ``why`` and ``command``.

    Examples
    --------
    >>> from ppl_backends.datasets import evidence_failures
    >>> sorted(evidence_failures()[0])[:3]
    ['command', 'flagged', 'log_evidence']
    """
    return tuple(_document()["failures"])


def program_digest(text: str) -> str:
    r"""Return the SHA-256 of a program: its text with line ends of one kind and no white space at the end of a line.

    Parameters
    ----------
    text : str

    Returns
    -------
    str

    Examples
    --------
    >>> from ppl_backends.datasets import program_digest
    >>> program_digest("model { }  \r\n") == program_digest("model { }")
    True
    """
    lines = [line.rstrip() for line in text.replace("\r\n", "\n").replace("\r", "\n").split("\n")]
    return hashlib.sha256("\n".join(lines).strip("\n").encode()).hexdigest()


def data_digest(data: Mapping[str, Any]) -> str:
    """Return the SHA-256 of data in a canonical form: JSON with sorted keys, no spaces, and whole numbers without a point.

    Parameters
    ----------
    data : dict
        Numbers, text, lists and dicts.

    Returns
    -------
    str

    Examples
    --------
    >>> from ppl_backends.datasets import data_digest
    >>> data_digest({"N": 2, "y": [1.0, 2.5]}) == data_digest({"y": [1, 2.5], "N": 2.0})
    True
    """
    text = json.dumps(_canonical(data), sort_keys=True, separators=(",", ":"), allow_nan=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _canonical(value: Any) -> Any:
    """Return a value with whole numbers as integers."""
    if isinstance(value, Mapping):
        return {str(key): _canonical(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(one) for one in value]
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def validate_reference_evidences(document: Mapping[str, Any] | None = None) -> tuple[str, ...]:
    """Return the faults of a file of reference evidences, one line each; empty if there are none.

    Every entry must have all fields with their types, digests of 64 hexadecimal digits, a command for each number, and ``z``
    that follow from the values; ``"exact"`` needs a closed form, ``"verified"`` two methods of ours and one of others, all
    within four combined standard errors.

    Parameters
    ----------
    document : dict, optional
        The parsed file; by default the package's.

    Returns
    -------
    tuple of str

    Examples
    --------
    >>> from ppl_backends.datasets import validate_reference_evidences
    >>> validate_reference_evidences()
    ()
    """
    document = _document() if document is None else document
    faults = []
    if document.get("schema") != SCHEMA:
        faults.append(f"schema is {document.get('schema')!r}, not {SCHEMA}")
    faults += [f"{key} is missing" for key in ("convention", "entries", "failures") if key not in document]
    if faults:
        return tuple(faults)
    names = [entry.get("name") for entry in document["entries"]]
    faults += [f"{name}: twice" for name in sorted({str(one) for one in names if names.count(one) > 1})]
    for entry in document["entries"]:
        faults += [f"{entry.get('name')}: {fault}" for fault in _faults_of(entry)]
    for failure in document["failures"]:
        if failure.get("name") not in names:
            faults.append(f"failure of {failure.get('name')!r}: no such entry")
        wanted = ("name", "method", "software", "log_evidence", "log_evidence_se", "flagged", "right", "why")
        faults += [f"failure of {failure.get('name')!r}: no {key}" for key in wanted if key not in failure]
    return tuple(faults)


_TYPES: dict[str, tuple[type, ...]] = {
    "name": (str,),
    "family": (str,),
    "dim": (int,),
    "status": (str,),
    "log_evidence": (float, int, type(None)),
    "log_evidence_se": (float, int, type(None)),
    "log_evidence_df": (float, int, type(None)),
    "log_prior_normalizer": (float, int, type(None)),
    "program": (str,),
    "program_digest": (str,),
    "data": (str,),
    "data_digest": (str,),
    "estimate": (dict, type(None)),
    "cross_checks": (list,),
    "note": (str,),
}


def _faults_of(entry: Mapping[str, Any]) -> list[str]:
    """Return the faults of one entry."""
    wrong = [key for key, types in _TYPES.items() if key not in entry or not isinstance(entry[key], types)]
    wrong += sorted(set(entry) - set(_TYPES))
    if wrong:
        return [f"{key} is missing, unknown or of a wrong type" for key in wrong]
    faults = [
        f"{key} is not 64 hexadecimal digits"
        for key in ("program_digest", "data_digest")
        if len(entry[key]) != _DIGITS or set(entry[key]) - set("0123456789abcdef")
    ]
    if entry["status"] not in STATUSES:
        faults.append(f"status {entry['status']!r} is none of {', '.join(STATUSES)}")
    if entry["log_evidence"] is None:
        return faults + ([] if entry["status"] == "improper" and entry["note"] else ["no evidence, and no note why"])
    estimates = [entry["estimate"] or {}, *entry["cross_checks"]]
    for one in estimates:
        faults += _faults_of_estimate(one)
    return faults or _faults_of_agreement(entry)


def _faults_of_estimate(one: Mapping[str, Any]) -> list[str]:
    """Return the faults of one method's entry."""
    wanted = {field.name for field in fields(EvidenceEstimate)}
    if set(one) != wanted:
        return [f"{one.get('method')}: fields are not those of EvidenceEstimate"]
    faults = [f"{one['method']}: no {key}" for key in ("method", "software", "version", "command") if not one[key]]
    if one["by"] not in SOURCES:
        faults.append(f"{one['method']}: by is none of {', '.join(SOURCES)}")
    if not math.isfinite(one["log_evidence"]) or not one["log_evidence_se"] >= 0:
        faults.append(f"{one['method']}: value or standard error is not finite")
    return faults


def _faults_of_agreement(entry: Mapping[str, Any]) -> list[str]:
    """Return contradictions between the values, the z and the status of an entry."""
    faults, chosen, checks = [], entry["estimate"], entry["cross_checks"]
    for key in ("log_evidence", "log_evidence_se", "log_evidence_df"):
        if chosen[key] != entry[key]:
            faults.append(f"{key} is not that of its method")
    for one in checks:
        z = combined_z(one, entry)
        if one["z"] is None or not math.isclose(z, one["z"], rel_tol=1e-3, abs_tol=5e-3):
            faults.append(f"{one['method']}: z is {one['z']}, and its values give {z:.2f}")
        elif abs(z) > LARGEST_Z and entry["status"] != "provisional":
            faults.append(f"{one['method']}: {z:.1f} combined standard errors off, and not provisional")
    whose = [one["by"] for one in (chosen, *checks)]
    if entry["status"] == "exact" and chosen["by"] != "exact":
        faults.append("exact, and no closed form")
    if entry["status"] == "verified" and (whose.count("ours") < 2 or not set(whose) & {"others", "exact"}):
        faults.append("verified, and not by two methods of ours and one of others")
    return faults


def combined_z(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """Return the difference of two log evidences in combined standard errors, which are no smaller than rounding."""
    difference = one["log_evidence"] - other["log_evidence"]
    rounding = _ROUNDING * max(1.0, abs(other["log_evidence"]))
    return difference / math.hypot(one["log_evidence_se"], other["log_evidence_se"], rounding)


@cache
def _document() -> dict[str, Any]:
    """Return the parsed file."""
    return json.loads((files("ppl_backends.datasets") / "evidences.json").read_text())


@cache
def _entries() -> dict[str, ReferenceEvidence]:
    """Return the entries by name."""
    return {entry["name"]: _read(entry) for entry in _document()["entries"]}


def _read(entry: Mapping[str, Any]) -> ReferenceEvidence:
    """Return an entry as a record."""
    estimates: Sequence[Mapping[str, Any]] = entry["cross_checks"]
    chosen = entry["estimate"]
    return ReferenceEvidence(
        **{
            **entry,
            "estimate": None if chosen is None else EvidenceEstimate(**chosen),
            "cross_checks": tuple(EvidenceEstimate(**one) for one in estimates),
        }
    )
