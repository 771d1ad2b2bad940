"""Scripts that share a Spark driver neither harm nor read each other's Spark; docs/isolation.md is the table of these.

One job runs beside all of the others (`BESIDE`). After each bully a third job (`AFTER`) looks for what it has left. One
script does what several bullies do, one after the other; the long form has a script for each.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.cluster_harness import Cluster, await_value
from tests.job_files import write_job

SHARED = ("-D", "task.spark-driver=shared")

BEGIN = """\
import os, sys, threading, time
from pathlib import Path
from pyspark import SparkFiles
from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = SparkSession.builder.getOrCreate()
sc = spark.sparkContext
jvm = spark._jvm
hadoop = sc._jsc.hadoopConfiguration()

def attempt(name, call):
    try:
        call()
    except Exception as error:
        print(name, "refused:", "Cannot stop" in str(error) or "--own-driver" in str(error), flush=True)
    else:
        print(name, "done", flush=True)
"""

ADDED = """
import zipfile
def archive(name):
    with zipfile.ZipFile(name, "w") as file:
        file.writestr("inside.txt", "{whose}")
    return Path(name).resolve()
Path("helper.py").write_text("WHOSE = '{whose}'")
sc.addPyFile("helper.py")
sc.addArchive(str(archive("data.zip")) + "#data")
Path("sql.txt").write_text("{whose}")
spark.sql(f"/* a comment */ ADD FILE '{{Path('sql.txt').resolve()}}'")
spark.sql("EXECUTE IMMEDIATE :added", {{"added": f"ADD ARCHIVE '{{archive('sql.zip')}}'"}})
Path("udf.txt").write_text("{whose}")
spark.sql(f"CREATE TEMPORARY FUNCTION unused AS 'java.util.ArrayList' USING FILE '{{Path('udf.txt').resolve()}}'")
def added():
    def look(_):
        import helper
        read = lambda name: open(SparkFiles.get(name)).read()
        return {{
            "addPyFile": helper.WHOSE,
            "addArchive": read("data/inside.txt"),
            "ADD FILE": read("sql.txt"),
            "ADD ARCHIVE": read("sql.zip/inside.txt"),
            "USING FILE": read("udf.txt"),
        }}
    return sc.parallelize([0], 1).map(look).first()
"""

BESIDE = (
    BEGIN
    + ADDED.format(whose="mine")
    + """
hadoop.set("fs.s3a.access.key", "mine")
sc.setCheckpointDir(sys.argv[2])
Path("config.txt").write_text("mine")
sc.addFile("config.txt")
spark.range(5).createOrReplaceGlobalTempView("common")
cached = spark.range(9).cache()
cached.count()
kept = sc.parallelize(range(4), 2).persist()
kept.count()
read = lambda _: open(SparkFiles.get("config.txt")).read()
Path(sys.argv[1] + ".began").touch()
while not Path(sys.argv[1]).exists():
    time.sleep(0.05)
print(hadoop.get("fs.s3a.access.key"), sc.getCheckpointDir().startswith("file:" + sys.argv[2]))
print(read(0), sc.parallelize([0], 1).map(read).collect(), spark.range(1).select(udf(read)("id")).first()[0])
print(set(added().values()))
print(spark.table("global_temp.common").count(), cached.storageLevel.useMemory, kept.is_cached)
blocks = sc._jsc.sc().getPersistentRDDs().size()
print(blocks, sc._jvm.SparkSession.getDefaultSession().isDefined())
zone, locale = jvm.java.util.TimeZone.getDefault(), jvm.java.util.Locale.getDefault()
print("Kiritimati" in zone.getID(), locale.getCountry() == "KI")
exec(Path(sys.argv[1]).read_text())
"""
)
BESIDE_SAYS = "mine True\nmine ['mine'] mine\n{'mine'}\n5 True True\n2 True\nFalse False\n"

AFTER = (
    BEGIN
    + """
print(hadoop.get("fs.s3a.access.key"), sc.getCheckpointDir(), jvm.java.lang.System.getProperty("bully"))
print(sc.getConf().get("spark.bully"))
print([view.viewName for view in spark.sql("SHOW VIEWS IN global_temp").collect()])
everyones = jvm.org.apache.spark.SparkContext.getOrCreate()
print(everyones.getPersistentRDDs().size(), sc.getLocalProperty("spark.jobGroup.id"))
print(sc.statusTracker().getJobIdsForGroup(), jvm.org.apache.logging.log4j.LogManager.getRootLogger().getLevel().name())
print(sc.parallelize(range(4), 2).map(lambda x: x + 1).sum(), spark.range(3).select(udf(str)("id")).count())
def found(_):
    import importlib.util
    names = ("helper.py", "data", "sql.txt", "sql.zip", "udf.txt")
    there = [name for name in names if os.path.exists(SparkFiles.get(name))]
    return there, importlib.util.find_spec("helper")
print(found(0)[0], sc.parallelize([0], 1).map(found).first(), list(sc.listFiles), list(sc.listArchives))
zone, locale = jvm.java.util.TimeZone.getDefault(), jvm.java.util.Locale.getDefault()
print("Kiritimati" in zone.getID(), locale.getCountry() == "KI")
"""
)
AFTER_SAYS = "None None None\nNone\n[]\n0 None\n[] INFO\n10 3\n[] ([], None) [] []\nFalse False\n"

# A file system that Hadoop opens for the first script that asks for it.
FILE_SYSTEM = """
hadoop.set("fs.bully.impl", "org.apache.hadoop.fs.RawLocalFileSystem")
opened = lambda: jvm.org.apache.hadoop.fs.FileSystem.get(jvm.java.net.URI("bully://host/"), hadoop)
"""

BULLIES = {
    "stop": (
        """
attempt("java context", lambda: sc._jsc.stop())
attempt("context", lambda: sc._jsc.sc().stop())
attempt("any context", lambda: jvm.org.apache.spark.SparkContext.getOrCreate().stop())
attempt("session", lambda: spark._jsparkSession.stop())
thread = threading.Thread(target=attempt, args=("thread", lambda: sc._jsc.stop()))
thread.start()
thread.join()
spark.stop()
print(SparkSession.builder.getOrCreate().range(3).count())
""",
        "".join(f"{name} refused: True\n" for name in ("java context", "context", "any context", "session", "thread"))
        + "3\n",
    ),
    "dstream": (
        """
from pyspark.streaming import StreamingContext
streaming = StreamingContext(sc, 1)
streaming.queueStream([sc.parallelize(range(3))]).foreachRDD(lambda rdd: None)
streaming.start()
streaming.stop()
print(SparkSession.builder.getOrCreate().range(3).count())
""",
        "3\n",
    ),
    "dstream-left": (
        """
from pyspark.streaming import StreamingContext
streaming = StreamingContext(sc, 1)
streaming.queueStream([sc.parallelize(range(3))]).foreachRDD(lambda rdd: None)
streaming.start()
print("left")
os._exit(0)
""",
        None,
    ),
    "settings": (
        """
print(sc.getConf().get("spark.app.name"))
sc._jsc.sc().conf().set("spark.bully", "was here")
print(sc.getConf().get("spark.bully"))
""",
        "bully\nwas here\n",
    ),
    "hadoop-configuration": (
        """
print(hadoop.get("fs.s3a.access.key"))
hadoop.set("fs.s3a.access.key", "hunter2")
spark._jsparkSession.sparkContext().hadoopConfiguration().set("fs.s3a.secret.key", "hunter2")
print(spark._jsparkSession.sessionState().newHadoopConf().get("fs.s3a.access.key"))
""",
        "None\nhunter2\n",
    ),
    "checkpoint-directory": (
        """
sc.setCheckpointDir("checkpoints")
numbers = sc.parallelize(range(3))
numbers.checkpoint()
numbers.count()
print(numbers.isCheckpointed())
""",
        "True\n",
    ),
    "files": (
        """
Path("config.txt").write_text("theirs")
sc.addFile("config.txt")
read = lambda _: open(SparkFiles.get("config.txt")).read()
print(read(0), sc.parallelize([0], 1).map(read).collect(), spark.range(1).select(udf(read)("id")).first()[0])
said = []
thread = threading.Thread(target=lambda: said.extend(sc.parallelize([0], 1).map(read).collect()))
thread.start()
thread.join()
print(said)
attempt("ADD JAR", lambda: spark.sql("ADD JAR /nowhere/some.jar"))
attempt("USING JAR", lambda: spark.sql("CREATE TEMPORARY FUNCTION f AS 'org.example.F' USING JAR '/nowhere/some.jar'"))
""",
        "theirs ['theirs'] theirs\n['theirs']\nADD JAR refused: True\nUSING JAR refused: True\n",
    ),
    "files-of-other-kinds": (
        ADDED.format(whose="theirs") + "print(added())\n",
        "{'addPyFile': 'theirs', 'addArchive': 'theirs', 'ADD FILE': 'theirs', 'ADD ARCHIVE': 'theirs', "
        "'USING FILE': 'theirs'}\n",
    ),
    "files-by-the-jvm": (
        """
Path("config.txt").write_text("theirs")
sc._jsc.sc().addFile(str(Path("config.txt").resolve()))
Path("config.txt").write_text("others")
print(sc.parallelize([0], 1).map(str).collect())
""",
        "['0']\n",
    ),
    "caches": (
        """
spark.catalog.clearCache()
spark.range(7).cache().count()
sc.parallelize(range(9)).persist().count()
spark.range(8).createOrReplaceTempView("numbers")
spark.sql("CACHE TABLE numbers")
print("cached")
""",
        "cached\n",
    ),
    "global-views": (
        """
print([view.viewName for view in spark.sql("SHOW VIEWS IN global_temp").collect()])
spark.range(1).createOrReplaceGlobalTempView("common")
print(spark.newSession().table("global_temp.common").count())
spark.range(1).createOrReplaceGlobalTempView("left")
""",
        "[]\n1\n",
    ),
    "jobs": (
        """
sc.setJobGroup("nightly", "")
sc.parallelize(range(3)).count()
print(len(sc.statusTracker().getJobIdsForGroup("nightly")), len(sc.statusTracker().getJobIdsForGroup()))
sc.addJobTag("tag")
print(sc.getJobTags())
sc.cancelJobGroup("nightly")
sc.cancelJobsWithTag("tag")
sc.cancelAllJobs()
""",
        "1 0\n{'tag'}\n",
    ),
    "the-jvm": (
        """
sc.setLogLevel("OFF")
sc._jsc.setLogLevel("OFF")
jvm.java.lang.System.setProperty("bully", "was here")
jvm.SparkSession.clearDefaultSession()
print("done")
""",
        "done\n",
    ),
    "time-zone": (
        """
jvm.java.util.TimeZone.setDefault(jvm.java.util.TimeZone.getTimeZone("Pacific/Kiritimati"))
jvm.java.util.Locale.setDefault(jvm.java.util.Locale("en", "KI"))
print(spark.sql("SELECT current_timezone()").first()[0])
""",
        "Pacific/Kiritimati\n",
    ),
    "tables": (
        """
spark.sql("DROP TABLE IF EXISTS bullys")
spark.range(6).write.saveAsTable("bullys")
print(spark.table("bullys").count())
""",
        "6\n",
    ),
    "file-systems": (
        FILE_SYSTEM
        + """
hadoop.set("bullys.password", "hunter2")
print(opened().getConf().get("bullys.password"))
""",
        "hunter2\n",
    ),
    "threads-and-listeners": (
        """
jvm.org.apache.spark.util.ThreadUtils.newDaemonFixedThreadPool(1, "bullys").prestartAllCoreThreads()
sc._jsc.sc().addSparkListener(jvm.org.apache.spark.scheduler.StatsReportListener())
print("left")
""",
        "left\n",
    ),
    "static-fields": (
        """
jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf().set("bullys.password", "hunter2")
print("left")
""",
        "left\n",
    ),
}

# What stays shared, as the page says: how a job beside it or after it finds it, and what that prints.
SHARED_STILL = {
    "files-by-the-jvm": (
        """
print(os.path.exists(SparkFiles.get("config.txt")))
""",
        "True\n",
    ),
    "tables": (
        """
print(spark.table("bullys").count())
""",
        "6\n",
    ),
    "file-systems": (
        FILE_SYSTEM
        + """
print(opened().getConf().get("bullys.password"))
hadoop.setBoolean("fs.bully.impl.disable.cache", True)
print(opened().getConf().get("bullys.password"))
""",
        "hunter2\nNone\n",
    ),
    "threads-and-listeners": (
        """
print("bullys-0" in [thread.getName() for thread in jvm.java.lang.Thread.getAllStackTraces().keySet()])
listeners = sc._jsc.sc().listenerBus().listeners()
print("StatsReportListener" in [listener.getClass().getSimpleName() for listener in listeners])
""",
        "True\nTrue\n",
    ),
    "static-fields": (
        """
print(jvm.org.apache.spark.deploy.SparkHadoopUtil.get().conf().get("bullys.password"))
""",
        "hunter2\n",
    ),
}


ALONE = tuple((bully,) for bully in BULLIES)
TOGETHER = (
    # Its own jobs are counted, so it is first; after the last ones nothing else works any more.
    ("jobs", "settings", "hadoop-configuration", "checkpoint-directory", "files-by-the-jvm", "global-views", "caches",
     "dstream", "stop"),
    ("files", "files-of-other-kinds", "the-jvm", "time-zone", "tables", "file-systems", "threads-and-listeners",
     "static-fields"),
    ("dstream-left",),
)  # fmt: skip


def test_each_bully_is_in_one_of_the_scripts() -> None:
    assert sorted(bully for bullies in TOGETHER for bully in bullies) == sorted(BULLIES)


@dataclass
class Beside:
    """The job beside the bullies: the driver's process, and the bullies so far."""

    driver: int
    bullies: set[str] = field(default_factory=set)


@pytest.fixture(scope="module")
def beside(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Beside]:
    """A job that runs beside the bullies, and at the end still has what is its own, and sees what is shared."""
    directory = tmp_path_factory.mktemp("beside")
    gate = directory / "gate"
    file = write_job(directory, BESIDE)
    job_id = cluster.submit(file, str(gate), str(directory / "checkpoints"), options=SHARED)
    await_value(Path(f"{gate}.began").exists)
    job = Beside(driver_of(cluster))
    yield job
    looks, said = shared_still(job.bullies)
    (directory / "looks").write_text(looks)
    (directory / "looks").rename(gate)
    assert cluster.await_status(job_id, "FINISHED")["restarts"] == 0
    assert cluster.run("job", "logs", job_id).stdout == BESIDE_SAYS + said


def shared_still(bullies: Collection[str]) -> tuple[str, str]:
    """How another job looks for what these bullies have changed for all, and what it finds."""
    looks = [SHARED_STILL[bully] for bully in sorted(bullies) if bully in SHARED_STILL]
    return "".join(text for text, _ in looks), "".join(said for _, said in looks)


def driver_of(cluster: Cluster) -> int:
    """The process of the shared driver, once its TaskExecutor is registered."""
    managers = await_value(lambda: cluster.json("status")["task_executors"])
    return int(managers[0]["spark_pid"])


@pytest.mark.parametrize(
    "bullies", [*TOGETHER, *(pytest.param(bullies, marks=pytest.mark.slow) for bullies in ALONE)], ids="+".join
)
def test_a_script_keeps_to_its_own_spark(
    cluster: Cluster, beside: Beside, tmp_path: Path, bullies: tuple[str, ...]
) -> None:
    texts, says = zip(*(BULLIES[bully] for bully in bullies), strict=True)
    script = "".join(BEGIN + text for text in texts)
    done = cluster.run("job", "run", *SHARED, str(write_job(tmp_path, script, "bully.py")))
    if None not in says:
        assert done.stdout == "".join(says)
    beside.bullies.update(bullies)
    looks, said = shared_still(bullies)
    after = cluster.run("job", "run", *SHARED, str(write_job(tmp_path, AFTER + looks, "after.py")))
    assert after.stdout == AFTER_SAYS + said
    assert driver_of(cluster) == beside.driver, "the driver has not been replaced"
