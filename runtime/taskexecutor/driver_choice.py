"""Choice of the Spark driver of a task, and of its settings: those of its job, and those in its script's text.

The text is a hint only, and is never run. It does not show values that the script computes, nor those of a library. The
shared driver rejects or undoes these, or ignores them with a line in the task's standard error. See
`runtime.spark.driver.script_application` and `runtime.spark.task.classic`.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence

from conf.options import SparkDriverChoice, SparkOptions
from conf.registry import is_job_setting
from runtime.jobgraph.job_graph import JobKind
from runtime.spark.driver.packages import IVY_DIR, IVY_SETTINGS, PACKAGES, REPOSITORIES
from runtime.taskexecutor.spark_options import CATALOG, WAREHOUSE

START_SETTINGS = (
    "spark.jars",
    "spark.jars.packages",
    "spark.sql.extensions",
    CATALOG,
    WAREHOUSE,
    "spark.default.parallelism",
    "spark.driver.memory",
    "spark.plugins",
)
"""Settings that Spark reads only at its start, and without which a script fails or computes different results.

With ``task.spark-driver=auto``, a script that names one gets its own driver."""

_HOW_TO_FETCH = frozenset((REPOSITORIES, IVY_DIR, IVY_SETTINGS))
"""Settings that matter only while packages are fetched."""

_HINTS = (
    (r"\bStreamingContext\b", "uses DStreams, and a driver runs the streams of one program only"),
    (
        r"\bhadoopConfiguration\b",
        "changes Hadoop's configuration, and the tasks of a driver share its open file systems",
    ),
    (
        r"\bfs\.(s3[an]?|azure|abfss?|wasbs?|adl|gs|oss|obs|cosn|swift)\.",
        "configures a file system, and the tasks of a driver share its open file systems",
    ),
    (r"\bADD\s+JARS?\b|\baddJar\b", "adds jars while it runs, which every task of a driver would get"),
    (
        r"(?:\b_jsc|\bspark\.SparkContext\.getOrCreate\(\))[\w.()]*\.(?:cancel(?:All)?(?:Job|Stage)s?|addFile|addArchive)\b",
        "cancels jobs or adds files through the JVM, which are those of all tasks of a driver",
    ),
    (r"\baddSparkListener\b", "adds a listener to Spark, which would hear of the other tasks too"),
    (r"\b(?:TimeZone|Locale)\.setDefault\b", "changes the time zone or locale of its JVM, which other tasks use"),
    (r"\bSystem\.exit\b|\bgetRuntime\(\)|\bRuntime\.halt\b", "ends its JVM, which would be the other tasks' too"),
)
"""Patterns in the text of a script that cannot share a driver, and the reason for each."""


def own_driver_reason(
    choice: SparkDriverChoice, text: str, jars: Sequence[str], start_settings: Collection[str] = ()
) -> str:
    """Return why a task needs its own Spark driver, as a predicate; empty if it shares the TaskExecutor's driver.

    Args:
        choice: ``task.spark-driver``.
        text: the script; empty for a pipeline.
        jars: names of the jars that the job brings for a script.
        start_settings: names of the settings, of the job or in the text, that the shared driver cannot have.
    """
    if jars:  # they would change the class path of the one context that scripts share
        return f"brings jars ({', '.join(jars)})"
    if choice is SparkDriverChoice.OWN:
        return "requests one (task.spark-driver)"
    if choice is SparkDriverChoice.AUTO:
        if start_settings:
            return f"has settings that Spark takes only at its start ({', '.join(sorted(start_settings))})"
        for pattern, reason in _HINTS:
            if re.search(pattern, text, re.IGNORECASE):
                return reason
    return ""


def missing_settings(at_start: Mapping[str, bool]) -> set[str]:
    """Return the keys of settings that a driver lacks; if it has the packages, their repositories do not matter.

    Args:
        at_start: keys that Spark reads only at its start, each with whether the driver has the value.
    """
    missing = {key for key, holds in at_start.items() if not holds}
    return missing - _HOW_TO_FETCH if at_start.get(PACKAGES) else missing


def session_settings(kind: JobKind, settings: Mapping[str, str]) -> dict[str, str]:
    """Return a job's settings as a session takes them: Spark Connect takes Hadoop's without their prefix."""
    if kind is JobKind.SCRIPT:
        return dict(settings)
    return {key.removeprefix("spark.hadoop."): value for key, value in settings.items()}


def settings_in(text: str) -> dict[str, str]:
    """Return the Spark settings that a script makes before Spark starts, as far as its text has them literally.

    These are calls of `config`, `set`, `setAll`, `master`, `setMaster` and `enableHiveSupport` with constants, or with
    names to which the script assigns one constant. If a key is set twice, the last value counts.
    """
    if not re.search(r"['\"]spark\.|enableHiveSupport|\.\s*(?:set)?[mM]aster\s*\(", text):
        return {}
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return {}  # the script fails when it runs, and reports why
    constants = _constants(tree)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls.sort(key=lambda call: (call.end_lineno or 0, call.end_col_offset or 0))  # the last call of a chain is last
    found = [pair for call in calls for pair in _settings_of(call, constants)]
    return {key: value for key, value in found if key.startswith("spark.") and is_job_setting(key)}


def _settings_of(call: ast.Call, constants: dict[str, str]) -> Iterator[tuple[str, str]]:
    if not isinstance(call.func, ast.Attribute):
        return
    named = {item.arg: item.value for item in call.keywords}
    match call.func.attr, [*call.args, *(named[name] for name in ("key", "value") if name in named)]:
        case "enableHiveSupport", []:
            yield CATALOG, "hive"
        case (("master" | "setMaster"), [master]):
            yield from _pair(ast.Constant(SparkOptions.MASTER.key), master, constants)
        case (("config" | "set"), [key, value]):
            yield from _pair(key, value, constants)
        case "config", [] if isinstance(settings := named.get("map"), ast.Dict):
            for each, value in zip(settings.keys, settings.values, strict=True):
                if each is not None:
                    yield from _pair(each, value, constants)
        case "setAll", [ast.List(items) | ast.Tuple(items)]:
            for item in items:
                match item:
                    case ast.Tuple([key, value]):
                        yield from _pair(key, value, constants)


def _pair(key: ast.expr, value: ast.expr, constants: dict[str, str]) -> Iterator[tuple[str, str]]:
    name, text = _constant(key, constants), _constant(value, constants)
    if name is not None and text is not None:
        yield name, text


def _constant(node: ast.expr, constants: dict[str, str]) -> str | None:
    """Return a constant as PySpark passes it to Spark."""
    match node:
        case ast.Constant(bool(value)):
            return str(value).lower()
        case ast.Constant(str(value) | int(value) | float(value)):
            return str(value)
        case ast.Name(name):
            return constants.get(name)
    return None


def _constants(tree: ast.AST) -> dict[str, str]:
    """Return the names to which a text assigns a constant, and nothing else."""
    stores: Counter[str] = Counter()
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Name(name, ast.Store()):
                stores[name] += 1
            case ast.Assign([ast.Name(name)], ast.Constant() as value) if (text := _constant(value, {})) is not None:
                found[name] = text
    return {name: text for name, text in found.items() if stores[name] == 1}
