"""The file of reference evidences keeps its rules, its digests follow from the data, and its values from this package."""

import copy
import dataclasses
import json
from importlib.resources import files

import numpy as np
import pytest
from scipy import stats
from scipy.special import gammaln

import ppl_backends as pb
from ppl_backends.datasets import (
    data_digest,
    evidence_failures,
    load_binary_regression,
    load_finpines,
    program_digest,
    reference_evidence,
    reference_evidence_names,
    validate_reference_evidences,
)
from ppl_backends.errors import ModelError
from ppl_backends.results.inference_data import group
from ppl_backends.targets.factors import Logit, Probit


@pytest.fixture
def document():
    return json.loads((files("ppl_backends.datasets") / "evidences.json").read_text())


def entry_named(document, name):
    return next(one for one in document["entries"] if one["name"] == name)


def test_the_file_keeps_its_rules():
    assert validate_reference_evidences() == ()


def test_there_are_sixty_and_most_are_precise(document):
    sure = [one for one in document["entries"] if one["status"] in ("exact", "verified")]
    assert len(sure) >= 60
    assert np.mean([one["log_evidence_se"] <= 0.01 for one in sure]) >= 0.9


BROKEN = {
    "a wrong z": (lambda one: one["cross_checks"][0].update(z=0.77), "z is 0.77"),
    "another value": (
        lambda one: one.update(log_evidence=one["log_evidence"] + 1),
        "not that of its method",
    ),
    "no command": (lambda one: one["estimate"].update(command=""), "no command"),
    "one method": (lambda one: one.update(cross_checks=[]), "not by two methods"),
    "no digest": (lambda one: one.update(data_digest="0" * 63), "64 hexadecimal"),
    "a status of its own": (lambda one: one.update(status="good"), "status 'good'"),
    "a missing field": (lambda one: one.pop("dim"), "dim is missing"),
    "another field": (lambda one: one.update(remark=""), "remark is missing, unknown"),
    "exact without a closed form": (lambda one: one.update(status="exact"), "no closed form"),
    "no value": (lambda one: one.update(log_evidence=None), "no note why"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_rejected(document, fault):
    broken = copy.deepcopy(document)
    spoil, message = BROKEN[fault]
    spoil(entry_named(broken, "plasma-logit_gaussian"))
    found = validate_reference_evidences(broken)
    assert any("plasma-logit_gaussian" in line and message in line for line in found), found


def test_disagreement_is_rejected(document):
    one = entry_named(document, "plasma-logit_gaussian")
    check = one["cross_checks"][0]
    check["log_evidence"] += 10 * np.hypot(check["log_evidence_se"], one["log_evidence_se"])
    check["z"] = (check["log_evidence"] - one["log_evidence"]) / np.hypot(
        check["log_evidence_se"], one["log_evidence_se"]
    )
    assert any("combined standard errors off" in line for line in validate_reference_evidences(document))


def test_names_twice_and_failures_of_nothing_are_rejected(document):
    document["entries"].append(document["entries"][0])
    document["failures"].append({"name": "nothing"})
    found = "\n".join(validate_reference_evidences(document))
    assert "twice" in found
    assert "no such entry" in found
    assert validate_reference_evidences({"schema": 0})[0] == "schema is 0, not 1"


def test_data_of_the_package_have_the_digests_of_the_file():
    for name in reference_evidence_names("binary regression"):
        X, y, names, _ = load_binary_regression(name.partition("-")[0], scaling="raw")
        digest = data_digest({"X": X.tolist(), "y": y.tolist(), "names": list(names)})
        assert digest == reference_evidence(name).data_digest, name
    for name in reference_evidence_names("Cox process"):
        assert data_digest({"positions": load_finpines().tolist()}) == reference_evidence(name).data_digest


def test_programs_in_words_have_the_digests_of_the_file():
    known = [reference_evidence(name) for name in reference_evidence_names()]
    in_words = [one for one in known if one.family != "posteriordb"]
    assert all(program_digest(one.program) == one.program_digest for one in in_words)
    assert len({(one.program_digest, one.data_digest) for one in known}) == len(known)


def test_closed_forms_written_once_more():
    deaths = np.repeat([0, 1, 2, 3, 4], [109, 65, 22, 3, 1])  # λ ~ gamma(1, 1) integrates one death after the other
    sums = np.r_[0, np.cumsum(deaths)[:-1]]
    step = stats.nbinom(1 + sums, (1 + np.arange(200)) / (2 + np.arange(200))).logpmf(deaths).sum()
    assert reference_evidence("horse_kicks-gamma_poisson").log_evidence == pytest.approx(step)
    peas = np.array([315, 108, 101, 32])
    uniform = gammaln(4) + gammaln(peas.sum() + 1) - gammaln(peas.sum() + 4)  # all compositions are equally likely
    assert reference_evidence("peas-dirichlet_multinomial").log_evidence == pytest.approx(uniform)


@pytest.mark.parametrize("link", ["logit", "probit"])
def test_this_package_gives_the_value(link):
    X, y, *_ = load_binary_regression("plasma", scaling="gelman")
    sites = (Logit if link == "logit" else Probit)(y)
    target = pb.Factors(X, 0.0, sites, prior_mean=0.0, prior_precision=np.array([20.0, 5.0, 5.0]) ** -2)
    idata = pb.sample_importance(target, draws=1024, random_seed=3, progressbar=False)
    attrs = group(idata, "posterior").attrs
    known = reference_evidence(f"plasma-{link}_gaussian")
    assert abs(known.z(attrs["log_evidence"], attrs["log_evidence_se"])) < 4.5


def test_record():
    known = reference_evidence("plasma-logit_gaussian")
    low, high = known.interval()
    assert low < known.log_evidence < high
    assert known.z(known.log_evidence) == 0
    assert known.z(known.log_evidence + 2 * known.log_evidence_se) == pytest.approx(2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        known.log_evidence = 0.0
    with pytest.raises(ModelError, match=r"level=95: a level is between 0 and 1"):
        known.interval(95)
    assert reference_evidence("four_gaussians-1").z(0.1) == np.inf


def test_unknown_names_get_the_near_ones():
    with pytest.raises(
        ModelError, match=r"no reference evidence of 'pima-logit'; the nearest names are 'pima-"
    ) as caught:
        reference_evidence("pima-logit")
    assert "\n" not in str(caught.value)
    with pytest.raises(ModelError, match="choose one of"):
        reference_evidence_names("nothing")
    with pytest.raises(ModelError, match="choose one of"):
        reference_evidence_names(status="good")
    assert pb.datasets.reference_evidence is reference_evidence


def test_names_by_status():
    exact = reference_evidence_names(status="exact")
    assert all(reference_evidence(name).log_evidence_se == 0 for name in exact)
    assert set(exact) < set(reference_evidence_names())


def test_failures_have_the_right_answer():
    assert len(evidence_failures()) >= 8
    for failure in evidence_failures():
        known = reference_evidence(failure["name"])
        assert failure["right"] == pytest.approx(known.log_evidence, abs=0.01)
        assert abs(known.z(failure["log_evidence"], failure["log_evidence_se"])) > 4
