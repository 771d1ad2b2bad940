"""What jobs bring along to import: each sees its own, also beside another with another version of the same package."""

from __future__ import annotations

import base64
import zipfile
from pathlib import Path

from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job

SCRIPT = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession
import library_probe

def in_worker(_):
    import library_probe
    return library_probe.VERSION

here, other = map(Path, sys.argv[1:])
context = SparkSession.builder.getOrCreate().sparkContext
here.touch()
while not other.exists():
    time.sleep(0.05)
print(library_probe.VERSION, context.range(2).map(in_worker).distinct().collect())
"""

PIPELINE = """\
import time
from pathlib import Path
from pyspark.sql import functions as F
from runtime.api import Pipeline

def in_worker(_):
    import library_probe
    return library_probe.VERSION

def show(ctx):
    import library_probe
    Path(ctx.parameters["here"]).touch()
    while not Path(ctx.parameters["other"]).exists():
        time.sleep(0.05)
    versions = ctx.spark.range(2).select(F.udf(in_worker, "string")("id")).distinct().collect()
    print(library_probe.VERSION, [row[0] for row in versions])

def pipeline(argv):
    job = Pipeline("probe", parameters={"here": argv[0], "other": argv[1]})
    job.sink("show", show)
    return job
"""


JAR_PIPELINE = """\
from runtime.api import Pipeline

def show(ctx):
    ctx.spark.udf.registerJavaFunction("seven_times", "JarProbe", "long")
    print("answer", ctx.spark.sql("SELECT seven_times(6L) AS answer").first().answer)

def pipeline(argv):
    job = Pipeline("jar-probe")
    job.sink("show", show)
    return job
"""

# javac --release 17 -g:none of:
#   public class JarProbe implements org.apache.spark.sql.api.java.UDF1<Long, Long> {
#       public Long call(Long number) { return number * 7; }
#   }
JAR_PROBE = base64.b64decode("""
yv66vgAAAD0AIgoAAgADBwAEDAAFAAYBABBqYXZhL2xhbmcvT2JqZWN0AQAGPGluaXQ+AQADKClWCgAIAAkHAAoMAAsADAEADmphdmEvbGFuZy
9Mb25nAQAJbG9uZ1ZhbHVlAQADKClKBQAAAAAAAAAHCgAIABAMABEAEgEAB3ZhbHVlT2YBABMoSilMamF2YS9sYW5nL0xvbmc7CgAUABUHABYM
ABcAGAEACEphclByb2JlAQAEY2FsbAEAIihMamF2YS9sYW5nL0xvbmc7KUxqYXZhL2xhbmcvTG9uZzsHABoBACJvcmcvYXBhY2hlL3NwYXJrL3
NxbC9hcGkvamF2YS9VREYxAQAEQ29kZQEAJihMamF2YS9sYW5nL09iamVjdDspTGphdmEvbGFuZy9PYmplY3Q7AQAKRXhjZXB0aW9ucwcAHwEA
E2phdmEvbGFuZy9FeGNlcHRpb24BAAlTaWduYXR1cmUBAFhMamF2YS9sYW5nL09iamVjdDtMb3JnL2FwYWNoZS9zcGFyay9zcWwvYXBpL2phdm
EvVURGMTxMamF2YS9sYW5nL0xvbmc7TGphdmEvbGFuZy9Mb25nOz47ACEAFAACAAEAGQAAAAMAAQAFAAYAAQAbAAAAEQABAAEAAAAFKrcAAbEA
AAAAAAEAFwAYAAEAGwAAABgABAACAAAADCu2AAcUAA1puAAPsAAAAAAQQQAXABwAAgAbAAAAFQACAAIAAAAJKivAAAi2ABOwAAAAAAAdAAAABA
ABAB4AAQAgAAAAAgAh
""")


def wheel(directory: Path, version: str) -> Path:
    """A wheel with one module that knows its version."""
    path = directory / f"library_probe-{version}-py3-none-any.whl"
    info = f"library_probe-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("library_probe.py", f"VERSION = {version!r}\n")
        packed.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: library_probe\nVersion: {version}\n")
        packed.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        packed.writestr(f"{info}/RECORD", "")
    return path


def output_of(cluster: Cluster, job_id: str) -> str:
    cluster.await_status(job_id, "FINISHED")
    return cluster.run("job", "logs", job_id).stdout


def test_two_jobs_with_two_versions_of_a_package_run_at_once(cluster: Cluster, tmp_path: Path) -> None:
    gates = [str(tmp_path / "first"), str(tmp_path / "second")]
    first = cluster.submit(
        write_job(tmp_path, SCRIPT, "script.py"), *gates, options=("--package", str(wheel(tmp_path, "1.0")))
    )
    second = cluster.submit(
        write_job(tmp_path, PIPELINE, "flow.py"), *gates[::-1], options=("--package", str(wheel(tmp_path, "2.0")))
    )
    assert "1.0 ['1.0']" in output_of(cluster, first)
    assert "2.0 ['2.0']" in output_of(cluster, second)


def test_packages_that_cannot_be_installed_fail_the_job_with_pips_words(cluster: Cluster, tmp_path: Path) -> None:
    broken = tmp_path / "broken-1.0-py3-none-any.whl"
    broken.write_bytes(b"no wheel")
    script = write_job(tmp_path, "print('never')\n")
    done = cluster.run("job", "run", "--package", str(broken), str(script), check=False)
    assert done.returncode == 1
    assert "EnvironmentBuildError: pip could not install the job's packages" in done.stderr
    assert "never" not in done.stdout


def test_a_cancelled_job_does_not_wait_for_its_installation(cluster: Cluster, tmp_path: Path) -> None:
    source = tmp_path / "slow-1.0"
    source.mkdir()
    began = tmp_path / "began"
    (source / "setup.py").write_text(
        f"import pathlib, time\npathlib.Path({str(began)!r}).touch()\ntime.sleep(6000)\n"
        "from setuptools import setup\nsetup(name='slow', version='1.0')\n"
    )
    archive = tmp_path / "slow-1.0.zip"
    with zipfile.ZipFile(archive, "w") as packed:
        packed.write(source / "setup.py", "slow-1.0/setup.py")
    job_id = cluster.submit(write_job(tmp_path, "print('never')\n"), options=("--package", str(archive)))
    await_value(lambda: began.exists() or None)
    cluster.run("job", "cancel", job_id)
    cluster.await_status(job_id, "CANCELED")


def test_a_pipeline_uses_a_class_of_its_jar(cluster: Cluster, tmp_path: Path) -> None:
    jar = tmp_path / "probe.jar"
    with zipfile.ZipFile(jar, "w") as packed:
        packed.writestr("JarProbe.class", JAR_PROBE)
    file = write_job(tmp_path, JAR_PIPELINE, "flow.py")
    assert cluster.run("job", "run", "--jar", str(jar), str(file)).stdout == "answer 42\n"
    without = cluster.run("job", "run", str(file), check=False)
    assert without.returncode == 1, "the jar was that job's own"
    assert "JarProbe" in without.stderr


JARS = """\
import sys, time
from pathlib import Path
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
here, other = map(Path, sys.argv[1:])
here.touch()
while not other.exists():
    time.sleep(0.05)
loader = spark._jvm.java.lang.Thread.currentThread().getContextClassLoader()
found = loader.getResource("understudy-version.txt")
print("version", found and Path(found.getPath().split("!")[0].removeprefix("file:")).name, spark.range(5).count())
"""


def jar(directory: Path, name: str) -> Path:
    """A jar with one resource."""
    path = directory / name
    with zipfile.ZipFile(path, "w") as packed:
        packed.writestr("understudy-version.txt", name)
    return path


def test_a_script_with_jars_has_a_spark_driver_of_its_own(cluster: Cluster, tmp_path: Path) -> None:
    script = write_job(tmp_path, JARS)
    gates = [str(tmp_path / "first"), str(tmp_path / "second")]
    with_jar = cluster.submit(script, *gates, options=("--jar", str(jar(tmp_path, "connector-1.jar"))))
    without = cluster.submit(script, *gates[::-1])
    await_value(Path(gates[0]).exists)
    drivers = [pid for pid, name in cluster.processes().items() if name == "java"]
    assert len(drivers) >= 2
    assert "version None 5" in output_of(cluster, without)
    assert "version connector-1.jar 5" in output_of(cluster, with_jar)
    shared = cluster.json("status")["task_executors"][0]["spark_pid"]
    told = cluster.run("job", "logs", with_jar).stderr
    assert "brings jars (connector-1.jar): it runs on a Spark driver of its own, process " in told
    own = int(told.split("of its own, process ")[1].split()[0])
    assert own != shared
    assert own not in cluster.processes(), "it ends with its job"
    assert shared in cluster.processes()
