"""Understudy's operator, hook and trigger for Airflow 3; see ``docs/airflow.md``.

    from understudy.airflow import UnderstudySubmitOperator

    UnderstudySubmitOperator(task_id="words", script="/opt/jobs/word_count.py", args=["{{ ds }}"])

Each name is imported at its first use, so Airflow reads `get_provider_info` without loading a client.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.airflow.hook import UnderstudyHook as UnderstudyHook
    from runtime.airflow.operator import UnderstudyJobLink as UnderstudyJobLink
    from runtime.airflow.operator import UnderstudySubmitOperator as UnderstudySubmitOperator
    from runtime.airflow.trigger import UnderstudyJobTrigger as UnderstudyJobTrigger

_HOME_OF = {
    "UnderstudyHook": "hook",
    "UnderstudyJobLink": "operator",
    "UnderstudyJobTrigger": "trigger",
    "UnderstudySubmitOperator": "operator",
}

__all__ = sorted((*_HOME_OF, "get_provider_info"))


def get_provider_info() -> dict[str, Any]:
    """Return the description of this provider, which Airflow finds by the entry point ``apache_airflow_provider``."""
    return {
        "package-name": "understudy-spark",
        "name": "Understudy",
        "description": "Runs PySpark scripts and pipelines as jobs of an Understudy cluster.",
        "connection-types": [{"connection-type": "understudy", "hook-class-name": "understudy.airflow.UnderstudyHook"}],
    }


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'understudy.airflow' has no attribute {name!r}")
    module = importlib.import_module(f"understudy.runtime.airflow.{_HOME_OF[name]}")
    value = globals()[name] = getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
