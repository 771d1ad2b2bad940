"""What every line of a log says of where it comes from (slf4j's MDC, as Flink's `MdcUtils` use it).

A process has a context of its own: which component it is, under which epoch it leads, for which job it works. Work for
one job or one attempt beside that of others adds its own for as long as it runs; tasks that it starts inherit it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar

FIELDS = ("component", "epoch", "job", "attempt")
"""The fields, in the order in which a line shows them."""

_of_process: dict[str, str] = {}
_of_task: ContextVar[Mapping[str, str]] = ContextVar("log context")


def set_process_context(**fields: object) -> None:
    """Let each line of this process say these *fields*; one that is None is said no more."""
    for name, value in fields.items():
        if value is None:
            _of_process.pop(name, None)
        else:
            _of_process[name] = str(value)


@contextmanager
def log_context(**fields: str) -> Iterator[None]:
    """Let what is logged within say these *fields* too."""
    token = _of_task.set({**_of_task.get({}), **fields})
    try:
        yield
    finally:
        _of_task.reset(token)


def current_context() -> dict[str, str]:
    """The fields of now."""
    return {**_of_process, **_of_task.get({})}
