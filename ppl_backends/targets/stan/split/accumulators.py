"""Variables of a Stan program that only collect what is added to the target, such as brms's ``lprior``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ppl_backends.targets.stan.split.mir import Node, summands, walk

__all__ = ["added", "find_accumulators"]


def find_accumulators(log_prob: list[Any]) -> frozenset[str]:
    """Real variables whose every use is to be added to, or to be added to the target or to another of their kind."""
    names = {
        dict(n[1:4])["decl_id"] for n in walk(log_prob) if n[0] == "Decl" and n[3] == ["decl_type", ["Sized", "SReal"]]
    }
    while True:
        linear, reaching = dict.fromkeys(names, 0), set()
        for node in walk(log_prob):
            target = _accumulated(node, names)
            if target is None:
                continue
            for part in [summand for term in added(node, target) for summand in summands(term)]:
                if part[0] == "Var" and part[1] in names:
                    linear[part[1]] += 1
                    reaching.add(part[1])
            if target:
                linear[target] += _is_running_sum(node)
        uses = [node[1] for node in walk(log_prob) if node[0] == "Var"]
        kept = {name for name in names if name in reaching and uses.count(name) == linear[name]}
        if kept == names:
            return frozenset(names)
        names = kept


def _accumulated(node: Node, names: Iterable[str]) -> str | None:
    """What a statement adds to: ``""`` the target, the name of an accumulator, or None."""
    if node[0] in ("TargetPE", "JacobianPE"):
        return ""
    if node[0] == "Assignment" and node[1][1] == [] and node[1][0][0] == "LVariable" and node[1][0][1] in names:
        return str(node[1][0][1])
    return None


def _is_running_sum(node: Node) -> bool:
    first = summands(node[3])[0]
    return first[0] == "Var" and first[1] == node[1][0][1]


def added(node: Node, target: str) -> list[Node]:
    """The summands that an increment or an assignment to an accumulator adds."""
    if not target:
        return summands(node[1])
    terms = summands(node[3])
    if not _is_running_sum(node):
        return terms
    return summands(terms[1]) if len(terms) == 2 else terms[1:]
