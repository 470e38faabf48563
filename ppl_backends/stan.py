"""Results in CmdStan's form: ``stan_variables()``, draws by column, and CSV files that Stan's tools read.

The files have CmdStan's comment header and its flat column names (``beta.1``, the first index fastest).
``cmdstanpy.from_csv``, ``cmdstanr::read_cmdstan_csv`` and ``rstan::read_stan_csv`` read them, so R's posterior and loo
can use them. The header of draws that HMC did not make says ``algorithm = fixed_param``, as CmdStan's does for draws
without a metric.
"""

from __future__ import annotations

import itertools
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ppl_backends.errors import ModelError
from ppl_backends.options import checked, path
from ppl_backends.results.inference_data import group, group_names, is_inference_data

__all__ = ["StanFit"]

LOG_LIK = "log_lik"
POINTWISE = ("log_likelihood", "posterior_predictive", "predictions")
CSV_DIGITS = 17


class StanFit:
    """Give draws of any method of this package the methods of ``cmdstanpy.CmdStanMCMC``.

    Parameters
    ----------
    idata : arviz.InferenceData or xarray.DataTree
        A result of a Stan program or of any other model.
    name : str
        Name of the model, used in file names.

    Attributes
    ----------
    chains, num_draws_sampling : int
    column_names : tuple of str
        ``lp__``, ``accept_stat__``, and CmdStan's flat names of the elements of every variable.

    Raises
    ------
    ModelError
        If ``idata`` has no posterior.

    Examples
    --------
    >>> import numpy as np
    >>> import ppl_backends as pb
    >>> target = pb.FunctionTarget(2, lambda x: (-0.5 * (x**2).sum(1), -x))
    >>> fit = pb.stan.StanFit(pb.sample_mcmc(target, draws=10, chains=2, tune=10, random_seed=1, progressbar=False))
    >>> {name: draws.shape for name, draws in fit.stan_variables().items()}
    {'x': (20, 2)}
    >>> fit.draws().shape, fit.column_names
    ((10, 2, 4), ('lp__', 'accept_stat__', 'x.1', 'x.2'))
    """

    def __init__(self, idata: Any, *, name: str = "model") -> None:
        if not is_inference_data(idata) or "posterior" not in group_names(idata):
            raise ModelError(f"idata is of type {type(idata).__name__}: expected a result with a posterior")
        self.idata, self.name = idata, re.sub(r"\W", "_", name)
        posterior = group(idata, "posterior")
        self.chains, self.num_draws_sampling = posterior.sizes["chain"], posterior.sizes["draw"]
        self._values = {str(key): each.transpose("chain", "draw", ...).values for key, each in posterior.items()}
        self._values |= _pointwise(idata)
        self._diagnostics = _diagnostics(idata, (self.chains, self.num_draws_sampling))
        flat = [column for key, value in self._values.items() for column in flat_names(key, value.shape[2:])]
        self.column_names: tuple[str, ...] = (*self._diagnostics, *flat)

    def stan_variable(self, var: str) -> NDArray[Any]:
        """Return the draws of ``var`` ``(chains·draws, *shape)``, one chain after the other."""
        if var not in self._values:
            raise ModelError(f"unknown variable {var!r}; known are {', '.join(self._values)}")
        return np.concatenate(self._values[var], axis=0)

    def stan_variables(self) -> dict[str, NDArray[Any]]:
        """Return the draws of all variables: name → ``(chains·draws, *shape)``."""
        return {name: self.stan_variable(name) for name in self._values}

    def method_variables(self) -> dict[str, NDArray[Any]]:
        """Return ``lp__`` and ``accept_stat__``, ``(draws, chains)`` each; zero and one if the method has none."""
        return {name: value.T for name, value in self._diagnostics.items()}

    def draws(self, *, concat_chains: bool = False) -> NDArray[Any]:
        """Return all columns ``(draws, chains, columns)``; with ``concat_chains`` ``(chains·draws, columns)``."""
        shape = (self.chains, self.num_draws_sampling)
        parts = [value[..., None] for value in self._diagnostics.values()]
        parts += [columns_of(value).reshape(*shape, -1) for value in self._values.values()]
        stacked = np.concatenate([np.asarray(part, dtype=np.float64) for part in parts], axis=-1)
        return stacked.reshape(-1, stacked.shape[-1]) if concat_chains else stacked.swapaxes(0, 1)

    def draws_pd(self, vars: Sequence[str] | str | None = None) -> Any:
        """Return a data frame of the columns of ``vars``, or of all, with CmdStanPy's names (``beta[1]``)."""
        import pandas as pd

        table = pd.DataFrame(self.draws(concat_chains=True), columns=[_bracketed(each) for each in self.column_names])
        if vars is None:
            return table
        wanted = [vars] if isinstance(vars, str) else list(vars)
        kept = {name: [each for each in table if each == name or each.startswith(f"{name}[")] for name in wanted}
        for name, columns in kept.items():
            if not columns:
                known = ", ".join([*self._diagnostics, *self._values])
                raise ModelError(f"unknown variable {name!r}; known are {known}")
        return table[[column for columns in kept.values() for column in columns]]

    @checked(dir=path)
    def save_csvfiles(self, dir: str | os.PathLike = ".") -> list[Path]:
        """Write one CSV file in CmdStan's format per chain, and return the paths.

        Parameters
        ----------
        dir : path
            Folder, created if it does not exist. Files are called ``name_1.csv``, and so on.

        Returns
        -------
        list of pathlib.Path

        Raises
        ------
        ModelError
            If a variable has a name that a CSV header cannot hold.

        Examples
        --------
        >>> import tempfile
        >>> import ppl_backends as pb
        >>> target = pb.FunctionTarget(1, lambda x: (-0.5 * (x**2).sum(1), -x))
        >>> idata = pb.sample_mcmc(target, draws=10, chains=2, tune=10, random_seed=1, progressbar=False)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     [file.name for file in pb.stan.StanFit(idata).save_csvfiles(folder)]
        ['model_1.csv', 'model_2.csv']
        """
        folder = Path(dir)
        folder.mkdir(parents=True, exist_ok=True)
        draws, paths = self.draws(), []
        for chain in range(self.chains):
            file = folder / f"{self.name}_{chain + 1}.csv"
            with file.open("w", encoding="utf-8") as out:
                out.write(_header(self.name, self.num_draws_sampling, chain + 1))
                out.write(",".join(self.column_names) + "\n")
                np.savetxt(out, draws[:, chain], delimiter=",", fmt=f"%.{CSV_DIGITS}g")
                out.write(_FOOTER)
            paths.append(file)
        return paths

    def __repr__(self) -> str:
        return f"StanFit({self.name!r}, chains={self.chains}, draws={self.num_draws_sampling})"


def flat_names(name: str, shape: tuple[int, ...]) -> list[str]:
    """Return CmdStan's names of the elements of a variable: ``beta.1``, the first index fastest."""
    if "," in name or "\n" in name:
        raise ModelError(f"variable {name!r}: a CSV header cannot hold a comma or a line break; rename it")
    reversed_indices = itertools.product(*(range(1, length + 1) for length in reversed(shape)))
    return [".".join([name, *map(str, reversed(index))]) for index in reversed_indices]


def columns_of(values: NDArray[Any]) -> NDArray[Any]:
    """Return draws ``(chain, draw, *shape)`` as ``(chain·draw, columns)``, the first index fastest."""
    rows = values.reshape(-1, *values.shape[2:])
    return np.stack([row.ravel(order="F") for row in rows]) if rows.ndim > 2 else rows.reshape(len(rows), -1)


def _bracketed(column: str) -> str:
    """Return CmdStanPy's name of a column, ``beta[1,2]``."""
    name, *index = re.split(r"\.(?=\d)", column)
    return f"{name}[{','.join(index)}]" if index else name


def _pointwise(idata: Any) -> dict[str, NDArray[Any]]:
    """Return log likelihoods as ``log_lik``, and predictions under their names, as R's loo and posterior expect."""
    found: dict[str, NDArray[Any]] = {}
    for name in (each for each in POINTWISE if each in group_names(idata)):
        data = group(idata, name)
        for key, each in data.items():
            alone = LOG_LIK if len(data.data_vars) == 1 else f"{LOG_LIK}_{key}"
            column = alone if name == "log_likelihood" else str(key)
            found[column] = each.transpose("chain", "draw", ...).values
    return found


def _diagnostics(idata: Any, shape: tuple[int, int]) -> dict[str, NDArray[Any]]:
    """Return ``lp__`` and ``accept_stat__`` ``(chain, draw)``; zero and one if the method has no such figure."""
    stats = group(idata, "sample_stats") if "sample_stats" in group_names(idata) else {}
    found = {}
    for column, name, default in (("lp__", "lp", 0.0), ("accept_stat__", "acceptance_rate", 1.0)):
        known = name in stats and stats[name].dims == ("chain", "draw")
        found[column] = np.asarray(stats[name].values, dtype=np.float64) if known else np.full(shape, default)
    return found


def _header(name: str, draws: int, chain: int) -> str:
    """Return CmdStan's comment header for draws of another program."""
    lines = [
        "stan_version_major = 2",
        "stan_version_minor = 35",
        "stan_version_patch = 0",
        f"model = {name}_model",
        "method = sample (Default)",
        "  sample",
        f"    num_samples = {draws}",
        "    num_warmup = 1000 (Default)",  # as CmdStan writes for fixed_param, which has no warm-up
        "    save_warmup = false (Default)",
        "    thin = 1 (Default)",
        "    adapt",
        "      engaged = false",
        "    algorithm = fixed_param",
        "    num_chains = 1 (Default)",
        f"id = {chain}",
        "data",
        "  file =  (Default)",
        "init = 2 (Default)",
        "random",
        "  seed = 1",
        "output",
        f"  file = {name}_{chain}.csv",
        "  diagnostic_file =  (Default)",
        "  refresh = 100 (Default)",
    ]
    return "".join(f"# {line}\n" for line in lines)


_FOOTER = (
    "# \n#  Elapsed Time: 0 seconds (Warm-up)\n#                0 seconds (Sampling)\n"
    "#                0 seconds (Total)\n# \n"
)
