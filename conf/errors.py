"""The exception tree of the configuration.

Every error derives from the one above it::

    ConfigurationError
    ├── UnknownOptionError         a key that no declared option has
    ├── InvalidValueError          a value that does not have the option's form
    ├── InconsistentOptionsError   two values that contradict each other
    ├── ConfigurationFileError     a file that is missing, unreadable or not a map of keys to values
    └── OverrideSyntaxError        a ``-D`` argument that is not ``key=value``

Every error has a ``remedy``: one line with the action to take.
"""

from __future__ import annotations


class ConfigurationError(Exception):
    """Base of every error of the configuration.

    Args:
        message: the problem, on one line.
        remedy: the action to take, on one line.
    """

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(message)
        self.remedy = remedy


class UnknownOptionError(ConfigurationError):
    """A key that no declared option has.

    Args:
        key: the key as written.
        suggestion: the nearest declared key, or None.
        origin: its place: ``file:line``, ``-D`` or similar.
    """

    def __init__(self, key: str, suggestion: str | None, origin: str) -> None:
        remedy = (
            f"did you mean {suggestion!r}?"
            if suggestion is not None
            else "`python -m conf.reference` lists every option; keys that start with 'spark.' go to Spark as they are"
        )
        super().__init__(f"unknown option {key!r} ({origin})", remedy)
        self.key = key
        self.suggestion = suggestion
        self.origin = origin


class InvalidValueError(ConfigurationError):
    """A value that does not have the option's form.

    Args:
        key: the option's key.
        value: the value as it may be shown (a secret one is masked by the caller).
        expected: the form in words.
        example: one valid value.
        origin: its place.
    """

    def __init__(self, key: str, value: str, expected: str, example: str, origin: str) -> None:
        super().__init__(
            f"invalid value {value!r} for option {key!r} ({origin}): expected {expected}",
            f"write it like this: {key}: {example}",
        )
        self.key = key
        self.value = value
        self.expected = expected
        self.example = example
        self.origin = origin


class InconsistentOptionsError(ConfigurationError):
    """Two values that are each valid, but contradict each other."""


class ConfigurationFileError(ConfigurationError):
    """A configuration file that is missing, unreadable or not a map of keys to values."""


class OverrideSyntaxError(ConfigurationError):
    """A ``-D`` argument that is not ``key=value``."""
