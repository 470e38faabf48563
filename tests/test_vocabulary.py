"""One word for one thing in all public signatures, and no archaic words in the prose."""

import inspect
import re
from pathlib import Path

import pytest

import ppl_backends as pb

ROOMS = (pb, pb.bambi, pb.pymc, pb.simuk, pb.steps, pb.gibbs, pb.mean_field, pb.orthants, pb.simulators)
# Other words for what has a name: the name.
NAMES = {
    "start": "initial (a distribution) or initvals (points)",
    "inits": "initvals",
    "init": "initial or initvals",
    "seed": "random_seed",
    "rng": "random_seed",
    "random_state": "random_seed",
    "n_chains": "chains",
    "n_samples": "draws",
    "samples": "draws",
    "num_samples": "draws",
    "warmup": "tune",
    "burnin": "tune",
    "alpha": "power",
    "temperature": "power",
    "exponent": "power",
    "target_acceptance": "target_accept",
    "n_jobs": "cores or executor",
    "n_cores": "cores",
    "workers": "executor",
    "progress": "progressbar",
    "verbose": "progressbar",
    "tol": "tolerance",
    "max_iter": "max_iterations",
}
# A graph, and an array of graphs, for a Markov chain of a simulator to begin with.
EXCEPTIONS = {("ERGM", "start")}
ARCHAIC = r"lest|whose turn|as the case may be|stands? in for|dear|dearer|forgets?|forgotten|thereof|whence|therein"
SAMPLERS = (pb.sample_smc, pb.sample_tempering, pb.sample_ibis, pb.sample_importance, pb.sample_mcmc, pb.sample_abc)
FITS = (pb.fit_laplace, pb.fit_ep, pb.fit_inla, pb.fit_vi)


def signatures():
    for room in ROOMS:
        for name in room.__all__:
            found = getattr(room, name)
            if callable(found) and not name.startswith("_"):
                yield name, inspect.signature(found).parameters


@pytest.mark.parametrize(
    ("name", "parameters"), list(signatures()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_options_have_their_one_name(name, parameters):
    others = {option: NAMES[option] for option in parameters if option in NAMES and (name, option) not in EXCEPTIONS}
    assert not others


@pytest.mark.parametrize("call", [*SAMPLERS, *FITS], ids=lambda call: call.__name__)
def test_the_model_comes_first_and_everything_else_has_a_name(call):
    first, *others = inspect.signature(call).parameters.values()
    assert first.name == "model"
    assert first.default is None
    assert all(each.kind in (each.KEYWORD_ONLY, each.VAR_KEYWORD) for each in others)
    assert {"data", "random_seed", "progressbar"} <= {each.name for each in others}


@pytest.mark.parametrize("call", SAMPLERS, ids=lambda call: call.__name__)
def test_samplers_count_draws_per_chain(call):
    assert {"draws", "chains"} <= set(inspect.signature(call).parameters)


@pytest.mark.parametrize(
    ("call", "families"),
    [(pb.fit_vi, {"diagonal", "low_rank", "dense"}), (pb.fit_gibbs_vi, {"diagonal", "dense", "isotropic"})],
    ids=["fit_vi", "fit_gibbs_vi"],
)
def test_gaussian_families_have_the_same_names_everywhere(call, families):
    accepted = {
        name for name in (*families, "full", "full_rank", "mean_field") if _accepts(call.options["family"], name)
    }
    assert accepted == families


def _accepts(option, value):
    try:
        option.check("family", value)
    except pb.errors.ModelError:
        return False
    return True


def test_prose_has_no_archaic_words():
    root = Path(__file__).parents[1]
    files = [root / "README.md", *root.glob("docs/**/*.md"), *root.glob("ppl_backends/**/*.py")]
    assert len(files) > 300
    found = [
        f"{file.relative_to(root)}: {match[0]}"
        for file in files
        if "_build" not in file.parts
        for match in re.finditer(rf"\b(?:{ARCHAIC})\b", file.read_text(), re.IGNORECASE)
    ]
    assert not found
