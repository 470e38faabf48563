"""The command line: a demonstration, a report on the installation, and the samplers on Stan programs."""

from __future__ import annotations

import importlib.metadata
import math
import os
import platform
import shutil
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from ppl_backends.errors import ModelError, PPLBackendsWarning
from ppl_backends.files import check_writable, reason_of

app = typer.Typer(
    help="Posteriors and evidences of Stan programs, with error bars and verdicts, and a demonstration in PyMC.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
console = Console()

DEMO_MODEL = (
    "Model: logistic regression of diabetes on seven standardised predictors of 532 women (Pima), independent Cauchy priors "
    "of scale 10 for the intercept and 2.5 for the others."
)
DEMO_ERRORS = (
    "Laplace has no error bar, because the bias of its Gaussian is unknown. The picture shows the log evidence of each "
    "chain of tempering SMC. The table has the average of the chains, or bridge sampling from their last particles "
    "where that is more precise. So its standard error is smaller than the spread of the chains."
)
SUMMARY_ROWS = 60
GROUP_BYTES = 50_000  # most bytes that a group of a NetCDF file takes in addition to its numbers
REPORTED = ("ppl-backends", "pymc", "pytensor", "arviz", "jax", "numba", "numpy", "bridgestan", "cmdstanpy", "httpstan")

Program = Annotated[Path, typer.Argument(metavar="MODEL.stan", help="Stan program.", show_default=False)]
Data = Annotated[Path | None, typer.Argument(metavar="[DATA.json]", help="JSON file with the data, as for CmdStan.")]
Output = Annotated[Path | None, typer.Option("--output", "-o", help="NetCDF file to write.", show_default=False)]
Draws = Annotated[int, typer.Option(help="Draws per chain.", min=1)]
Chains = Annotated[int, typer.Option(help="Independent runs.", min=1)]
Seed = Annotated[int | None, typer.Option(help="Random seed.", min=0, show_default=False)]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress bars.")]


@contextmanager
def _one_line_errors(output: Path | None = None) -> Iterator[None]:
    """Print errors of the model or of files as one line and exit with code 1; print each warning as one line.

    Before anything runs, check that the result can be summarised and written to ``output``.
    """

    def show(message: Warning | str, category: type[Warning], *where: Any, **rest: Any) -> None:
        if issubclass(category, PPLBackendsWarning):
            typer.echo(f"warning: {message}", err=True)

    with warnings.catch_warnings():
        warnings.showwarning = show
        try:
            _check_finish(output)
            yield
        except BrokenPipeError:  # the reader has ended, as head does; Typer ends the program without a message
            raise
        except (ModelError, OSError, ImportError) as error:
            typer.echo(f"error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None


def _show_version(wanted: bool) -> None:
    """Print the version and exit if it is asked for."""
    if wanted:
        typer.echo(f"ppl-backends {importlib.metadata.version('ppl-backends')}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Run approximations and samplers on PyMC and Stan models from the command line."""


@app.command()
def demo(
    draws: Draws = 2000,
    seed: Seed = 1,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the picture and the NetCDF file.")
    ] = Path(),
    quiet: Quiet = False,
) -> None:
    """Run a logistic regression on the Pima data in PyMC: posterior and evidence by three methods."""
    from ppl_backends.demo import plot_posterior, run_demo

    with _one_line_errors():
        with _named_output(output):
            output.mkdir(parents=True, exist_ok=True)
        _check_finish(output / "pima_posterior.nc")
        console.print(DEMO_MODEL, highlight=False)
        answers, laplace, idata = run_demo(draws, seed, progressbar=not quiet)
        _print_summary(idata)
        table = Table("method", "accuracy", "log evidence", "standard error", "seconds")
        for answer in answers:
            se = "" if answer.standard_error != answer.standard_error else f"{answer.standard_error:.4f}"
            table.add_row(answer.method, answer.accuracy, f"{answer.log_evidence:.3f}", se, f"{answer.seconds:.1f}")
        console.print(table)
        console.print(DEMO_ERRORS, highlight=False)
        picture, file = output / "pima_posterior.png", output / "pima_posterior.nc"
        plot_posterior(idata, laplace, picture)
        _write(idata, file)
        console.print(f"wrote {picture} and {file}", highlight=False, markup=False)


@app.command()
def doctor() -> None:
    """Show the versions in use, and whether Stan programs can be compiled."""
    table = Table("component", "found")
    table.add_column("detail", overflow="fold")
    table.add_row("Python", "yes", f"{platform.python_version()} ({sys.executable})")
    for name in REPORTED:
        try:
            table.add_row(name, "yes", importlib.metadata.version(name))
        except importlib.metadata.PackageNotFoundError:
            table.add_row(name, "no", "not installed")
    from ppl_backends.targets.stan.toolchain import report

    for finding in report():
        table.add_row(f"Stan: {finding.name}", "yes" if finding.found else "no", finding.detail)
    console.print(table)


@app.command()
def laplace(
    model: Program,
    data: Data = None,
    output: Output = None,
    draws: Draws = 1000,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Fit a Gaussian at the mode of a Stan program's posterior."""
    with _on_program(model, data, output) as (pb, target, finish):
        approximation = pb.fit_laplace(target, random_seed=seed, progressbar=not quiet)
        finish(approximation.to_inference_data(draws=draws, random_seed=seed), kind="stats")


@app.command()
def ep(
    model: Program,
    data: Data = None,
    output: Output = None,
    draws: Draws = 1000,
    predictor: Annotated[
        str | None, typer.Option(help="Name of the quantity that is the linear predictor.", show_default=False)
    ] = None,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Run expectation propagation on a Stan program that has a linear predictor and log_lik."""
    with _on_program(model, data, output, predictor=predictor) as (pb, target, finish):
        approximation = pb.fit_ep(target, random_seed=seed, progressbar=not quiet)
        finish(approximation.to_inference_data(draws=draws, random_seed=seed), kind="stats")


@app.command()
def vi(
    model: Program,
    data: Data = None,
    output: Output = None,
    draws: Draws = 1000,
    family: Annotated[str, typer.Option(help="auto, diagonal, low_rank or dense.")] = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Fit the Gaussian with the highest evidence lower bound to a Stan program's posterior."""
    with _on_program(model, data, output) as (pb, target, finish):
        approximation = pb.fit_vi(target, family=family, random_seed=seed, progressbar=not quiet)
        finish(approximation.to_inference_data(draws=draws, random_seed=seed), kind="stats")


@app.command()
def importance(
    model: Program,
    data: Data = None,
    output: Output = None,
    draws: Draws = 2000,
    chains: Chains = 8,
    approximation: Annotated[str, typer.Option(help="What to sample from: auto, laplace, ep or vi.")] = "auto",
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Run importance sampling from a Gaussian approximation of a Stan program's posterior."""
    options: dict[str, Any] = {"draws": draws, "chains": chains, "random_seed": seed, "progressbar": not quiet}
    with _on_program(model, data, output) as (pb, target, finish):
        finish(pb.sample_importance(target, approximation=approximation, **options), kind="stats")


@app.command()
def smc(
    model: Program,
    data: Data = None,
    output: Output = None,
    draws: Draws = 2000,
    chains: Chains = 4,
    initial: Annotated[str, typer.Option(help="Where the particles start: prior, auto, laplace, ep or vi.")] = "prior",
    kernel: Annotated[
        str, typer.Option(help="How particles move: auto, hmc, mala, barker, mixed, independent or random_walk.")
    ] = "auto",
    cores: Annotated[int | None, typer.Option(help="Threads that evaluate the density.", min=1)] = None,
    checkpoint: Annotated[
        Path | None, typer.Option(help="File that saves the run; the same command continues it.", show_default=False)
    ] = None,
    seed: Seed = None,
    quiet: Quiet = False,
) -> None:
    """Run tempering sequential Monte Carlo on a Stan program's posterior."""
    options: dict[str, Any] = {"draws": draws, "chains": chains, "random_seed": seed, "progressbar": not quiet}
    options |= {"initial": initial, "kernel": kernel, "checkpoint": checkpoint}
    with _on_program(model, data, output, **({} if cores is None else {"cores": cores})) as (pb, target, finish):
        finish(pb.sample_smc(target, **options))


@contextmanager
def _on_program(model: Path, data: Path | None, output: Path | None, **options: Any) -> Iterator[tuple[Any, Any, Any]]:
    """Yield the package, the program as a target, and a function that prints and writes a result."""
    import ppl_backends as pb

    with _one_line_errors(output):
        for given in filter(None, (model, data)):
            if output is not None and output.resolve() == given.resolve():
                raise ModelError(f"--output {str(output)!r} is the file of the model or of the data; give another name")
        if model.suffix == ".py":
            raise ModelError(
                f"{str(model)!r} is a Python file, and this command runs Stan programs: in Python call "
                "ppl_backends.sample_smc(model), with a model of PyMC or Bambi"
            )
        target = pb.as_target(str(model), None if data is None else str(data), **options)
        yield pb, target, partial(_finish, output=output, target=target)


def _check_finish(output: Path | None) -> None:
    """Check before the run that ArviZ is installed and that the file can be written; raise ModelError otherwise."""
    import arviz  # noqa: F401

    if output is not None:
        with _named_output(output):
            check_writable(output)


@contextmanager
def _named_output(output: Path) -> Iterator[None]:
    """Turn errors of the file system into an error that names the option."""
    try:
        yield
    except OSError as error:
        raise ModelError(f"--output {str(output)!r} cannot be written: {reason_of(error)}") from None


def _finish(idata: Any, output: Path | None, target: Any, kind: str = "all") -> None:
    """Print the summary of the program's parameters and the evidence, and write the file.

    ``kind="stats"`` leaves out R-hat, which compares chains: independent and resampled draws have none.
    """
    from ppl_backends.results.inference_data import group, is_before_posterior

    if is_before_posterior(group(idata, "posterior").attrs):
        typer.echo("nothing is printed or written, because the run did not reach the posterior", err=True)
        raise typer.Exit(130)
    attrs = group(idata, "posterior").attrs
    name, label = ("elbo", "lower bound of the log evidence") if "elbo" in attrs else ("log_evidence", "log evidence")
    if not math.isfinite(float(attrs.get(name, float("nan")))):
        raise ModelError(
            f"{target.label}: the {label} is not finite, so nothing is printed or written; see the warning above"
        )
    names = [name for name in target.parameter_names if name in group(idata, "posterior")]
    try:
        _print_summary(idata, names or None, kind)
        _print_evidence(attrs, name, label)
        sys.stdout.flush()
    except BrokenPipeError:  # the file is for another reader
        if output is not None:
            _write(idata, output)
        raise
    if output is not None:
        _write(idata, output)
        console.print(f"wrote {output}", highlight=False, markup=False, soft_wrap=True)


def _print_evidence(attrs: Any, name: str, label: str) -> None:
    """Print the log evidence or its bound, and that under the normalised prior where they differ."""
    from ppl_backends.results.inference_data import normalised_evidence_error

    evidence = f"{label} {float(attrs[name]):.3f}"
    if f"{name}_se" in attrs:
        evidence += f", standard error {float(attrs[f'{name}_se']):.4f}"
    typer.echo(f"{evidence} ({attrs['accuracy']})")
    if "log_prior_normalizer_note" in attrs:
        less = float(attrs[name]) - float(attrs["log_prior_normalizer"])
        error = normalised_evidence_error(attrs, name)
        known = f", standard error {error:.4f}" if error == error else ""
        typer.echo(f"under the normalised prior {less:.3f}{known}: compare models by this")


def _print_summary(idata: Any, names: list[str] | None = None, summary_kind: str = "all") -> None:
    """Print the first rows of a summary of the variables ``names`` (default: all).

    Draws are particles, resampled or independent. They are no Markov chain, so ArviZ's effective sample sizes, which
    come from autocorrelations within a chain, do not apply.
    """
    import arviz as az

    summary = az.summary(idata, var_names=names, kind=summary_kind)
    summary = summary[[column for column in summary if not column.startswith(("ess_", "mcse_"))]]
    typer.echo(summary.head(SUMMARY_ROWS).to_string())
    if len(summary) > SUMMARY_ROWS:
        typer.echo(f"... and {len(summary) - SUMMARY_ROWS} rows more")


def _write(idata: Any, path: Path) -> None:
    """Write a NetCDF file completely, or keep the existing file.

    HDF5 ends the process if the disk is full, so this function checks the free space first.
    """
    from ppl_backends.results.inference_data import group, group_names

    names = group_names(idata)
    needed = GROUP_BYTES * len(names) + sum(group(idata, name).nbytes for name in names)
    free = shutil.disk_usage(path.parent).free
    if needed > free:
        raise ModelError(f"--output {str(path)!r} needs {needed / 1e6:.1f} MB, and {free / 1e6:.1f} MB are free there")
    part = path.with_name(f"{path.name}.part")
    try:
        idata.to_netcdf(str(part))
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
