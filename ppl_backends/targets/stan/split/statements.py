"""Statements of a Stan program as text: marked for analysis, and written again without some of them.

The text is stanc's canonical form (one statement per line, includes inlined, no comments, braces around every body),
so that a simple parser of statements suffices; :mod:`ppl_backends.targets.stan.split.dataflow` interprets the
expressions in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ppl_backends.targets.stan.split.dataflow import MARKER

CANONICAL = ("--auto-format", "--canonicalize=deprecations,includes,braces,parentheses,strip-comments")

_TOKEN = re.compile(
    r'"(?:[^"\\]|\\.)*"|\w[\w.]*(?<=[\d.][eE])[+-]\d+|[A-Za-z]\w*|\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?'
    r"|\.\*=|\./=|[-+*/=!<>]=|\.\*|\./|\.\^|%/%|&&|\|\||[^\s\w]"
)
_ASSIGNMENTS = {"=", "+=", "-=", "*=", "/=", ".*=", "./="}
_TYPES = re.compile(
    r"int|real|complex|array|tuple|(complex_)?(row_)?vector|(complex_)?matrix|(positive_)?ordered|simplex|unit_vector"
    r"|sum_to_zero_(vector|matrix)|cholesky_factor_(corr|cov)|(corr|cov|(column|row)_stochastic)_matrix"
)
_OPEN, _CLOSE = "([{", ")]}"
_MIDDLE = {"?", "==", "!=", "<", ">", "<=", ">=", "&&", "||"}


@dataclass
class Token:
    """A word of the program and its position."""

    text: str
    start: int
    end: int


@dataclass
class Statement:
    """One statement of a block."""

    number: int  # its number in the markers
    kind: str
    header: str  # the text before the body, or the whole of a simple statement
    start: int  # its span in the text
    words: frozenset[str]  # every identifier in the header
    names: frozenset[str] = frozenset()  # names that it declares or assigns to
    summands: list[tuple[str, str]] = field(default_factory=list)
    prefix: str = ""  # the text before the summands, such as ``"target +="``
    body: list[Statement] = field(default_factory=list)
    end: int = 0  # its span in the text
    bare: bool = False  # whether it is the body of a loop without braces

    def __iter__(self) -> Iterator[Statement]:
        yield self
        for child in self.body:
            yield from child


def tokenize(text: str) -> list[Token]:
    """Return the words of a program in canonical form."""
    return [Token(match.group(), *match.span()) for match in _TOKEN.finditer(text)]


@dataclass
class Block:
    """A program block: its span in the text, including braces, and the statements in it if they were read."""

    name: str
    start: int
    end: int
    statements: list[Statement]


def read_blocks(text: str) -> dict[str, Block]:
    """Return the program blocks by name, with numbered statements in ``transformed parameters`` and ``model``."""
    tokens, blocks, position, number = tokenize(text), {}, 0, 0
    while position < len(tokens):
        opening = next(i for i in range(position, len(tokens)) if tokens[i].text == "{")
        name = " ".join(token.text for token in tokens[position:opening])
        closing = _matching(tokens, opening)
        statements = []
        if name in ("transformed parameters", "model"):
            reader = _Reader(text, tokens, opening + 1, number)
            statements = reader.until(closing)
            number = reader.number
        blocks[name] = Block(name, tokens[position].start, tokens[closing].end, statements)
        position = closing + 1
    return blocks


def _matching(tokens: list[Token], opening: int) -> int:
    """Return the index of the bracket that closes the one at ``opening``."""
    depth = 0
    for index in range(opening, len(tokens)):
        depth += (tokens[index].text in _OPEN) - (tokens[index].text in _CLOSE)
        if depth == 0:
            return index
    raise ValueError("unbalanced brackets in a program that stanc accepted")


class _Reader:
    """Reads statements from the words of a block."""

    def __init__(self, text: str, tokens: list[Token], position: int, number: int) -> None:
        self.text, self.tokens, self.position, self.number = text, tokens, position, number

    def until(self, closing: int) -> list[Statement]:
        statements = []
        while self.position < closing:
            statements.append(self.statement())
        return statements

    def statement(self) -> Statement:
        """Return one statement with its body."""
        statement = self.unfinished()
        statement.end = self.tokens[self.position - 1].end
        return statement

    def unfinished(self) -> Statement:
        first = self.position
        word = self.tokens[first].text
        self.number += 1
        number = self.number
        if word not in ("for", "while", "if", "else", "profile", "{"):
            return self.simple(number)
        opening = first
        if word in ("for", "while", "if", "profile"):
            opening = _matching(self.tokens, first + 1) + 1
        elif word == "else":
            opening = first + 1
            if self.tokens[opening].text == "if":
                opening = _matching(self.tokens, opening + 1) + 1
        header = self.tokens[first:opening]
        text = self.text[header[0].start : header[-1].end] if header else ""
        statement = Statement(number, "block" if word == "{" else word, text, self.tokens[first].start, _words(header))
        if self.tokens[opening].text != "{":  # stanc leaves the body of ``for (v in container)`` without braces
            self.position = opening
            statement.body = [self.statement()]
            statement.body[0].bare = True
            return statement
        self.position = opening + 1
        statement.body = self.until(_matching(self.tokens, opening))
        self.position += 1
        return statement

    def simple(self, number: int) -> Statement:
        """Return a statement that ends in a semicolon."""
        first, depth = self.position, 0
        while depth or self.tokens[self.position].text != ";":
            word = self.tokens[self.position].text
            depth += (word in _OPEN) - (word in _CLOSE)
            self.position += 1
        tokens = self.tokens[first : self.position]
        self.position += 1
        text = self.text[tokens[0].start : tokens[-1].end] + ";"
        statement = Statement(number, "call", text, tokens[0].start, _words(tokens))
        flat = list(_outside_constraints(_outside_brackets(tokens)))
        sign = next((i for i, token in flat if token.text in _ASSIGNMENTS), None)
        if tokens[0].text in ("target", "jacobian") and sign == 1:
            statement.kind = "increment"
        elif any(token.text == "~" for _, token in flat):
            statement.kind = "tilde"
        elif _TYPES.fullmatch(tokens[0].text):
            statement.kind, statement.names = "declaration", _declared(flat)
        elif sign is not None:
            statement.kind = "assignment"
            statement.names = _words(tokens[:sign]) if tokens[0].text == "(" else frozenset({tokens[0].text})
        elif tokens[0].text in ("break", "continue"):
            statement.kind = "jump"
        if sign is not None:
            statement.prefix = self.text[tokens[0].start : tokens[sign].end]
            statement.summands = self.split_sum(tokens[sign + 1 :], statement.names)
        return statement

    def split_sum(self, tokens: list[Token], names: frozenset[str]) -> list[tuple[str, str]]:
        """Return the summands of an expression, without the variable assigned to if it comes first."""
        flat = list(_outside_brackets(tokens))
        cuts = [0]
        if not any(token.text in _MIDDLE for _, token in flat):
            operators = {"*", "/", "+", "-", "^", "%", ".*", "./", "%/%", "\\", "!", ","}
            cuts += [i for i, token in flat if i and token.text in "+-" and tokens[i - 1].text not in operators]
        ends = [*cuts[1:], len(tokens)]
        summands = []
        for start, end in zip(cuts, ends, strict=True):
            sign = tokens[start].text if start else "+"
            part = tokens[start + bool(start) : end]
            summands.append((sign, self.text[part[0].start : part[-1].end]))
        if len(summands) > 1 and summands[0][1] in names:
            del summands[0]
        return summands


def _outside_brackets(tokens: list[Token]) -> Iterator[tuple[int, Token]]:
    """Return the words outside any brackets, with their positions."""
    depth = 0
    for index, token in enumerate(tokens):
        depth -= token.text in _CLOSE
        if depth == 0 and token.text not in _CLOSE:
            yield index, token
        depth += token.text in _OPEN


def _outside_constraints(flat: Iterable[tuple[int, Token]]) -> Iterator[tuple[int, Token]]:
    """Return the words without the ``<lower=0>`` that may follow a type, which contains no comparison."""
    inside, last = False, ""
    for index, token in flat:
        inside = inside or (token.text == "<" and _TYPES.fullmatch(last) is not None)
        if not inside:
            yield index, token
        inside = inside and token.text != ">"
        last = token.text


def _words(tokens: Iterable[Token]) -> frozenset[str]:
    return frozenset(token.text for token in tokens if re.match(r"[A-Za-z]", token.text))


def _declared(flat: list[tuple[int, Token]]) -> frozenset[str]:
    """Return the names in a declaration: the words before ``=``, a comma or the end."""
    names, expecting = set(), True
    for (_, token), following in zip(flat, [*(t.text for _, t in flat[1:]), ";"], strict=True):
        if (
            expecting
            and not _TYPES.fullmatch(token.text)
            and re.match(r"[A-Za-z]", token.text)
            and following in (";", "=", ",")
        ):
            names.add(token.text)
            expecting = False
        expecting = expecting or token.text == ","
    return frozenset(names)


def mark(text: str, blocks: Mapping[str, Block]) -> str:
    """Return the program with ``print("split:7");`` before statement 7, and so on."""
    insertions = []
    for block in blocks.values():
        for statement in (s for top in block.statements for s in top if s.kind != "else"):
            opening, closing = ("{ ", " }") if statement.bare else ("", "")
            insertions += [
                (statement.start, f'{opening}print("{MARKER}{statement.number}"); '),
                (statement.end, closing),
            ]
    for position, inserted in sorted(insertions, key=lambda insertion: -insertion[0]):
        text = text[:position] + inserted + text[position:]
    return text


def without(text: str, blocks: Mapping[str, Block], removed: set[int], replaced: Mapping[int, str]) -> str:
    """Return the program without some statements, and with others replaced.

    Statements and generated quantities that only they needed are removed too. The result has the same parameters and
    adds the remaining increments to the target.
    """
    top = [s for name in ("transformed parameters", "model") if name in blocks for s in blocks[name].statements]
    alive = _alive(top, removed, replaced)
    for block in sorted(blocks.values(), key=lambda b: -b.start):
        if block.name == "generated quantities":
            text = text[: block.start] + text[block.end :]
        elif block.statements:
            body = "".join(_write(statement, alive, replaced, "  ") for statement in block.statements)
            text = f"{text[: block.start]}{block.name} {{\n{body}}}{text[block.end :]}"
    return text


def _alive(top: list[Statement], removed: set[int], replaced: Mapping[int, str]) -> set[int]:
    """Return numbers of the statements that the remaining increments need."""
    paths = list(_paths(top, ()))
    alive: set[int] = set()
    needed: set[str] = set()
    while True:
        before = len(alive), len(needed)
        for statement, parents in paths:
            if statement.body or statement.number in removed:
                continue
            if statement.kind == "jump":
                needs = any(p.kind in ("for", "while") and p.number in alive for p in parents)
            elif statement.kind in ("assignment", "declaration"):
                needs = bool(statement.names & needed) or any(w.endswith(("_lp", "_jacobian")) for w in statement.words)
            else:
                needs = "print" not in statement.words
            if needs:
                alive |= {statement.number, *(parent.number for parent in parents)}
                header = replaced.get(statement.number)
                needed |= statement.words if header is None else _words(tokenize(header))
                needed |= frozenset().union(*(parent.words for parent in parents))
        if before == (len(alive), len(needed)):
            return alive


def _paths(
    statements: list[Statement], parents: tuple[Statement, ...]
) -> Iterator[tuple[Statement, tuple[Statement, ...]]]:
    """Return every statement with its enclosing ones; an ``else`` also has the ``if`` before it."""
    condition: tuple[Statement, ...] = ()
    for statement in statements:
        around = parents + (condition if statement.kind == "else" else ())
        yield statement, around
        yield from _paths(statement.body, (*around, statement))
        condition = (*condition, statement) if statement.kind == "else" else (statement,)


def _write(statement: Statement, alive: set[int], replaced: Mapping[int, str], indent: str) -> str:
    """Return the text of a statement, restricted to its needed parts."""
    if statement.number not in alive:
        return ""
    if statement.kind not in ("for", "while", "if", "else", "profile", "block"):
        return f"{indent}{replaced.get(statement.number, statement.header)}\n"
    body = "".join(_write(child, alive, replaced, indent + "  ") for child in statement.body)
    return f"{indent}{statement.header} {{\n{body}{indent}}}\n"
