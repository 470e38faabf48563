"""Flow of variables into each increment of a Stan program's log density.

It follows the data and the parameters of a program through transformed data, transformed parameters, local variables,
loops, conditions and user functions. It is an abstract interpretation of stanc's MIR
(:mod:`ppl_backends.targets.stan.split.mir`) whose values are sets of names (:class:`Flow`). The result is, for each
statement, the :class:`Term` s that it adds to the target.

Statements are identified by the number in a marker, ``print("split:7");``, that the caller put before each, because
the MIR has no positions; see :mod:`ppl_backends.targets.stan.split.statements`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import reduce
from operator import or_
from typing import Any, NamedTuple

from ppl_backends.targets.stan.split.mir import Node, constraints, dimensions, read_sections, summands, variables, walk

MARKER = "split:"

_DENSITY = re.compile(r"_(lpdf|lpmf|lupdf|lupmf)$")
_CDF = re.compile(r"_(l?cdf|l?ccdf)$")
_SIZES = {"size", "rows", "cols", "num_elements", "dims", "FnLength"}
_FILLED = re.compile(r"^(zeros|ones)_|^(identity_matrix|uniform_simplex)$|^one_hot_")
_NONE: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Density:
    """A density or distribution function evaluated on the way to the target."""

    cumulative: bool  # whether it is a distribution function (``_lcdf``, ``_lccdf``), as in censoring and truncation
    variate_data: frozenset[str]  # data that flow by value into the outcome, the argument before the bar
    variate_parameters: frozenset[str]  # parameters that flow by value into the outcome, the argument before the bar
    data: frozenset[str]  # data that flow by value into the arguments after the bar
    parameters: frozenset[str]  # parameters that flow by value into the arguments after the bar


class Flow(NamedTuple):
    """The names that a value depends on."""

    data: frozenset[str] = _NONE  # by value
    position: frozenset[str] = _NONE  # data that only select: by an index, a size, or a condition
    parameters: frozenset[str] = _NONE  # by value
    densities: frozenset[Density] = frozenset()  # densities evaluated on the way

    def __or__(self, other: Flow) -> Flow:
        return Flow(*map(or_, self, other))

    def chosen_by(self, other: Flow) -> Flow:
        """Return the same value, selected by the other (an index or a condition)."""
        return (self | other)._replace(data=self.data, position=self.position | other.data | other.position)

    @property
    def all_data(self) -> frozenset[str]:
        """Return every data variable, by value or by position."""
        return self.data | self.position


EMPTY = Flow()


def join(flows: Iterable[Flow]) -> Flow:
    """Return everything that flows into any of them."""
    return reduce(or_, flows, EMPTY)


@dataclass(frozen=True)
class Term:
    """One summand that a statement adds to the target."""

    flow: Flow  # including conditions and loop bounds around the statement, as positions
    direct: bool = False  # whether the summand consists of a density call
    vectorised: bool = False
    loops: frozenset[str] = _NONE  # data integers that are the upper bound of a loop around the statement
    called: bool = False  # whether it is added inside a user function, so that only the call as a whole can be removed
    outcome: str = ""  # the variable that is the whole outcome of a density of the Stan library, else ``""``


@dataclass
class Program:
    """The parts of a program that the split into prior and likelihood uses."""

    sizes: dict[str, list[Node]] = field(default_factory=dict)  # data variable → its declared sizes, outermost first
    kinds: dict[str, str] = field(default_factory=dict)
    checks: list[tuple[str, str, Any]] = field(default_factory=list)
    parameter_flow: dict[str, Flow] = field(default_factory=dict)  # parameter → variables in its sizes and bounds
    parameter_ranges: dict[str, str] = field(default_factory=dict)
    size_flow: Flow = EMPTY  # variables in the parameters' sizes
    terms: dict[int, list[Term]] = field(default_factory=dict)  # statement number → terms that it adds to the target
    transformed_data: Flow = EMPTY  # variables that flow into the transformed data
    log_lik: Flow | None = None  # variables that flow into a generated quantity ``log_lik``
    accumulators: frozenset[str] = _NONE
    collected: dict[int, str] = field(default_factory=dict)  # statement number → the accumulator that it adds to
    structural: frozenset[str] = _NONE  # data integers used as sizes and loop bounds


def _kind(sized_type: Any) -> str:
    """Return the kind of a variable, which is that of a tuple for an array of tuples."""
    kind: str = sized_type if isinstance(sized_type, str) else sized_type[0]
    return "STuple" if kind == "SArray" and _kind(sized_type[1]) == "STuple" else kind


def read_program(mir: str) -> Program:
    """Read ``stanc --debug-mir`` of a program with markers in its transformed parameters and model blocks."""
    sections = read_sections(mir)
    program = Program()
    for name, _, sized_type in sections["input_vars"]:
        program.kinds[name] = _kind(sized_type)
        program.sizes[name] = dimensions(sized_type)
    program.checks = list(constraints(sections["prepare_data"]))
    program.accumulators = find_accumulators(sections["log_prob"])
    program.structural = _structural(sections, program)

    reader = _Interpreter(sections, program)
    reader.block(sections["prepare_data"])
    program.transformed_data = join(reader.assigned)
    for name, _, entry in sections["output_vars"]:
        described = dict(entry)
        if described["out_block"] != "Parameters":
            continue
        size = join(reader.value(node) for node in dimensions(described["out_constrained_st"]))
        program.size_flow = program.size_flow | size
        program.parameter_flow[name] = size | join(reader.value(node) for node in walk(described["out_trans"]))
        program.parameter_ranges[name] = _range(described["out_trans"])
    reader.fixed |= set(program.parameter_flow)
    reader.environment |= {name: Flow(parameters=frozenset({name})) for name in program.parameter_flow}
    before = dict(reader.environment)
    reader.block(sections["log_prob"])
    for (statement, _), term in reader.found.items():
        program.terms.setdefault(statement, []).append(term)
    program.collected = reader.collected

    reader.environment = before
    reader.block(sections["generate_quantities"])
    program.log_lik = reader.environment.get("log_lik")
    return program


def _range(transform: Any) -> str:
    """Return the kind of a parameter's range; empty for two bounds that are not numbers, which may be infinite."""
    kind = transform if isinstance(transform, str) else transform[0]
    return kind if kind != "LowerUpper" or all(map(_is_number, walk(transform))) else ""


def _is_number(node: Node) -> bool:
    """Return whether a part of an expression is a number, or its sign."""
    return node[0] in ("Lit", "Promotion") or (node[0] == "FunApp" and node[1][1] == "PMinus__")


def _structural(sections: dict[str, Any], program: Program) -> frozenset[str]:
    """Return data integers that appear as a size or a loop bound."""
    used = frozenset[str]().union(*(variables(sizes) for sizes in program.sizes.values()))
    for node in walk([sections["prepare_data"], sections["log_prob"], sections["functions_block"]]):
        if node[0] == "For":
            used |= variables(node[3][1])
        elif node[0] == "Decl":
            used |= variables(dimensions(dict(node[1:4])["decl_type"][1]))
    used |= frozenset().union(
        *(variables(dict(entry)["out_constrained_st"]) for _, _, entry in sections["output_vars"])
    )
    return frozenset(name for name in used if program.kinds.get(name) == "SInt")


class _Interpreter:
    """Follow statements in order and record, for every variable, the names that have flowed into it."""

    def __init__(self, sections: dict[str, Any], program: Program) -> None:
        self.program = program
        self.functions: dict[str, list[dict[str, Any]]] = {}
        for definition in sections["functions_block"]:
            described = {part[0]: part[1] for part in definition}
            self.functions.setdefault(described["fdname"], []).append(described)
        self.environment: dict[str, Flow] = {name: Flow(data=frozenset({name})) for name in program.kinds}
        self.fixed = set(program.kinds)  # input variables and parameters: their declarations are not new variables
        self.found: dict[tuple[int, tuple[int, ...]], Term] = {}
        self.collected: dict[int, str] = {}
        self.assigned: list[Flow] = []
        self.returned: list[Flow] = []
        self.conditions: list[Flow] = []
        self.loops: list[str] = []
        self.calls: list[tuple[str, int]] = []
        self.statement = -1

    # -- expressions

    def value(self, node: Node) -> Flow:
        """Return the variables that flow into an expression."""
        kind = node[0]
        if kind == "Var":
            return self.environment.get(node[1], EMPTY)
        if kind == "Lit":
            return EMPTY
        if kind == "TernaryIf":
            return (self.value(node[2]) | self.value(node[3])).chosen_by(self.value(node[1]))
        if kind == "Indexed":
            index = join(self.value(part) for part in walk(node[2]) if part.type is not None)
            return self.value(node[1]).chosen_by(index)
        if kind == "FunApp":
            return self.application(node)
        return join(self.value(part) for part in node[1:] if isinstance(part, Node))

    def application(self, node: Node) -> Flow:
        """Return the variables that flow into the value of a function call."""
        origin, name, arguments = node[1][0], node[1][1], node[2]
        name = name if isinstance(name, str) else name[0]
        if name in ("reduce_sum", "reduce_sum_static", "map_rect") and arguments:
            return self.higher_order(name, arguments)
        flows = [self.value(argument) for argument in arguments]
        if _DENSITY.search(name) or _CDF.search(name):
            inside = self.call(name, flows, node).densities if origin == "UserDefined" else ()
            outcomes = {d for d in inside if d.variate_data and not d.variate_parameters and not d.cumulative}
            return _density(name, flows) | Flow(densities=frozenset(outcomes))
        if name in _SIZES:
            return self.size_of(join(flows))
        if origin == "UserDefined":
            return self.call(name, flows, node)
        if name.startswith("rep_") and flows:
            return flows[0].chosen_by(join(flows[1:]))
        if _FILLED.search(name):
            return EMPTY.chosen_by(join(flows))
        return join(flows)

    def size_of(self, flow: Flow) -> Flow:
        """Return the integers that are sizes of the data in a value."""
        sizes = (variables(self.program.sizes.get(name, [])) for name in flow.all_data)
        return Flow(position=frozenset[str]().union(*sizes))

    def higher_order(self, name: str, arguments: list[Node]) -> Flow:
        """Return the flow of ``reduce_sum`` and ``map_rect``, which is that of the function they call."""
        function = arguments[0][1]
        flows = [self.value(argument) for argument in arguments[1:]]
        if name != "map_rect":  # reduce_sum(f, x, grainsize, ...) calls f(x[start:end], start, end, ...)
            flows = [flows[0], EMPTY, EMPTY, *flows[2:]]
        if _DENSITY.search(function):
            return _density(function, flows)
        return self.call(function, flows, arguments[0])

    def call(self, name: str, flows: list[Flow], node: Node) -> Flow:
        """Return the flow of a user function's value; record its target terms with the calling statement."""
        bodies = [f for f in self.functions.get(name, []) if len(f["fdargs"]) == len(flows) and f["fdbody"]]
        if not bodies or name in (called for called, _ in self.calls):
            return join(flows)
        outer = self.environment, self.returned, self.fixed
        self.returned, self.fixed = [], set()
        self.calls.append((name, id(node)))
        for function in bodies:
            self.environment = {argument[1]: flow for argument, flow in zip(function["fdargs"], flows, strict=True)}
            self.block(function["fdbody"])
        self.calls.pop()
        result = join(self.returned)
        self.environment, self.returned, self.fixed = outer
        return result

    # -- statements

    def block(self, statements: list[Any]) -> None:
        """Follow statements one after another; the optional parts of the MIR are lists of none or one."""
        if isinstance(statements, Node):
            self.execute(statements)
            return
        for statement in statements:
            self.block(statement)

    def execute(self, node: Node) -> None:
        """Follow one statement."""
        kind = node[0]
        if kind in ("TargetPE", "JacobianPE"):
            self.increment(node, "")
        elif kind == "Assignment":
            self.assign(node)
        elif kind == "Decl":
            name = dict(node[1:4])["decl_id"]
            if name not in self.fixed:
                self.environment[name] = EMPTY
        elif kind == "NRFunApp":
            self.procedure(node)
        elif kind == "IfElse":
            self.branch(node)
        elif kind in ("For", "While"):
            self.loop(node)
        elif kind == "Return":
            self.returned.extend(self.under_conditions(self.value(part)) for part in node[1] if isinstance(part, Node))
        elif kind in ("Block", "SList"):
            self.block(node[1])
        elif kind == "Profile":
            self.block(node[2])

    def procedure(self, node: Node) -> None:
        """Follow a call statement: a marker, ``print``, or a user function."""
        origin, arguments = node[1][0], node[2]
        if origin == "UserDefined":
            self.call(node[1][1], [self.value(argument) for argument in arguments], node)
        elif node[1][1:] == ["FnPrint"] and arguments and arguments[0][0] == "Lit" and not self.calls:
            text = arguments[0][2].strip('"')
            if text.startswith(MARKER):
                self.statement = int(text.removeprefix(MARKER))

    def under_conditions(self, flow: Flow) -> Flow:
        return flow.chosen_by(join(self.conditions))

    def assign(self, node: Node) -> None:
        """Follow an assignment: a new value of the whole variable, or an additional flow into a part of it."""
        (target, index), value = node[1], node[3]
        while target[0] != "LVariable":  # a part of a tuple
            index, target = [target], target[1][0] if isinstance(target[1], list) else target[1]
        name = target[1]
        if name in self.program.accumulators and not self.calls:
            self.collected[self.statement] = name
            self.increment(node, name)
            return
        flow = self.under_conditions(self.value(value))
        if index:
            flow = self.environment.get(name, EMPTY) | flow.chosen_by(
                join(self.value(n) for n in walk(index) if n.type)
            )
        self.environment[name] = flow
        self.assigned.append(flow)

    def increment(self, node: Node, target: str) -> None:
        """Record each summand of an increment of the target or of an accumulator."""
        for position, part in enumerate(added(node, target)):
            core = part[1] if part[0] == "Promotion" else part
            if core[0] == "Var" and core[1] in self.program.accumulators and not self.calls:
                flow = EMPTY  # its content is recorded where it was added
            else:
                flow = self.under_conditions(self.value(core))
            name = core[1][1] if core[0] == "FunApp" else ""
            direct = isinstance(name, str) and (bool(_DENSITY.search(name)) or name.startswith("reduce_sum"))
            direct = direct and len(flow.densities) == 1
            outcome = core[2][1 if name.startswith("reduce_sum") else 0] if direct else None
            vectorised = outcome is not None and outcome.type not in ("UInt", "UReal")
            key = (self.statement, (id(node), position, *(site for _, site in self.calls)))
            called = bool(self.calls)
            whole = outcome[1] if outcome and outcome[0] == "Var" and not called and core[1][0] == "StanLib" else ""
            self.found[key] = Term(flow, direct, vectorised, frozenset(self.loops), called, whole)

    def branch(self, node: Node) -> None:
        """Follow both sides of a condition, and join them."""
        self.conditions.append(self.value(node[1]))
        before = dict(self.environment)
        self.block(node[2])
        after, self.environment = self.environment, before
        self.block(node[3])
        self.merge(after)
        self.conditions.pop()

    def loop(self, node: Node) -> None:
        """Follow a loop's body until nothing new flows; the loop may also not run at all."""
        bound = ""
        if node[0] == "For":
            name, lower, upper, body = (part[1] for part in node[1:])
            condition = self.value(lower) | self.value(upper)
            self.environment[name] = EMPTY.chosen_by(condition)
            positive = lower[0] == "Lit" and int(lower[2]) > 0
            bound = self.upper_bound(upper) if positive else ""
        else:
            condition, body = self.value(node[1]), node[2]
        self.conditions.append(condition)
        self.loops.append(bound)
        while True:
            before = dict(self.environment)
            self.block(body)
            self.merge(before)
            if self.environment == before:
                break
        self.loops.pop()
        self.conditions.pop()

    def upper_bound(self, upper: Node) -> str:
        """Return the data integer that is a loop's upper bound (``N``, or ``size(y)``), else ``""``."""
        if upper[0] == "Var":
            return str(upper[1]) if upper[1] in self.program.kinds else ""
        if upper[0] == "FunApp" and upper[1][1] in ("size", "num_elements", "rows") and upper[2][0][0] == "Var":
            sizes = self.program.sizes.get(upper[2][0][1], [])
            if len(sizes) == 1 and sizes[0][0] == "Var":
                return str(sizes[0][1])
        return ""

    def merge(self, other: dict[str, Flow]) -> None:
        for name, flow in other.items():
            self.environment[name] = self.environment.get(name, EMPTY) | flow


def _density(name: str, flows: list[Flow]) -> Flow:
    """Return a density's value, with a record of its outcome."""
    variate, arguments = flows[0], join(flows[1:])
    evidence = Density(
        _CDF.search(name) is not None, variate.data, variate.parameters, arguments.data, arguments.parameters
    )
    return variate | arguments | Flow(densities=frozenset({evidence}))


def find_accumulators(log_prob: list[Any]) -> frozenset[str]:
    """Return real variables that are only added to, and then added to the target or to another such variable."""
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
    """Return the variable that a statement adds to: ``""`` for the target, an accumulator's name, or None."""
    if node[0] in ("TargetPE", "JacobianPE"):
        return ""
    if node[0] == "Assignment" and node[1][1] == [] and node[1][0][0] == "LVariable" and node[1][0][1] in names:
        return str(node[1][0][1])
    return None


def _is_running_sum(node: Node) -> bool:
    first = summands(node[3])[0]
    return first[0] == "Var" and first[1] == node[1][0][1]


def added(node: Node, target: str) -> list[Node]:
    """Return the summands that an increment or an assignment to an accumulator adds."""
    if not target:
        return summands(node[1])
    terms = summands(node[3])
    if not _is_running_sum(node):
        return terms
    return summands(terms[1]) if len(terms) == 2 else terms[1:]
