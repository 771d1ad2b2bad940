"""``understudy doctor``: checks everything that a cluster needs from its machine.

The checks of a start (`preflight`) stop at the first failure. Doctor makes all of them, and adds checks that are too
slow for every start or rarely fail. Only ``--start-spark`` changes anything: it may write Spark's archive of classes.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import importlib.util
import os
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from actors.errors import ActorError
from conf.configuration import Configuration
from conf.options import (
    ClusterOptions,
    EnvironmentOptions,
    OidcOptions,
    RestOptions,
    SecurityOptions,
    SparkOptions,
)
from runtime.cluster.discovery import connect_locally
from runtime.cluster.host_processes import fixed_workers
from runtime.cluster.preflight import (
    Check,
    CheckResult,
    check_spark_master,
    describe_redis,
    examine,
    standard_checks,
)
from runtime.environment.context import has_redis
from runtime.environment.directory import ClusterDirectory
from runtime.errors import ClusterError, PreflightError
from runtime.ha.errors import HaError
from runtime.protocol.errors import GatewayError
from runtime.protocol.messages import ClusterOverview, TaskManagerView
from runtime.rest.listening import exposure_warning
from runtime.spark.driver.java import REMEDY as JAVA_REMEDY
from runtime.spark.driver.java import find_java
from runtime.spark.driver.launch import class_path
from runtime.spark.errors import SparkError
from runtime.taskexecutor.spark_options import driver_options

EXPECTED = (ActorError, ClusterError, GatewayError, HaError, SparkError, OSError)
JAVA_TIMEOUT_S = 60.0
FUTURE_S = 60.0
"""Seconds that a file may be ahead of the clock: file systems of other machines have their own clocks."""
MODULES = ("pyarrow", "pandas", "grpc", "google.protobuf")
"""Modules that Spark Connect, which runs pipelines, needs in addition to PySpark."""
SPARK_REMEDY = "reinstall Understudy: pip install --force-reinstall 'understudy-spark'"
OTHER_REMEDY = "see the message, and the logs of the cluster in its runtime directory"
REDIS_REMEDY = "fix it, or name another with -D high-availability.redis.url=URL (docs/high-availability.md)"


def examine_machine(configuration: Configuration, start_spark: bool = False) -> list[CheckResult]:
    """Make all checks of a configuration, failed or not; each failure has a remedy."""
    python, *others = (_with_remedy(result) for result in examine(doctor_checks(configuration, start_spark), EXPECTED))
    return [python, *describe_settings(configuration), *others]


def describe_settings(configuration: Configuration) -> list[CheckResult]:
    """Return a result for each setting that should be changed, such as a former name, or one for all settings.

    A setting that should be changed is not a failure: this release accepts it.
    """
    found = [CheckResult("configuration", True, warning.message, warning.remedy) for warning in configuration.warnings]
    return found or [CheckResult("configuration", True, "no setting has to be changed")]


def _with_remedy(result: CheckResult) -> CheckResult:
    """Add a remedy to an error without one."""
    if result.ok or result.remedy:
        return result
    return replace(result, remedy=REDIS_REMEDY if result.name == "Redis" else OTHER_REMEDY)


def doctor_checks(configuration: Configuration, start_spark: bool = False) -> list[Check]:
    """Return all checks of a configuration. If a cluster runs, query it instead of checking its ports."""
    directory = ClusterDirectory(configuration.get(ClusterOptions.RUNTIME_DIR))
    runs = directory.is_running()
    redis = (lambda: describe_redis(configuration)) if has_redis(configuration) else None
    home = configuration.get(EnvironmentOptions.JAVA_HOME)
    is_remote = configuration.get(SparkOptions.REMOTE) is not None
    needed = configuration.get(SparkOptions.DRIVER_MEMORY) * fixed_workers(configuration)
    secrets = [configuration.get(SecurityOptions.SECRET_FILE)]
    if configuration.get(RestOptions.ENABLED):
        secrets.append(configuration.get(RestOptions.TOKEN_FILE))
        if (file := configuration.get(OidcOptions.CLIENT_SECRET_FILE)) is not None:
            secrets.append(file)
    checks = [
        Check("Python", check_python),
        *standard_checks(
            configuration,
            None if is_remote else lambda: check_java(None if home is None else str(home)),
            redis,
            with_ports=not runs,
        ),
        Check("Spark", check_spark),
        Check("Spark master", lambda: check_spark_master(configuration)),
        Check("memory", lambda: check_memory(needed, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))),
        Check("clock", lambda: check_clock(directory.root.glob("*"), time.time())),
        Check("permissions", lambda: check_permissions(directory.root, secrets, os.geteuid())),
    ]
    if configuration.get(RestOptions.ENABLED):
        started_with = directory.configuration_file
        checks.append(
            Check("web access", lambda: check_web_access(Configuration.read(started_with) if runs else configuration))
        )
    if runs:
        checks.append(Check("cluster", lambda: _ask_cluster(configuration)))
    if start_spark and not is_remote:
        checks.append(Check("Spark driver", lambda: asyncio.run(_start_spark(configuration))))
    return checks


def check_python() -> str:
    """Check that the interpreter offers the Linux calls that the actors need."""
    if not hasattr(os, "pidfd_open"):
        raise PreflightError(
            f"{sys.platform} has no pidfd_open, which shows the ends of processes", "use Linux 5.3 or later"
        )
    os.close(os.pidfd_open(os.getpid()))
    return f"Python {sys.version.split()[0]} in {sys.prefix}"


def check_java(home: str | None) -> str:
    """Check that a suitable Java exists and runs; a start only reads its version."""
    try:
        java = find_java(home)
    except SparkError as error:
        raise PreflightError(str(error).removesuffix(JAVA_REMEDY).rstrip(" :;"), JAVA_REMEDY) from error
    try:
        done = subprocess.run(
            [java.executable, "-version"], capture_output=True, text=True, timeout=JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PreflightError(f"{java.executable} does not run: {error}", JAVA_REMEDY) from error
    if done.returncode != 0:
        said = (done.stderr or done.stdout).strip().splitlines()
        why = said[-1] if said else f"exit status {done.returncode}"
        raise PreflightError(f"{java.executable} does not run: {why}", JAVA_REMEDY)
    return f"Java {java.version} in {java.home} (found by {java.source})"


def check_spark() -> str:
    """Check, without importing it, that PySpark has its jars, and the modules that Spark Connect needs."""
    try:
        version = importlib.metadata.version("pyspark")
    except importlib.metadata.PackageNotFoundError as error:
        raise PreflightError("PySpark is not installed", SPARK_REMEDY) from error
    try:
        jars = class_path()
    except SparkError as error:
        raise PreflightError(f"PySpark {version} is incomplete: {error}", SPARK_REMEDY) from error
    missing = [name for name in MODULES if not _is_there(name)]
    if missing:
        raise PreflightError(
            f"PySpark {version} lacks {', '.join(missing)} for Spark Connect", "pip install 'pyspark[connect]' pandas"
        )
    return f"PySpark {version} with {len(jars)} jars"


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # its package is not there either
        return False


def check_memory(needed: int, total: int) -> str:
    """Check that the heaps of the Spark drivers fit into the machine; both in bytes."""
    if needed > total:
        raise PreflightError(
            f"the Spark drivers may take {needed >> 20} MB, the machine has {total >> 20} MB",
            "give each less with -D spark.driver.memory=SIZE, or start fewer with -D taskmanager.count=N",
        )
    return f"{needed >> 20} MB of {total >> 20} MB for Spark drivers"


def check_clock(files: Iterable[Path], now_s: float) -> str:
    """Check that the clock was not set back: epochs of leaders, leases of blobs and certificates depend on it.

    Args:
        files: files whose last changes should be in the past.
        now_s: seconds since the epoch.
    """
    newest, name = 0.0, ""
    for file in files:
        with contextlib.suppress(FileNotFoundError):  # a running cluster makes and removes files
            newest, name = max((newest, name), (file.lstat().st_mtime, str(file)))
    if newest > now_s + FUTURE_S:
        raise PreflightError(
            f"the clock is {newest - now_s:.0f} s behind the last change of {name}",
            "set it right, and let a service keep it right (systemd-timesyncd, chrony)",
        )
    return time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(now_s))


def check_permissions(root: Path, secrets: Iterable[Path], user: int) -> str:
    """Check that only *user* can read the runtime directory and the secrets; missing ones pass.

    Args:
        root: the runtime directory.
        secrets: files that only *user* may read.
        user: the user who runs the cluster.
    """
    for path, is_private_dir in ((root, True), *((secret, False) for secret in secrets)):
        try:
            status = path.stat() if not is_private_dir else path.lstat()
        except FileNotFoundError:
            continue
        if status.st_uid != user:
            raise PreflightError(
                f"{path} belongs to user {status.st_uid}, not to {user}",
                f"run as that user, or `chown {user} {path}` as root",
            )
        if status.st_mode & 0o077:
            mode = "700" if stat.S_ISDIR(status.st_mode) else "600"
            raise PreflightError(
                f"other users may use {path} (mode {stat.S_IMODE(status.st_mode):o})", f"`chmod {mode} {path}`"
            )
    return f"{root} is private to this user" if root.exists() else f"{root} does not exist yet"


def check_web_access(configuration: Configuration) -> str:
    """Check that the web endpoint requires the token, and that other users cannot read it on its way."""
    if warning := exposure_warning(configuration):
        raise PreflightError(warning.removeprefix("WARNING: "), "set it to true, and restart the cluster where it runs")
    return "the token is required"


def _ask_cluster(configuration: Configuration) -> str:
    with connect_locally(configuration) as client:
        overview, workers = client.overview(), client.task_managers()
    return describe_cluster(overview, workers, fixed_workers(configuration))


def describe_cluster(overview: ClusterOverview, workers: Sequence[TaskManagerView], expected: int) -> str:
    """Check that a running cluster can run jobs.

    Args:
        overview: its counts.
        workers: its TaskExecutors.
        expected: number of TaskExecutors that start with it.
    """
    if expected and not workers:
        raise PreflightError(
            "no TaskExecutor is registered: its Spark driver is still starting, or cannot start",
            "check again in some seconds with `understudy status`; then see log/taskmanager-*.log",
        )
    found = (
        f"it runs: {overview.task_managers} TaskExecutor(s), {overview.free_slots} of {overview.slots} slots free, "
        f"{overview.jobs_running} job(s) running"
    )
    losses = [
        f"the Spark driver of {view.registration.resource_id} was replaced; {view.registration.spark_loss}"
        for view in workers
        if view.registration.spark_loss
    ]
    return "; ".join((found, *losses))


async def _start_spark(configuration: Configuration) -> str:
    """Start a Spark driver as a worker does, and stop it."""
    from runtime.spark.driver.local import LocalDriver

    with tempfile.TemporaryDirectory(prefix="us-doctor-") as scratch:
        began = time.monotonic()
        directory = Path(scratch)
        options = driver_options(configuration, directory / "spark", directory / "spark.log")
        driver = await LocalDriver.start(replace(options, event_logs=None))
        took_s = time.monotonic() - began
        await driver.stop()
        return f"Spark {driver.info.spark_version} at {driver.info.master} started in {took_s:.1f} s"
