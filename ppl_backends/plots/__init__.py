"""Plots of runs with matplotlib; every function returns its axes."""

from ppl_backends.plots.abc import plot_abc_run
from ppl_backends.plots.sbc import plot_sbc
from ppl_backends.plots.selection import plot_inclusion
from ppl_backends.plots.sensitivity import plot_sensitivity
from ppl_backends.plots.smc import plot_ladder, plot_smc_run

__all__ = ["plot_abc_run", "plot_inclusion", "plot_ladder", "plot_sbc", "plot_sensitivity", "plot_smc_run"]
