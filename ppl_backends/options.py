"""Options of the public functions: the allowed values, checked before a model is compiled or anything is drawn.

A public function declares its options once, ``@checked(draws=integer(2), ...)``. Options that mean the same in every
function (:data:`COMMON`) need no declaration. NumPy's numbers count as numbers. Booleans do not: ``draws=True`` is an
error.
"""

from __future__ import annotations

import inspect
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from ppl_backends.errors import ModelError
from ppl_backends.random import spawn_seeds

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")

LONGEST_VALUE = 60  # most characters of a value in a message
FEW = 8  # most numbers of an array in a message


@dataclass(frozen=True)
class Option:
    """Allowed values of an option; ``integer(1) | choice("auto")`` allows either.

    ``expected`` ends the message ``draws=0: expected ...``; ``read`` returns the value as the method uses it, and
    raises ValueError or TypeError for any other.
    """

    expected: str
    read: Callable[[Any], Any]

    def check(self, name: str, value: Any) -> Any:
        """Return the value in the form that the method uses, or raise ModelError with the name and the expected values."""
        try:
            return self.read(value)
        except (ValueError, TypeError):
            raise ModelError(f"{name}={shown(value)}: expected {self.expected}") from None

    def __or__(self, other: Option) -> Option:
        """Return the option that allows the values of either."""

        def read(value: Any) -> Any:
            try:
                return self.read(value)
            except (ValueError, TypeError):
                return other.read(value)

        return Option(f"{self.expected} or {other.expected}", read)


def shown(value: Any) -> str:
    """Return a value as messages show it: in one line of limited length; a large array by its shape."""
    if isinstance(value, np.ndarray) and value.size > FEW:
        return f"array of shape {value.shape}"
    text = " ".join(repr(value.item() if isinstance(value, np.number | np.bool_ | np.str_) else value).split())
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 3]}..."


def integer(at_least: int | None = None, at_most: int | None = None) -> Option:
    """Return an option for integers within bounds."""
    bounds = [f"at least {at_least}"] if at_least is not None else []
    bounds += [f"at most {at_most}"] if at_most is not None else []

    def read(value: Any) -> int:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
        if (at_least is not None and number < at_least) or (at_most is not None and number > at_most):
            raise ValueError
        return number

    return Option(" of ".join(["an integer", " and ".join(bounds)]) if bounds else "an integer", read)


def number(
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
    at_most: float | None = None,
) -> Option:
    """Return an option for real numbers within bounds; refuse NaN, and infinity unless ``at_most`` is infinite."""
    low = f"above {above:g}" if above is not None else f"of at least {at_least:g}" if at_least is not None else ""
    high = f"below {below:g}" if below is not None else f"at most {at_most:g}" if at_most not in (None, np.inf) else ""

    def read(value: Any) -> float:
        real = _real(value)
        inside = (
            (above is None or real > above)
            and (at_least is None or real >= at_least)
            and (below is None or real < below)
            and (real <= at_most if at_most is not None else np.isfinite(real))
        )
        if not inside:
            raise ValueError
        return real

    return Option(" ".join(["a number", " and ".join(filter(None, [low, high]))]).strip(), read)


def _real(value: Any) -> float:
    """Return a real number, of Python or NumPy, as a float; refuse NaN, strings and booleans."""
    given = np.asarray(value)
    is_number = given.ndim == 0 and (
        given.dtype.kind in "iuf" or (isinstance(value, int) and not isinstance(value, bool))
    )
    if not is_number or np.isnan(float(value)):
        raise ValueError
    return float(value)


def increasing(*, above: float = -np.inf, at_most: float = np.inf) -> Option:
    """Return an option for strictly increasing sequences of finite numbers."""

    def read(value: Any) -> tuple[float, ...]:
        if isinstance(value, str):
            raise TypeError
        numbers = tuple(_real(entry) for entry in value)
        if not numbers or not np.isfinite(numbers).all() or np.any(np.diff(numbers) <= 0):
            raise ValueError
        if numbers[0] <= above or numbers[-1] > at_most:
            raise ValueError
        return numbers

    bounds = f" above {above:g}" if np.isfinite(above) else ""
    bounds += f"{' and' if bounds else ''} at most {at_most:g}" if np.isfinite(at_most) else ""
    return Option(f"increasing numbers{bounds}", read)


def that(holds: Callable[[Any], bool], expected: str) -> Option:
    """Return an option for values for which ``holds`` returns True."""

    def read(value: Any) -> Any:
        if not holds(value):
            raise ValueError
        return value

    return Option(expected, read)


def choice(*values: str | None) -> Option:
    """Return an option for one of the given values."""
    return that(
        lambda value: (value is None or isinstance(value, str)) and value in values, _either(list(map(repr, values)))
    )


def instance(kind: type, expected: str) -> Option:
    """Return an option for objects of a class."""
    return that(lambda value: isinstance(value, kind), expected)


def array(expected: str = "an array of finite numbers") -> Option:
    """Return an option for arrays of finite numbers, or one number."""

    def read(value: Any) -> np.ndarray:
        values = np.asarray(value, dtype=np.float64)
        if np.asarray(value).dtype.kind not in "iuf" or not np.isfinite(values).all():
            raise ValueError
        return values

    return Option(expected, read)


def entries(expected: str = "names or integers, or a mask", at_least: int = 0) -> Option:
    """Return an option for a name or an integer, a collection of them, or a mask of booleans."""

    def read(value: Any) -> list[Any]:
        if isinstance(value, bool | np.bool_ | bytes | Mapping):
            raise TypeError
        given = [value] if isinstance(value, str | int | np.integer) else list(value)
        flags = sum(isinstance(each, bool | np.bool_) for each in given)
        if len(given) < at_least or flags not in (0, len(given)):
            raise ValueError
        return [each if isinstance(each, str | bool | np.bool_) else operator.index(each) for each in given]

    return Option(expected, read)


def several_names(expected: str = "a name or a sequence of names") -> Option:
    """Return an option for a tuple of names; one name is a sequence of one."""

    def read(value: Any) -> tuple[str, ...]:
        given = (value,) if isinstance(value, str) else tuple(value)
        if isinstance(value, Mapping) or not all(isinstance(each, str) for each in given):
            raise TypeError
        return given

    return Option(expected, read)


def function(expected: str) -> Option:
    """Return an option for callables."""
    return that(callable, expected)


def approximation(*names: str) -> Option:
    """Return an option for names of approximations, or objects with a mean and a covariance."""
    expected = _either([*map(repr, names), "an object with mean and cov"])
    return that(lambda value: (isinstance(value, str) and value in names) or has_moments(value), expected)


def has_moments(value: Any) -> bool:
    """Return whether an object has a mean and a covariance."""
    mean = getattr(value, "mean", None)  # arrays and data frames have a method of this name
    return mean is not None and not callable(mean) and hasattr(value, "cov")


def _either(names: Sequence[str]) -> str:
    """Return alternatives as text: ``'a', 'b' or 'c'``."""
    return " or ".join(filter(None, [", ".join(names[:-1]), names[-1]]))


def _read_flag(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(value)


def _read_seed(value: Any) -> Any:
    if isinstance(value, bool | np.bool_):
        raise TypeError
    if not isinstance(value, np.random.Generator):  # checking must not draw from a generator
        spawn_seeds(value, 1)
    return value


flag = Option("True or False", _read_flag)
seed = Option("a non-negative integer, a NumPy generator or None", _read_seed)
path = instance(str | os.PathLike, "a path")  # type: ignore[arg-type]
executor = instance(Executor, "a concurrent.futures.Executor, such as a ProcessPoolExecutor of spawned processes")
none = choice(None)
mapping = instance(Mapping, "a dict by name")
names = instance(str | Sequence | Mapping, "names of log likelihoods in a Stan program")  # type: ignore[arg-type]

COMMON: dict[str, Option] = {
    "adapt": flag,
    "chains": integer(1),
    "checkpoint": none | path,
    "cores": none | integer(1),
    "draws": integer(1),
    "executor": none | executor,
    "log_likelihood": flag | names,
    "log_prior": flag,
    "max_time": none | number(at_least=0, at_most=np.inf),
    "power": number(at_least=0),
    "power_potentials": flag,
    "progressbar": flag,
    "random_seed": seed,
    "target_accept": number(above=0, below=1),
}
"""Options that mean the same in every public function."""


def checked(**options: Option) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Return a decorator that checks the options of a public function before the function runs.

    ``options`` maps names of parameters to options, in addition to :data:`COMMON`, which they override.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        parameters = inspect.signature(function).parameters
        unknown = set(options) - set(parameters)
        assert not unknown, f"{function.__qualname__} has no parameter {unknown}"
        known = {name: COMMON[name] for name in parameters if name in COMMON} | options
        by_position = [p.name for p in parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        set_by_name = [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY] or by_position
        open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        name = function.__qualname__.removesuffix(".__init__")

        @wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            _check_positions(name, args, by_position, parameters)
            _refuse_idata_kwargs(name, given, parameters)
            named = zip(by_position, args, strict=False)
            values = [known[option].check(option, value) if option in known else value for option, value in named]
            if not open_ended and (extra := [option for option in given if option not in parameters]):
                raise TypeError(f"{name}() has no option {extra[0]!r}; it has {', '.join(set_by_name)}")
            for option in known.keys() & given.keys():
                given[option] = known[option].check(option, given[option])
            return function(*values, **given)

        call.options = known  # type: ignore[attr-defined]
        return call

    return decorate


def _check_positions(name: str, args: tuple[Any, ...], by_position: list[str], parameters: Any) -> None:
    """Refuse options given by position, and a number of draws as first argument, where ``pm.sample`` takes it."""
    is_integer = [isinstance(value, int | np.integer) for value in args]
    if len(args) > len(by_position):
        first, by_name = len(by_position), [p.name for p in parameters.values() if p.kind is p.KEYWORD_ONLY]
        if {"X", "y"} <= parameters.keys():
            raise ModelError(f"{name}() takes data by name, not by position: write {name}(X=X, y=y)")
        written = f"option={shown(args[first])}, where option is one of {', '.join(by_name)}"
        if is_integer[first] and "draws" in by_name:
            written = f"draws={args[first]}"
        elif isinstance(args[first], Mapping) and "data" in by_name:
            written = f"data={shown(args[first])}"
        raise ModelError(f"{name}() takes options by name, not by position: write {written}")
    if by_position and by_position[0] == "model" and args and is_integer[0]:
        habit = f"{name}(model, draws={args[0]})" if "draws" in parameters else f"{name}(model)"
        raise ModelError(f"model={args[0]} is an integer; the first argument is the model: write {habit}")


def _refuse_idata_kwargs(name: str, given: Mapping[str, Any], parameters: Any) -> None:
    """Refuse ``idata_kwargs``, by which ``pm.sample`` is asked for groups that have an option of their own here."""
    own = [f"{group}=True" for group in ("log_likelihood", "log_prior") if group in parameters]
    if "idata_kwargs" in given.keys() - parameters.keys() and own:
        raise ModelError(f"{name}() has no option 'idata_kwargs', which is one of pm.sample: write {' or '.join(own)}")


def check_memory(draws: int, chains: int, values: int) -> None:
    """Refuse more draws than fit in memory, with so many ``values`` each; a value and its copy take 2 × 8 bytes."""
    needed, available = 16 * draws * chains * values, available_memory()
    if needed > available:
        raise ModelError(
            f"draws={draws}, chains={chains}: {_bytes(needed)} of memory are needed for {values} values a draw and "
            f"{_bytes(available)} are available; take fewer draws, or leave out quantities that are computed from the "
            "parameters (quantities=False for a Stan program)"
        )


def available_memory() -> float:
    """Return the bytes of memory that this process can still allocate; infinite if the system does not report it."""
    limits = [np.inf]
    meminfo, cgroup = Path("/proc/meminfo"), Path("/sys/fs/cgroup/memory.max")
    if meminfo.exists():
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        limits.append(1024.0 * float(lines["MemAvailable"].split()[0]))
    elif "SC_PHYS_PAGES" in os.sysconf_names:
        limits.append(float(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")))
    if cgroup.exists() and cgroup.read_text().strip() != "max":
        limits.append(float(cgroup.read_text()))
    return min(limits)


def _bytes(count: float) -> str:
    """Return a number of bytes as text with a unit, ``"32 TB"``."""
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.3g} {unit}"
