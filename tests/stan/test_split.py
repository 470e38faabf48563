"""The split of Stan programs into prior and likelihood, on the shapes that programs come in.

Most tests ask stanc alone: what is taken for likelihood, that the prior-only text is a program with the same
parameters, and that ambiguous programs are refused with the statement and the way out.
"""

import numpy as np
import pytest

from ppl_backends.errors import ModelError
from ppl_backends.targets.stan.program import StanProgram
from ppl_backends.targets.stan.split.prior import changed_data, check_split
from ppl_backends.targets.stan.split.routes import find_split

pytest.importorskip("httpstan", reason="needs stanc, from the stan extra")

DATA = "data { int<lower=0> N; vector[N] y; vector[N] x; real<lower=0> prior_sd; }"
PARAMETERS = "parameters { real a; real b; real<lower=0> sigma; }"
PRIOR = "a ~ normal(0, prior_sd); b ~ normal(0, 1); sigma ~ exponential(1);"


def whole(model, *, data=DATA, parameters=PARAMETERS, functions="", transformed_data="", transformed="", quantities=""):
    """Return a program from its parts."""
    blocks = [f"functions {{ {functions} }}", data, f"transformed data {{ {transformed_data} }}", parameters]
    blocks += [f"transformed parameters {{ {transformed} }}", f"model {{ {model} }}"]
    return "\n".join([*blocks, f"generated quantities {{ {quantities} }}"])


def split_of(code, likelihood_data=None, exclude=("no_observations",), data=None):
    return find_split(StanProgram("shape", code), data or {}, likelihood_data, exclude)


def squeeze(text):
    return "".join(text.split())


COUNT_DATA = """data {
  int<lower=0> N; array[N] int<lower=0> y; vector[N] x; matrix[N, 2] X; int<lower=0> G; array[N] int<lower=1> g;
}"""

# name: (program, observed data, statements that must go, statements that must stay)
SHAPES = {
    "vectorised": (whole(PRIOR + "y ~ normal(a + b * x, sigma);"), "y", ["y ~"], ["a ~", "b ~", "sigma ~"]),
    "loop": (
        whole(PRIOR + "for (n in 1:N) { real m = a + b * x[n]; y[n] ~ normal(m, sigma); }"),
        "y",
        ["y[n] ~", "real m", "for ("],
        ["a ~ normal(0, prior_sd)"],
    ),
    "increments": (
        whole("target += normal_lpdf(a | 0, prior_sd); target += normal_lupdf(y | a, sigma);"),
        "y",
        ["(y |"],
        ["normal_lpdf(a | 0, prior_sd)"],
    ),
    "one sum": (
        whole("target += normal_lpdf(a | 0, 1) + normal_lpdf(y | a, sigma) - normal_lccdf(0 | 0, prior_sd);"),
        "y",
        ["(y |"],
        ["target += normal_lpdf(a | 0, 1) - normal_lccdf(0 | 0, prior_sd);"],
    ),
    "sum of locals": (
        whole("real l = 0; l += normal_lpdf(a | 0, 1); for (n in 1:N) l += normal_lpdf(y[n] | a, 1); target += l;"),
        "y",
        ["y[n]"],
        ["l += normal_lpdf(a | 0, 1);", "target += l;"],
    ),
    "locals of their own": (
        whole("real p = normal_lpdf(a | 0, 1); real l = normal_lpdf(y | a, 1); target += p + l;"),
        "y",
        ["(y |"],
        ["p = normal_lpdf(a | 0, 1)", "real l = 0;"],
    ),
    "container of locals": (
        whole(PRIOR + "vector[N] l; for (n in 1:N) l[n] = normal_lpdf(y[n] | a, 1); target += sum(l);"),
        "y",
        ["sum(l)", "vector[N] l;"],
        ["a ~"],
    ),
    "reduce_sum": (
        whole(
            "a ~ normal(0, 1); target += reduce_sum(part_lupmf, y, 1, x, a);",
            data=COUNT_DATA,
            functions="real part_lpmf(array[] int s, int i, int j, vector x, real a)"
            "{ return poisson_log_lupmf(s | a * x[i:j]); }",
        ),
        "y",
        ["reduce_sum(part_lupmf, y"],
        ["a ~"],
    ),
    "reduce_sum of a plain function": (
        whole(
            "a ~ normal(0, 1); target += reduce_sum(part, y, 1, x, a);",
            data=COUNT_DATA,
            functions="real part(array[] int s, int i, int j, vector x, real a)"
            "{ return poisson_log_lpmf(s | a * x[i:j]); }",
        ),
        "y",
        ["reduce_sum(part, y"],
        ["a ~"],
    ),
    "transformed parameters that hold y": (
        whole(PRIOR + "r ~ normal(0, sigma);", transformed="vector[N] r = y - a - b * x;"),
        "x y",
        ["r ~", "vector[N] r"],
        ["sigma ~"],
    ),
    "copy of y": (
        whole(PRIOR + "z ~ normal(a, sigma);", transformed_data="vector[N] z = (y - mean(y)) / sd(y);"),
        "y",
        ["z ~"],
        ["sigma ~"],
    ),
    "copy by loop and function": (
        whole(
            PRIOR + "z ~ normal(a, sigma);",
            functions="real twice(real u) { return 2 * u; }",
            transformed_data="vector[N] z; for (n in 1:N) z[n] = twice(y[n]);",
        ),
        "y",
        ["z ~"],
        ["sigma ~"],
    ),
    "_lp function of data": (
        whole(
            PRIOR + "add_lp(y, a);",
            functions="void add_lp(vector y, real a) { y ~ normal(a, 1); }",
        ),
        "y",
        ["add_lp(y, a);"],
        ["sigma ~"],
    ),
    "_lp function of parameters": (
        whole(
            "real c = half_lp(a); y ~ normal(c, sigma); sigma ~ exponential(1);",
            functions="real half_lp(real u) { u ~ normal(0, 1); target += 0.5 * u; return u / 2; }",
        ),
        "y",
        ["y ~"],
        ["real c = half_lp(a);", "sigma ~"],
    ),
    "user density": (
        whole(
            "a ~ mine(prior_sd); y ~ mine(sigma);",
            functions="real mine_lpdf(real u, real s) { return -abs(u) / s - log(2 * s); }"
            "real mine_lpdf(vector u, real s) { return -sum(abs(u)) / s - rows(u) * log(2 * s); }",
        ),
        "y",
        ["y ~"],
        ["a ~ mine(prior_sd);"],
    ),
    "mixture": (
        whole(
            "theta ~ beta(2, 2); for (n in 1:N) target += log_sum_exp(log(theta) + normal_lpdf(y[n] | a, 1),"
            "log1m(theta) + normal_lpdf(y[n] | b, 1)); a ~ normal(0, 1);",
            parameters="parameters { real a; real b; real<lower=0, upper=1> theta; }",
        ),
        "y",
        ["log_sum_exp"],
        ["theta ~", "a ~"],
    ),
    "spike and slab": (
        whole("target += log_mix(0.5, normal_lpdf(a | 0, 1), normal_lpdf(a | 0, prior_sd)); y ~ normal(a, 1);"),
        "y",
        ["y ~"],
        ["log_mix"],
    ),
    "zero inflation": (
        whole(
            "theta ~ beta(1, 1); for (n in 1:N) { if (y[n] == 0) target += log_sum_exp(bernoulli_lpmf(1 | theta),"
            "bernoulli_lpmf(0 | theta) + poisson_lpmf(y[n] | 2)); "
            "else target += bernoulli_lpmf(0 | theta) + poisson_lpmf(y[n] | 2); }",
            data=COUNT_DATA,
            parameters="parameters { real<lower=0, upper=1> theta; }",
        ),
        "y",
        ["log_sum_exp", "poisson_lpmf", "if (", "for ("],
        ["theta ~ beta(1, 1);"],
    ),
    "ODE": (
        whole(
            PRIOR + "for (n in 1:N) y[n] ~ normal(z[n, 1], sigma);",
            data="data { int<lower=0> N; vector[N] y; array[N] real ts; real<lower=0> prior_sd; }",
            functions="vector f(real t, vector z, real a) { return -a * z; }",
            transformed="array[N] vector[1] z = ode_rk45(f, [1.0]', 0, ts, a);",
        ),
        "y",
        ["y[n] ~", "ode_rk45(f, [1.0]"],
        ["a ~", "vector f("],
    ),
    "conditions": (
        whole(
            "if (N > 3) { a ~ normal(0, 1); } else { a ~ normal(0, 2); } for (n in 1:N)"
            "if (x[n] > 0) y[n] ~ normal(a, 1); else target += normal_lccdf(y[n] | a, 1);"
        ),
        "y",
        ["y[n] ~", "lccdf"],
        ["a ~ normal(0, 1)", "else", "a ~ normal(0, 2)"],
    ),
    "glm": (
        whole(
            "b ~ normal(0, 1); a ~ normal(0, 1); y ~ poisson_log_glm(X, a, b);",
            data=COUNT_DATA,
            parameters="parameters { real a; vector[2] b; }",
        ),
        "y",
        ["glm"],
        ["b ~"],
    ),
    "truncated": (
        whole("a ~ normal(0, 1) T[-prior_sd, prior_sd]; for (n in 1:N) y[n] ~ normal(a, sigma) T[0, ];"),
        "y",
        ["y[n] ~", "for ("],
        ["a ~ normal(0, 1) T[-prior_sd, prior_sd];"],
    ),
    "Jacobian": (
        whole("target += log(sigma); log(sigma) ~ normal(0, 1); y ~ normal(a, sigma);"),
        "y",
        ["y ~"],
        ["target += log(sigma);", "log(sigma) ~"],
    ),
    "autoregression": (
        whole(PRIOR + "y[2:N] ~ normal(a + b * y[1:(N - 1)], sigma);"),
        "y",
        ["y[2"],
        ["a ~", "sigma ~"],
    ),
    "GARCH": (
        whole(
            PRIOR + "y ~ normal(a, h);",
            transformed="vector[N] h; h[1] = sigma; for (t in 2:N) h[t] = sqrt(sigma + b * square(y[t - 1] - a));",
        ),
        "y",
        ["y ~", "vector[N] h", "sqrt"],
        ["b ~"],
    ),
    "ARMA by residuals": (
        whole(
            PRIOR + "vector[N] e; e[1] = y[1] - a; for (t in 2:N) e[t] = y[t] - a - b * e[t - 1]; e ~ normal(0, sigma);"
        ),
        "y",
        ["e ~", "e[t]"],
        ["b ~"],
    ),
    "missing data": (
        whole(
            PRIOR + "w ~ normal(a, sigma);",
            data="data { int<lower=0> N; int<lower=0> M; vector[N] y; real prior_sd; array[N] int i; array[M] int j; }",
            parameters="parameters { real a; real b; real<lower=0> sigma; vector[M] y_mis; }",
            transformed="vector[N + M] w; w[i] = y; w[j] = y_mis;",
        ),
        "y",
        ["w ~"],
        ["sigma ~"],
    ),
    "measurement error": (
        whole(
            "z ~ normal(a, sigma); x ~ normal(z, prior_sd); y ~ normal(b * z, 1); a ~ normal(0, 1);",
            parameters="parameters { real a; real b; real<lower=0> sigma; vector[N] z; }",
        ),
        "x y",
        ["x ~", "y ~"],
        ["z ~ normal(a, sigma);"],
    ),
    "ordered": (
        whole(
            "c ~ normal(0, 5); for (n in 1:N) y[n] ~ ordered_logistic(a * x[n], c); a ~ normal(0, 1);",
            data=COUNT_DATA,
            parameters="parameters { real a; ordered[3] c; }",
        ),
        "y",
        ["ordered_logistic"],
        ["c ~"],
    ),
    "hierarchical": (
        whole(
            "u ~ normal(a, tau); tau ~ cauchy(0, 1); y ~ poisson_log(u[g]);",
            data=COUNT_DATA,
            parameters="parameters { real a; real<lower=0> tau; vector[G] u; }",
        ),
        "y",
        ["y ~"],
        ["u ~ normal(a, tau);"],
    ),
    "Gaussian process": (
        whole(
            "f ~ multi_normal_cholesky(rep_vector(0, N), L); y ~ normal(f, sigma); sigma ~ normal(0, prior_sd);",
            data="data { int<lower=0> N; vector[N] y; array[N] real x; real<lower=0> prior_sd; }",
            parameters="parameters { vector[N] f; real<lower=0> sigma; }",
            transformed="matrix[N, N] L = cholesky_decompose(add_diag(gp_exp_quad_cov(x, 1.0, sigma), 1e-9));",
        ),
        "y",
        ["y ~"],
        ["f ~", "cholesky_decompose"],
    ),
    "mixture by classes": (
        whole(
            PRIOR + "for (n in 1:N) { if (x[n] > 0) target += log(sigma) + normal_lpdf(y[n] | a, 1);"
            "else target += log1m(sigma) + normal_lpdf(y[n] | b, 1); }"
        ),
        "y",
        ["log(sigma)", "log1m(sigma)"],
        ["a ~"],
    ),
    "formula of outcomes": (
        whole("a ~ normal(0, 1); target += -0.5 * dot_self(y - a); y ~ normal(a, sigma);"),
        "y",
        ["dot_self", "y ~"],
        ["a ~"],
    ),
    "log_lik names the outcome": (
        whole(
            "a ~ normal(0, 1); target += -0.5 * dot_self(y - a);",
            quantities="vector[N] log_lik; for (n in 1:N) log_lik[n] = normal_lpdf(y[n] | a, 1);",
        ),
        "y",
        ["dot_self"],
        ["a ~"],
    ),
    "ICAR prior beside log_lik": (
        whole(
            "target += -0.5 * dot_self(u[g] - u[h]); y ~ poisson_log(u); sum(u) ~ normal(0, 0.001 * N);",
            data="data { int N; int E; array[N] int<lower=0> y; array[E] int g; array[E] int h; }",
            parameters="parameters { vector[N] u; }",
            quantities="vector[N] log_lik; for (n in 1:N) log_lik[n] = poisson_log_lpmf(y[n] | u[n]);",
        ),
        "y",
        ["y ~"],
        ["dot_self", "sum(u) ~"],
    ),
    "lprior": (
        whole(
            "target += lprior; target += normal_lpdf(y | a, sigma);",
            transformed="real lprior = 0; lprior += normal_lpdf(a | 0, 1); lprior += -0.5 * (b - prior_sd)^2;",
        ),
        "y",
        ["(y |"],
        ["lprior +=", "target += lprior;"],
    ),
    "while, profile and tuples": (
        whole(
            'profile("prior") { a ~ normal(0, 1); } int n = 1; while (n <= N) { tuple(real, real) m = (a, sigma);'
            "y[n] ~ normal(m.1, m.2); n += 1; }"
        ),
        "y",
        ["y[n] ~", "while", "n += 1"],
        ['profile("prior")', "a ~"],
    ),
    "loop over a container": (
        whole(PRIOR + "for (v in y) v ~ normal(a, sigma); for (v in y) for (w in x) target += -v * w * a;"),
        "y",
        ["v ~", "for (", "v * w"],
        ["a ~"],
    ),
    "constraints in declarations": (
        whole(
            "a ~ normal(s[1], r[1, 1]); b ~ normal(q, 1); y ~ normal(a, 1);",
            transformed="vector<lower=0>[2] s; array[2] vector<lower=0, upper=9>[1] r; s[1] = sigma; r[1, 1] = b;"
            "real<lower=0> q = 2 + sigma;",
        ),
        "y",
        ["y ~"],
        ["vector<lower=0>[2] s;", "s[1] = sigma;", "r[1, 1] = b;", "real<lower=0> q = 2 + sigma;"],
    ),
    "truncation by data": (
        whole(
            "a ~ normal(b, sigma) T[, prior_sd]; b ~ normal(0, 1); y ~ normal(a, 1);",
            parameters="parameters { real b; real<lower=0> sigma; real<upper=prior_sd> a; }",
        ),
        "y",
        ["y ~"],
        ["a ~ normal(b, sigma) T["],
    ),
    "count observed": (
        whole("a ~ normal(0, 1); M ~ poisson_log(a);", data="data { int<lower=0> M; real prior_sd; }"),
        "M",
        ["M ~"],
        ["a ~"],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_likelihood_statements_go_and_the_prior_stays(name):
    code, observed, gone, kept = SHAPES[name]
    split = split_of(code)
    assert split.route == ("lprior" if name == "lprior" else "derived")
    assert split.likelihood_data == tuple(observed.split())
    model = squeeze(split.prior_program)
    for text in gone:
        assert squeeze(text) not in model, split.prior_program
    for text in kept:
        assert squeeze(text) in model, split.prior_program
    prior = StanProgram("prior", split.prior_program)
    assert prior.info["parameters"] == StanProgram("shape", code).info["parameters"]
    assert prior.info["inputs"] == StanProgram("shape", code).info["inputs"]


AMBIGUOUS = {
    "prior that uses the outcome": (whole("a ~ normal(0, sd(y)); y ~ normal(a, sigma);"), "a ~ normal(0, sd(y))"),
    "formula of unnamed data": (whole("a ~ normal(0, 1); target += -0.5 * dot_self(y - a);"), "dot_self(y - a)"),
    "formula split from its count": (
        whole("target += -N * log(sigma); y ~ normal(a, sigma);"),
        "target += -N * log(sigma);",
    ),
    "formula for each observation": (
        whole("for (n in 1:N) { target += -log(sigma); } y ~ normal(a, sigma);"),
        "target += -log(sigma);",
    ),
    "standardised by data": (
        whole("(a - prior_sd) / prior_sd ~ normal(0, 1); y ~ normal(a, sigma);"),
        "(a - prior_sd) / prior_sd ~ normal(0, 1);",
    ),
    "marginalised with its prior": (
        whole("target += log_sum_exp(normal_lpdf(a | 0, 1) + normal_lpdf(y | a, 1), -1);"),
        "log_sum_exp(",
    ),
    "_lp function of both": (
        whole(
            "both_lp(y, a);",
            functions="void both_lp(vector y, real a) { a ~ normal(0, 1); y ~ normal(a, 1); }",
        ),
        "both_lp(y, a);",
    ),
    "_lp function that returns": (
        whole(
            "a ~ normal(0, 1); real c = seen_lp(y, a); b ~ normal(c, 1);",
            functions="real seen_lp(vector y, real a) { y ~ normal(a, 1); return a; }",
        ),
        "seen_lp(y, a)",
    ),
    "density of a parameter that hides one of data": (
        whole(
            "a ~ seen(x); y ~ normal(a, sigma);",
            functions="real seen_lpdf(real a, vector x) { return normal_lpdf(x | a, 1) + normal_lpdf(a | 0, 1); }",
        ),
        "a ~ seen(x);",
    ),
    "ones for each observation": (
        whole("for (n in 1:N) { y[n] ~ normal(a, 1); 1 ~ bernoulli(inv_logit(b)); }"),
        "1 ~ bernoulli(inv_logit(b));",
    ),
    "sum with an extra formula": (
        whole("target += normal_lpdf(y | a, sigma) + log(sigma);"),
        "+ log(sigma)",
    ),
    "outcome by index": (
        whole(
            "target += log_p[y[1]];",
            data="data { int N; array[N] int y; }",
            parameters="parameters { vector[3] log_p; }",
        ),
        "log_p[y[1]]",
    ),
}


@pytest.mark.parametrize("name", AMBIGUOUS)
def test_ambiguous_programs_are_refused_with_the_statement(name):
    code, statement = AMBIGUOUS[name]
    with pytest.raises(ModelError) as refusal:
        split_of(code)
    assert statement in str(refusal.value)
    assert (
        "likelihood_data=" in str(refusal.value)
        or "separate" in str(refusal.value)
        or "model block" in str(refusal.value)
    )
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("name", "told", "gone", "kept"),
    [
        ("formula of unnamed data", ["y"], "dot_self", "a ~"),
        ("formula split from its count", ["y", "N"], "log(sigma)", "model"),
        ("formula for each observation", ["y", "N"], "log(sigma)", "model"),
        ("standardised by data", ["y"], "y ~", "(a - prior_sd) / prior_sd ~"),
        ("prior that uses the outcome", ["y"], "sd(y)", "model"),
        ("outcome by index", ["y"], "log_p[y", "model"),
        ("marginalised with its prior", ["y"], "log_sum_exp", "model"),
    ],
)
def test_likelihood_data_settles_it(name, told, gone, kept):
    split = split_of(AMBIGUOUS[name][0], likelihood_data=told)
    program = squeeze(split.prior_program)
    assert squeeze(gone) not in program
    assert squeeze(kept) in program


def test_refusals_of_whole_programs():
    with pytest.raises(ModelError, match="no statement has data as its outcome"):
        split_of(whole(PRIOR))
    # The advice to start from Laplace is that of a run from the prior, which adds it; other callers have no start.
    with pytest.raises(ModelError, match=r"parameter m depend on observed data .*, so its prior cannot be told apart$"):
        split_of(whole("y ~ pareto(m, 2);", parameters="parameters { real<lower=0, upper=min(y)> m; }"))
    with pytest.raises(ModelError, match="names 'nothing', which is not a data variable"):
        split_of(SHAPES["loop"][0], likelihood_data=["nothing"])


def test_data_flag_comes_first():
    data = "data { int<lower=0> N; vector[N] y; vector[N] x; real<lower=0> prior_sd; int prior_only; }"
    code = whole(PRIOR + "if (!prior_only) y ~ normal(a, sigma);", data=data)
    split = find_split(StanProgram("flag", code), {"N": 1, "y": [0.0], "prior_only": 0})
    assert (split.route, split.prior_program, split.likelihood_data) == ("prior_only", None, ("y",))
    assert split.prior_data == {"N": 1, "y": [0.0], "prior_only": 1}


@pytest.mark.parametrize(
    "name", ["vectorised", "loop", "increments", "mixture", "glm", "truncated", "hierarchical", "ordered"]
)
def test_data_without_observations(name):
    code = SHAPES[name][0]
    data = {"N": 3, "y": [1, 2, 3], "x": [0.1, 0.2, 0.3], "X": np.ones((3, 2)), "prior_sd": 2.0, "G": 2, "g": [1, 2, 1]}
    data = {key: data[key] for key in StanProgram("shape", code).info["inputs"]}
    split = split_of(code, exclude=(), data=data)
    assert (split.route, split.prior_program) == ("no_observations", None)
    assert split.prior_data["N"] == 0
    shapes = {"y": (0,), "x": (0,), "X": (0, 2), "g": (0,), "G": (), "prior_sd": ()}
    assert all(np.shape(split.prior_data[key]) == shapes[key] for key in data if key != "N")


@pytest.mark.parametrize(
    "name",
    [
        "copy of y",
        "measurement error",
        "Gaussian process",
        "ICAR prior beside log_lik",
        "formula of outcomes",
        "conditions",
    ],
)
def test_no_empty_data_where_more_than_the_likelihood_would_go(name):
    assert split_of(SHAPES[name][0], exclude=(), data={}).route == "derived"


def test_no_empty_data_where_the_count_is_bounded_below():
    bounded = SHAPES["vectorised"][0].replace("int<lower=0> N", "int<lower=1> N")
    assert split_of(bounded, exclude=()).route == "derived"


def test_only_what_is_needed_is_kept():
    """Dead locals go, in loops and conditions too; a jump stays with the loop it belongs to."""
    code = whole(
        "real s = 0; for (k in 1:3) { if (k == 2) { continue; } s += k; } vector[N] m;"
        "for (n in 1:N) { if (n > 9) break; m[n] = a; } b ~ normal(s, 1); y ~ normal(m, 1); print(m);"
    )
    program = squeeze(split_of(code).prior_program)
    assert squeeze("for (k in 1:3) { if (k == 2) { continue; } s += k; } b ~ normal(s, 1);") in program
    assert "m[n]" not in program
    assert "break" not in program


def test_includes_and_comments(tmp_path):
    (tmp_path / "prior.stan").write_text("a ~ normal(0, 1); // y ~ normal(9, 9);\n")
    code = whole('\n#include "prior.stan"\n /* b ~ */ y ~ normal(a, sigma); // a "quote\n')
    program = StanProgram("included", code, include_paths=(str(tmp_path),))
    split = find_split(program, {}, exclude=["no_observations"])
    assert squeeze("model { a ~ normal(0, 1); }") in squeeze(split.prior_program)


def test_changed_data_keeps_types_and_bounds():
    changed = changed_data({"y": [0, 1, 1, 0], "n": 4, "z": [3.0, 3.0]}, ["y", "n", "z"])
    assert changed["y"].tolist() == [0, 1, 0, 1]
    assert (changed["n"], changed["z"]) == (4, [3.0, 3.0])
    assert changed_data({"n": 4}, ["n"]) is None


def test_check_split_finds_wrong_splits():
    points = np.linspace(-1, 1, 5)[:, None]

    def full(x):
        return -0.5 * x[:, 0] ** 2 - (x[:, 0] - 1) ** 2

    def full_changed(x):
        return -0.5 * x[:, 0] ** 2 - (x[:, 0] - 2) ** 2

    def prior(x):
        return -0.5 * x[:, 0] ** 2

    report = check_split(
        full,
        prior,
        full_changed,
        points,
        evaluate_prior_on_changed_data=prior,
        evaluate_log_lik=lambda x: full(x) - prior(x),
    )
    assert report.startswith("checked at 5 points")
    assert report.endswith("it equals sum(log_lik)")
    with pytest.raises(ModelError, match="prior part changes with the observed data"):
        check_split(full, full, full_changed, points, evaluate_prior_on_changed_data=full_changed)
    with pytest.raises(ModelError, match="does not depend on the data that count as observed"):
        check_split(full, prior, full, points)
    with pytest.raises(ModelError, match="zero or undefined where the joint density is not"):
        check_split(full, lambda x: np.full(len(x), np.nan), None, points)


@pytest.mark.parametrize("y", [([1.0, 2.0], [0.5, 1.0, 3.0]), {"1": [1.0, 2.0], "2": [0.5, 1.0, 3.0]}])
def test_tuples_of_arrays_of_different_lengths_are_observed_data(y):
    code = whole(
        "a ~ normal(0, 1); y.1 ~ normal(a, 1); y.2 ~ normal(a, 1);",
        data="data { tuple(array[2] real, array[3] real) y; }",
        parameters="parameters { real a; }",
    )
    split = split_of(code, data={"y": y}, exclude=())
    assert (split.route, split.likelihood_data) == ("derived", ("y",))
    assert changed_data({"y": y}, ["y"]) is None


def test_an_array_of_tuples_is_not_emptied():
    code = whole(
        "a ~ normal(0, 1); for (n in 1:N) y[n].2 ~ normal(a, 1);",
        data="data { int N; array[N] tuple(int, vector[3]) y; }",
        parameters="parameters { real a; }",
    )
    split = split_of(code, data={"N": 2, "y": [(1, [1.0, 2.0, 3.0]), (2, [0.0, 1.0, 2.0])]}, exclude=())
    assert (split.route, split.likelihood_data) == ("derived", ("y",))


@pytest.mark.parametrize(
    "bounds", ["lower=l", "upper=l", "lower=l, upper=1", "lower=a", "offset=a, multiplier=l", "lower=-l"]
)
def test_bounds_are_variables_with_names_of_one_letter(bounds):
    code = whole(
        "a ~ normal(0, 1); b ~ normal(0, 1); y ~ normal(b, 1);",
        data="data { int<lower=0> N; vector[N] y; real l; }",
        parameters=f"parameters {{ real a; real<{bounds}> b; }}",
    )
    assert split_of(code).likelihood_data == ("y",)
