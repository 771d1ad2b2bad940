"""Parameters of a pipeline, declared once: types, defaults, and their form on the command line.

As Flink's `ParameterTool`. Pure. Every error is one line that names the parameter.
"""

from __future__ import annotations

import difflib
import math
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from runtime.jobgraph.errors import InvalidParameterError, ParameterUsageError

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
_TYPES: tuple[type, ...] = (str, int, float, bool)
_WORDS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_EXPECTED = {str: "a text", int: "a whole number", float: "a number", bool: "true or false"}
REQUIRED: Any = object()
"""Marks a parameter without a default."""


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter of a pipeline: ``--name value`` on the command line, ``ctx.parameters[name]`` in a vertex.

    Args:
        name: letters, digits, ``-`` and ``_``, beginning with a letter.
        type: `str`, `int`, `float` or `bool`; a bool is ``--name``, ``--no-name`` or ``--name=true``.
        default: its value if the command line gives none; without a default it must be given.
        choices: the values that it may have; any, if empty.
        help: one line for ``--help``.

    Raises:
        InvalidParameterError: the declaration does not fit together.
    """

    name: str
    type: type = str
    default: Any = field(default=REQUIRED)
    choices: tuple[Any, ...] = ()
    help: str = ""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name) or self.name == "help":
            raise InvalidParameterError(
                f"{self.name!r} is not a parameter name: use letters, digits, - and _, a letter first, and not 'help'"
            )
        if self.type not in _TYPES:
            names = ", ".join(kind.__name__ for kind in _TYPES)
            raise InvalidParameterError(f"parameter --{self.name} has the type {self.type!r}: use one of {names}")
        object.__setattr__(self, "choices", tuple(self.choices))
        for value in self.choices:
            self._check_type(value, "choice")
        if self.default is not REQUIRED and self.default is not None:
            self._check_type(self.default, "default")
            if self.choices and self.default not in self.choices:
                raise InvalidParameterError(
                    f"the default {self.default!r} of parameter --{self.name} is not one of its choices"
                )

    @property
    def is_required(self) -> bool:
        """True if it has no default."""
        return self.default is REQUIRED

    @property
    def usage(self) -> str:
        """Its form on the command line, e.g. ``--rows INT``."""
        if self.type is bool:
            return f"--{self.name} | --no-{self.name}"
        return f"--{self.name} {'|'.join(map(str, self.choices)) or self.type.__name__.upper()}"

    def parse(self, text: str) -> Any:
        """Return the value of a text from the command line; raises `ParameterUsageError`."""
        value: Any = None
        try:
            value = _WORDS[text.lower()] if self.type is bool else self.type(text)
        except (KeyError, ValueError):
            value = None
        if value is None or (self.type is float and not math.isfinite(value)):
            raise ParameterUsageError(f"parameter --{self.name} is {text!r}: it must be {_EXPECTED[self.type]}")
        if self.choices and value not in self.choices:
            raise ParameterUsageError(
                f"parameter --{self.name} is {text!r}: it must be one of {', '.join(map(str, self.choices))}"
            )
        return value

    def _check_type(self, value: Any, what: str) -> None:
        fits = type(value) is self.type or (self.type is float and type(value) is int)
        if not fits:
            raise InvalidParameterError(
                f"the {what} {value!r} of parameter --{self.name} is a {type(value).__name__}, not {self.type.__name__}"
            )


def parse_parameters(argv: Sequence[str], *declared: Parameter) -> dict[str, Any]:
    """Return the values of declared parameters, for `runtime.api.Pipeline`: from the command line, or their defaults.

    Args:
        argv: the arguments of `pipeline`: ``--name value`` or ``--name=value``, in any order.
        declared: the pipeline's parameters.

    Raises:
        ParameterUsageError: one is unknown, missing, given twice, or of the wrong type.
        InvalidParameterError: two of the same name are declared.
        SystemExit: *argv* contained ``--help``, and the help has been printed.
    """
    known = {parameter.name: parameter for parameter in declared}
    if len(known) < len(declared):
        names = [parameter.name for parameter in declared]
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidParameterError(f"parameter --{twice} is declared twice: rename one of them")
    given: dict[str, Any] = {}
    words = list(argv)
    while words:
        word = words.pop(0)
        if word in ("--help", "-h"):
            sys.stdout.write(describe_parameters(declared) + "\n")
            raise SystemExit(0)
        name, has_value, text = word[2:].partition("=")
        if not word.startswith("--") or not name:
            raise ParameterUsageError(f"unexpected argument {word!r}: {_takes(declared)}")
        negated = name.removeprefix("no-") if name not in known else name
        parameter = known.get(negated)
        if parameter is None or (negated != name and (parameter.type is not bool or has_value)):
            close = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean --{close[0]}?" if close else _takes(declared)
            raise ParameterUsageError(f"unknown parameter --{name}: {hint}")
        if parameter.name in given:
            raise ParameterUsageError(f"parameter --{parameter.name} is given twice: leave one out")
        if parameter.type is bool and not has_value:
            given[parameter.name] = negated == name
            continue
        if not has_value:
            if not words:
                raise ParameterUsageError(f"parameter --{name} has no value: write {parameter.usage}")
            text = words.pop(0)
        given[parameter.name] = parameter.parse(text)
    missing = [parameter for parameter in declared if parameter.is_required and parameter.name not in given]
    if missing:
        raise ParameterUsageError(f"parameter --{missing[0].name} is missing: write {missing[0].usage}")
    return {item.name: given.get(item.name, item.default) for item in declared}


def describe_parameters(declared: Sequence[Parameter]) -> str:
    """Return the text of ``--help``: a line for each parameter."""
    if not declared:
        return "This pipeline takes no parameters."
    width = max(len(parameter.usage) for parameter in declared)
    lines = ["Parameters:"]
    for item in declared:
        default = "required" if item.is_required else f"default: {item.default}"
        text = f"{item.help} ({default})" if item.help else f"({default})"
        lines.append(f"  {item.usage:<{width}}  {text}")
    return "\n".join(lines)


def _takes(declared: Sequence[Parameter]) -> str:
    if not declared:
        return "this pipeline takes no parameters"
    return f"this pipeline takes {', '.join(item.usage for item in declared)}"
