"""The runs of a call to ``sample_smc``, the verdict on them, and other runs where it is bad.

Runs whose steps were too coarse are made once more with finer ones. Runs that lost a mode are made again from Gaussians at
all modes, and runs that entered a funnel late from their last particles (:mod:`~ppl_backends.smc.straightened`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ppl_backends.approximations.lost_mode import LostMode
from ppl_backends.approximations.missed_modes import find_missed_mode, with_missed_mode
from ppl_backends.importance.tails import with_tails
from ppl_backends.kernels.protocol import Kernel
from ppl_backends.kernels.table import make_kernel
from ppl_backends.smc.bridge_sampling import Sample, affordable_batches, bridge_evidence
from ppl_backends.smc.by_mode import (
    ModeEvidences,
    evidences_by_mode,
    modes_of_runs,
    runs_lack_a_mode,
    spread_over_modes,
)
from ppl_backends.smc.chains import TEMPERING, run_chains
from ppl_backends.smc.checkpoint import Checkpoint
from ppl_backends.smc.evidence import EvidenceEstimate
from ppl_backends.smc.health import (
    Figures,
    Verdict,
    agrees,
    figures_of,
    is_too_coarse,
    judge,
    may_replace,
    moves_mixed,
    shows_coarse_ladder,
    split_finished,
)
from ppl_backends.smc.jumps import DensityJumpsError
from ppl_backends.smc.lost_modes import find_lost_mode, find_lost_region, with_lost_mode
from ppl_backends.smc.necks import ShortSteps
from ppl_backends.smc.path import BridgePath, TemperingPath
from ppl_backends.smc.records import SMCResult
from ppl_backends.smc.results import evidence_attrs, prior_normalizer, with_prior_error
from ppl_backends.smc.sampler import Settings, last_particles, move_again, run_tempering
from ppl_backends.smc.short_steps import try_short_steps
from ppl_backends.smc.start_verdict import with_start
from ppl_backends.smc.straightened import (
    has_an_unused_bridge,
    is_strained,
    lacks_a_bridge,
    reasons_of_late_change,
    straightened_path,
)
from ppl_backends.targets.protocol import Array, Index


class Bridged(NamedTuple):
    """Figures of runs, the evidence of bridges from their last particles or None, and shares of modes if it is by mode."""

    figures: Figures
    evidence: EvidenceEstimate | None
    shares: Array | None


class Finished(NamedTuple):
    """Figures of all chains and their settings, a text about unfinished ones, and bridges if they were needed on the way."""

    figures: Figures
    settings: Settings
    unfinished: str
    bridged: Bridged | None = None


class Call(NamedTuple):
    """Arguments that all chains of a call share."""

    path: TemperingPath
    kernel: Kernel
    draws: int
    executor: Executor | None
    progressbar: bool

    def run_across_jumps(
        self,
        settings: Settings,
        generators: Sequence[np.random.Generator],
        again: Sequence[np.random.Generator],
        others: Sequence[np.random.Generator],
        checkpoint: Checkpoint | None,
    ) -> tuple[Call, Finished]:
        """Run all chains; if trajectories do not mix because the log density jumps, run ``others`` with the mixed kernel.

        Without generators of ``others``, jumps are not looked for. Return the call that was made, too.
        """
        try:
            return self, self.run_all(settings._replace(finds_jumps=bool(others)), generators, again, checkpoint)
        except DensityJumpsError:
            call = self._replace(kernel=make_kernel("mixed"))
            return call, call.run_all(settings, others, again, None)

    def run_all(
        self,
        settings: Settings,
        generators: Sequence[np.random.Generator],
        again: Sequence[np.random.Generator],
        checkpoint: Checkpoint | None,
    ) -> Finished:
        """Run all chains, and once more with finer steps if the first run was too coarse and there are generators.

        After a run whose ladder was fine, more moves of the last particles may be enough.
        """
        found, interrupted = self._run(settings, generators, checkpoint)
        runs, unfinished = split_finished(found, len(generators), interrupted)
        done, finer = Finished(figures_of(runs), settings, unfinished), settings.finer()
        if not again or unfinished or not is_too_coarse(done.figures):
            return done
        (rng,) = again[0].spawn(1)
        try:
            if (moved := self._moved_again(done, finer, rng)) is not None:
                return moved
            runs, interrupted = self._run(finer, again, None)
            if interrupted or not all(run.complete for run in runs):
                return done
            done = Finished(figures_of(runs), finer, unfinished)
            return (self._moved_again(done, finer, rng) or done) if is_too_coarse(done.figures) else done
        except KeyboardInterrupt:  # the earlier runs are kept
            return done

    def _moved_again(self, done: Finished, settings: Settings, rng: np.random.Generator) -> Finished | None:
        """Return runs on a fine ladder with further moves of particles in all modes; None if this is not enough."""
        runs = done.figures.runs
        if shows_coarse_ladder(done.figures) or any(run.stages[-1].moves is None for run in runs):
            return None
        labels = modes_of_runs(runs)
        if runs_lack_a_mode(runs, labels):
            return None
        if labels.any():
            runs = spread_over_modes(runs, labels, rng)
        make = partial(move_again, self.path, self.kernel, self.draws, **settings._asdict())
        moved, interrupted = self._run_chains([partial(make, run) for run in runs], None)
        if interrupted:
            raise KeyboardInterrupt
        bridged = self._bridged(figures_of(moved), settings, rng)
        if is_too_coarse(bridged.figures) or (labels.any() and bridged.shares is None):
            return None
        return done._replace(figures=bridged.figures, bridged=bridged)

    def _run(
        self, settings: Settings, generators: Sequence[np.random.Generator], checkpoint: Checkpoint | None
    ) -> tuple[list[SMCResult], bool]:
        make = partial(run_tempering, self.path, self.kernel, self.draws, **settings._asdict())
        return self._run_chains([partial(make, rng) for rng in generators], checkpoint)

    def _run_chains(
        self, chains: Sequence[Callable[..., SMCResult]], checkpoint: Checkpoint | None
    ) -> tuple[list[SMCResult], bool]:
        return run_chains(
            chains, shows=TEMPERING, executor=self.executor, checkpoint=checkpoint, progressbar=self.progressbar
        )

    def judge(
        self,
        done: Finished,
        bridge_rng: np.random.Generator,
        check_rng: np.random.Generator,
        *,
        earlier: ShortSteps | None = None,
    ) -> Outcome:
        """Return the verdict on the runs, with the evidences of both methods as attributes, and the figures of all trials.

        ``earlier`` is the effect of shorter steps on the runs that the path is from.
        """
        path, settings = self.path, done.settings
        moved_along = path.for_moves(self.kernel.uses_gradient, settings.metric)
        figures = done.figures._replace(evidence=with_prior_error(done.figures.evidence, path))
        bridge, shares, stopped = None, None, []
        try:
            bridged = done.bridged or self._bridged(figures, settings, bridge_rng)
            bridge, shares = bridged.evidence, bridged.shares
            figures = bridged.figures._replace(evidence=figures.evidence)
            short_steps = try_short_steps(moved_along, self.kernel, figures, check_rng, earlier)
            figures = figures._replace(short_steps=short_steps)
            figures = figures._replace(lost=self._lost_mode(figures, settings, check_rng))
        except KeyboardInterrupt:  # the runs are kept
            stopped = ["interrupted before the search for lost modes had ended: run again for a verdict"]
        runs = figures.runs
        prior = prior_normalizer(path, runs) if path.integral else None
        verdict = judge(
            figures,
            bridge,
            len_chain=settings.len_chain,
            replaceable=not settings.unbiased,
            prior_error=0.0 if prior is None else prior.standard_error,
            names=path.target.names,
            by_mode=shares is not None,
        )
        complete = all(run.complete for run in runs)
        if stopped:
            verdict = verdict._replace(reasons=[*verdict.reasons, *stopped], replaced="", interrupted=True)
        attrs: dict[str, Any] = evidence_attrs(figures.evidence, bridge) if complete else {}
        attrs |= {} if shares is None else {"mode_shares": shares}
        return Outcome(self, figures, with_start(verdict, path, check_rng), attrs, settings)

    def _bridged(self, figures: Figures, settings: Settings, rng: np.random.Generator) -> Bridged:
        """Return the bridges from the last particles, with figures of runs in which separated modes have their shares."""
        samples = last_particles(self.path, figures.runs)
        batches = affordable_batches(self._evaluations(figures) / len(figures.runs))
        found = None if settings.unbiased else _by_mode(self.path, samples, figures, rng, batches)
        if found is None:
            whole = bridge_evidence(samples, self.path.log_density, rng, batches) if samples else None
            return Bridged(figures, whole, None)
        parents = [found.resampled(k, rng) for k in range(len(figures.runs))]
        resampled = [_resampled(run, chosen) for run, chosen in zip(figures.runs, parents, strict=True)]
        variance = found.take(parents).variance_of_means
        return Bridged(figures_of(resampled, figures.evidence, variance), found.evidence, found.shares)

    def _evaluations(self, figures: Figures) -> float:
        """Return the number of evaluations that all moves made."""
        return self.draws * sum(stage.moves.gradients for run in figures.runs for stage in run.stages if stage.moves)

    def _lost_mode(self, figures: Figures, settings: Settings, rng: np.random.Generator) -> LostMode | None:
        """Return a mode that the runs lost, or that their weighted points miss if no particle was moved."""
        runs = figures.runs
        weighted = [run.weighted for run in runs if run.weighted is not None]
        if not all(run.complete for run in runs):
            return None
        if len(weighted) == len(runs):
            return self._missed_mode(weighted, rng)
        rows = -(-self.draws // (settings.len_chain or 1))
        lineages = np.concatenate([k * self.draws + run.lineage.ancestor for k, run in enumerate(runs)])
        log_evidence, evaluations = figures.evidence.log_evidence, self._evaluations(figures)
        lost = find_lost_mode(self.path, runs, log_evidence, rows, rng, evaluations, lineages)
        lost = find_lost_region(self.path, runs, log_evidence, rng, evaluations, lineages) if lost is None else lost
        return self._missed_mode(weighted, rng) if lost is None and weighted else lost

    def _missed_mode(self, weighted: Sequence[tuple[Array, Array]], rng: np.random.Generator) -> LostMode | None:
        """Return a narrow mode that draws of the start miss."""
        path = self.path
        points, log_weights = (np.concatenate(parts) for parts in zip(*weighted, strict=True))
        integral = 0.0 if path.integral is None else path.integral.log_integral  # draws are of the normalised prior

        def weigh(x: Array) -> Array:
            return path.evaluate(x, 1.0, False).increment + integral

        return find_missed_mode(path.target, path.approximation, points, log_weights + integral, weigh, self.draws, rng)


class Outcome(NamedTuple):
    """A call with the figures of its runs, the verdict on them, further attributes, and the settings that they had."""

    call: Call
    figures: Figures
    verdict: Verdict
    attrs: dict[str, Any]
    settings: Settings

    def checked_by_others(
        self, settings: Settings, generators: Sequence[Sequence[np.random.Generator]], of_judge: Sequence[Any]
    ) -> Outcome:
        """Return the outcome of other runs if these lost a mode, entered a funnel late, or their ladder was too coarse.

        Without ``generators`` no other runs are made.
        """
        if not generators:
            return self._doubted_if_late() if lacks_a_bridge(self.verdict, self.attrs) else self
        done = self
        if self.figures.lost is not None and self.call.path.draws_are_independent:
            done = done.or_along(done.path_from_all_modes, settings, generators[:2], of_judge)
        lacking = lacks_a_bridge(done.verdict, done.attrs)
        if lacking or has_an_unused_bridge(done.verdict, done.attrs):
            other = done.or_along(done.straightened_path, settings, generators[2:], of_judge)
            done = other if lacking else min(done, other, key=lambda each: each.verdict.evidence.standard_error)
        if done.settings.schedule is settings.schedule and is_strained(done.verdict, done.figures.evidence):
            path = done.call.path
            done = done.or_along(lambda: path, settings.finer(), generators[2:], of_judge)
        return done

    def _doubted_if_late(self) -> Outcome:
        """Return the outcome with reasons for distrust if the runs entered a funnel late on the path."""
        late = reasons_of_late_change(self.call.path, self.figures.runs)
        return self._replace(verdict=self.verdict._replace(reasons=[*self.verdict.reasons, *late]))

    def distrusted(self, reasons: Sequence[str]) -> Outcome:
        """Return the outcome with further reasons, which no bridge between particles answers."""
        if not reasons:
            return self
        return self._replace(verdict=self.verdict._replace(reasons=[*self.verdict.reasons, *reasons], replaced=""))

    def or_along(
        self,
        make_path: Callable[[], TemperingPath | None],
        settings: Settings,
        generators: Sequence[Sequence[np.random.Generator]],
        of_judge: Sequence[Any],
    ) -> Outcome:
        """Return the outcome of runs along another path; this one if there is none, or if they are interrupted."""
        try:
            path = make_path()
            if path is None:
                return self
            call = self.call._replace(path=path)
            done = call.run_all(settings, generators[0], generators[1], None)
        except KeyboardInterrupt:  # the earlier runs are kept
            return self
        if done.unfinished:
            return self
        return call.judge(done, *of_judge, earlier=self.figures.short_steps)

    def path_from_all_modes(self) -> BridgePath:
        """Return the path from Gaussians at the modes of the draws and at the lost one."""
        path, runs, lost = self.call.path, self.figures.runs, self.figures.lost
        assert lost is not None
        method = f"modes of a run from {path.origin}"
        if path.approximation is not None and all(run.weighted is not None for run in runs):
            start = with_missed_mode(path.approximation, lost).replaced(method=method)
        else:
            start = with_lost_mode(path.target, np.concatenate([run.x for run in runs]), lost, method)
        return BridgePath(path.target, start, with_tails(path.target, start))

    def straightened_path(self) -> BridgePath | None:
        """Return the path from the last particles in non-centred coordinates; None if no funnel appeared on the path."""
        return straightened_path(self.call.path, self.figures.runs)


def _by_mode(
    path: TemperingPath, samples: Sequence[Sample], figures: Figures, rng: np.random.Generator, batches: int
) -> ModeEvidences | None:
    """Return the evidences of separated modes, if particles are healthy in each and tempering does not contradict.

    If their evidence is below that of tempering, a mode may be lost. If it is above, a mode that grew late had too few
    lineages.
    """
    if not samples or not moves_mixed(figures, separated=True):
        return None
    found = evidences_by_mode(samples, path.log_density, rng, batches)
    if found is None or agrees(figures.evidence, found.evidence):
        return found
    above = found.evidence.log_evidence > figures.evidence.log_evidence
    return found if above and may_replace(figures.evidence, found.evidence) else None


def _resampled(run: SMCResult, parents: Index) -> SMCResult:
    """Return a run with other numbers of its last particles."""
    return replace(run, population=run.population.take(parents), lineage=run.lineage.resampled(parents))
