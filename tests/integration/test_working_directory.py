"""A project of several files gives the same under plain `python` and under `understudy job run`: output and files."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.spark.driver.java import find_java, launcher_home
from tests.cluster_harness import Cluster
from tests.command_server import COMMANDS
from tests.waiting import PATIENCE_S

HELPERS = """\
from pathlib import Path

def rate(region):
    lines = Path("data/rates.csv").read_text().splitlines()
    return float(dict(line.split(",") for line in lines)[region])
"""

JOB = """\
import argparse, os, sys
from pathlib import Path

from pyspark.ml.feature import Binarizer, ElementwiseProduct
from pyspark.ml.linalg import Vectors
from pyspark.sql import SparkSession, functions as F

import conf.settings, helpers, runtime

parser = argparse.ArgumentParser()
parser.add_argument("--out", required=True)
parser.add_argument("-D", "--define", action="append")
parser.add_argument("--json", action="store_true")
args = parser.parse_args()
print(args, sys.argv, Path(__file__) == Path.cwd() / sys.argv[0], sys.path[0] == str(Path.cwd()))
print(conf.settings.NAME, runtime.described(), __name__)

spark = SparkSession.builder.getOrCreate()
spark.sparkContext.setLogLevel("OFF")
sales = spark.read.option("header", True).csv("data/sales.csv")
print("rows", sales.count(), spark.read.format("csv").options(path="data/sales.csv").load().count())
print("lines", spark.sparkContext.textFile("data/sales.csv,data/rates.csv").count())

rate = F.udf(helpers.rate, "double")
priced = sales.select("region", (F.col("amount") * rate("region")).alias("price"))
print("priced", [tuple(row) for row in priced.orderBy("price").collect()])
print("rdd", sorted(spark.sparkContext.parallelize(["north", "south"], 2).map(helpers.rate).collect()))

Path(args.out).mkdir(exist_ok=True)
Path(args.out, "python.txt").write_text("by python")
priced.coalesce(1).write.mode("overwrite").csv(f"{args.out}/by-spark")
priced.coalesce(1).write.format("json").mode("overwrite").save(f"{args.out}/saved")
print("sql", spark.sql(f"SELECT * FROM csv.`{args.out}/by-spark`").count())
priced.rdd.map(str).coalesce(1).saveAsTextFile(f"{args.out}/text")
print("read again", spark.read.csv(f"{args.out}/by-spark").count(), spark.read.text(f"{args.out}/text").count())
Binarizer(threshold=1.0).write().overwrite().save(f"{args.out}/model")
print("model", Binarizer.load(f"{args.out}/model").getThreshold())

doubled = ElementwiseProduct(scalingVec=Vectors.dense([2.0]), inputCol="v", outputCol="w")
print("vector", doubled.transform(spark.createDataFrame([(Vectors.dense([3.0]),)], ["v"])).first().w)

stream = spark.readStream.schema("region STRING, rate DOUBLE").csv("data/rates*.csv")
query = stream.writeStream.format("parquet").option("checkpointLocation", f"{args.out}/checkpoint")
query.trigger(availableNow=True).start(f"{args.out}/stream").awaitTermination()
print("stream", spark.read.parquet(f"{args.out}/stream").count())
"""

PROJECT = {
    "job.py": JOB,
    "helpers.py": HELPERS,
    "conf/__init__.py": "",
    "conf/settings.py": "NAME = 'own settings'\n",
    "runtime.py": "def described():\n    return 'own runtime'\n",
    "data/sales.csv": "region,amount\nnorth,10\nsouth,20\n",
    "data/rates.csv": "north,0.5\nsouth,2.0\n",
}

PIPELINE = """\
from pathlib import Path
from pyspark.sql import functions as F
from understudy import Context, Pipeline
import helpers

def sales(ctx: Context):
    return ctx.spark.read.option("header", True).csv("data/sales.csv")

def write(ctx: Context, sales):
    rate = F.udf(helpers.rate, "double")
    sales.select("region", rate("region").alias("rate")).coalesce(1).write.mode("overwrite").csv("rated")
    Path("count.txt").write_text(str(sales.count()))
    rows = ctx.spark.readStream.schema("region STRING, rate DOUBLE").csv("data/rates*.csv")
    writer = rows.writeStream.trigger(availableNow=True).option("checkpointLocation", "checkpoint")
    writer.foreachBatch(lambda batch, _: batch.write.mode("append").csv("batches"))
    for last in (*(False,) * 20, True):  # on a busy machine: Spark gives the Python of a foreachBatch 10 s to start
        try:
            writer.start().awaitTermination()
            break
        except Exception as error:
            if last or "Python worker failed to connect back" not in str(error):
                raise
    print("batches", ctx.spark.read.csv("batches").count())

def pipeline(argv):
    job = Pipeline("rated")
    job.source("sales", sales).sink("write", write)
    return job
"""


def make_project(directory: Path) -> Path:
    """The files of the project, in a directory of their own."""
    for name, text in PROJECT.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return directory


def files_below(directory: Path) -> dict[str, bytes]:
    """Return the files that a project has written, by path; names that Spark makes up are replaced.

    Compiled modules are left out: plain Python writes all of them, a job only those of Spark's workers.
    """
    found = {}
    for root, directories, names in os.walk(directory):
        if "__pycache__" in directories:
            directories.remove("__pycache__")
        for name in names:
            path = Path(root, name)
            text = re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "ID", str(path.relative_to(directory)))
            is_data = path.suffix in (".csv", ".json", ".txt") or path.name.startswith("part-0")
            is_same = is_data and not any(part in text for part in ("parquet", "checkpoint", "model"))
            found[text] = path.read_bytes() if is_same else b""
    found.pop("results/.checkpoint.lease", None)  # by which nobody else writes there meanwhile
    return found


def understudy(cluster: Cluster, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command of `understudy` in a directory."""
    return COMMANDS.run(cluster.command(*arguments)[3:], cwd=directory, env=os.environ, timeout=PATIENCE_S)


def run(cluster: Cluster, directory: Path, *arguments: str) -> str:
    """Run a command of `understudy` in a directory; returns what it prints."""
    done = understudy(cluster, directory, *arguments)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{cluster.logs()}"
    return done.stdout


def test_a_project_runs_as_with_python(cluster: Cluster, tmp_path: Path) -> None:
    plain, own = make_project(tmp_path / "plain"), make_project(tmp_path / "own")
    given = ("job.py", "--out", "results", "-D", "k=v", "--json")
    environment = {**os.environ, "JAVA_HOME": str(launcher_home(find_java(), tmp_path / "java"))}
    done = subprocess.run(
        [sys.executable, *given], cwd=plain, capture_output=True, text=True, timeout=PATIENCE_S, check=False,
        env={**environment, "PYSPARK_PYTHON": sys.executable},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = run(cluster, own, "job", "run", *given)
    assert shown == done.stdout
    assert "rows 2 3" in shown
    shutil.rmtree(plain / "spark-warehouse", ignore_errors=True)
    ours, plains = files_below(own), files_below(plain)
    assert sorted(ours.keys() ^ plains.keys()) == []
    assert ours == plains


@pytest.mark.slow
def test_a_pipeline_finds_what_lies_beside_it(cluster: Cluster, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    (project / "flow.py").write_text(PIPELINE)
    assert run(cluster, project, "job", "run", "flow.py") == "batches 2\n"
    assert (project / "count.txt").read_text() == "2"
    (rated,) = (project / "rated").glob("part-*.csv")
    assert rated.read_text() == "north,0.5\nsouth,2.0\n"


@pytest.mark.slow  # test_job_libraries runs jobs with different files at once
def test_two_users_projects_do_not_meet(cluster: Cluster, tmp_path: Path) -> None:
    """Modules and relative files of one name, on one driver, in workers that serve one job after the other."""
    text = (
        "import os, rates\nfrom pyspark.sql import SparkSession, functions as F\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print(set(spark.sparkContext.range(4).map(lambda _: os.getcwd()).collect()))\n"
        "spark.range(3).coalesce(1).write.mode('overwrite').csv('out')\n"
        "print(rates.RATE, [row[0] for row in spark.range(1).select(F.udf(lambda _: rates.RATE)('id')).collect()])\n"
    )
    for name in ("one", "two", "one"):
        project = tmp_path / name
        project.mkdir(exist_ok=True)
        (project / "rates.py").write_text(f"RATE = {name!r}\n")
        (project / "job.py").write_text(text)
        assert run(cluster, project, "job", "run", "job.py") == f"{{'{project}'}}\n{name} ['{name}']\n"
        assert (project / "out" / "_SUCCESS").exists()


def test_a_script_elsewhere_and_what_was_submitted_is_what_runs(cluster: Cluster, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "beside.py").write_text("NAME = 'beside'\n")
    text = (
        "import os, signal, sys, beside\nfrom pathlib import Path\n"
        "again = Path('again').exists()\nPath('again').touch()\n"
        "print(sys.argv[0], Path(__file__).name, beside.NAME, Path.cwd().name, again)\n"
        "if not again:\n    Path(__file__).write_text('print(0)')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    (tmp_path / "there" / "job.py").write_text(text)
    shown = run(cluster, tmp_path / "here", "job", "run", "../there/job.py")
    assert shown.splitlines()[-1] == "../there/job.py job.py beside here True"


SECRET = "s3cret-of-the-caller"


def test_variables_reach_the_job_and_its_workers_and_are_shown_nowhere(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("API_TOKEN", SECRET)
    (tmp_path / "job.py").write_text(
        "import os, signal, subprocess\nfrom pathlib import Path\nfrom pyspark.sql import SparkSession\n"
        "length = lambda _=0: len(os.environ.get('API_TOKEN', ''))\n"
        "again = Path('again').exists()\nPath('again').touch()\n"
        "again or os.kill(os.getpid(), signal.SIGKILL)\n"
        "started = subprocess.run(['printenv', 'STAGE'], capture_output=True, text=True).stdout.strip()\n"
        "context = SparkSession.builder.getOrCreate().sparkContext\n"
        "print(length(), started, context.range(1).map(length).collect())\n"
    )
    (tmp_path / "flow.py").write_text(
        "import os\nfrom pyspark.sql import functions as F\nfrom understudy import Pipeline\n"
        "def rows(ctx):\n    return ctx.spark.range(1)\n"
        "def show(ctx, rows):\n    length = F.udf(lambda _: len(os.environ.get('API_TOKEN', '')), 'int')\n"
        "    print(length.func(0), rows.select(length('id')).collect()[0][0])\n"
        "def pipeline(argv):\n    job = Pipeline('flow')\n"
        "    job.source('rows', rows).sink('show', show)\n    return job\n"
    )
    own = ("--env", "API_TOKEN", "--env", "STAGE=test")
    assert run(cluster, tmp_path, "job", "run", *own, "job.py").splitlines()[-1] == f"20 test [{len(SECRET)}]"
    assert run(cluster, tmp_path, "job", "run", *own, "flow.py") == "20 20\n"
    (tmp_path / "next.py").write_text(
        "import os\nfrom pyspark.sql import SparkSession\n"
        "context = SparkSession.builder.getOrCreate().sparkContext\n"
        "print(context.range(2).map(lambda _: os.environ.get('API_TOKEN')).collect())\n"
    )
    assert run(cluster, tmp_path, "job", "run", "next.py") == "[None, None]\n"
    with cluster.client() as client:
        jobs = [job for job in client.list_jobs() if job.name in ("job", "flow", "next")]
        assert len(jobs) >= 3
        for job in jobs:
            assert SECRET not in run(cluster, tmp_path, "job", "info", "--json", job.job_id)
    for part in ("log", "archive"):
        for path in (cluster.directory / part).rglob("*"):
            assert not path.is_file() or SECRET.encode() not in path.read_bytes(), path


def test_a_job_runs_in_a_copy_of_what_it_ships(cluster: Cluster, tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    (project / ".gitignore").write_text("*.tmp\n")
    (project / "left.tmp").touch()
    (project / "sub").mkdir()
    (project / "sub" / "beside.py").write_text("NAME = 'beside'\n")
    (project / "sub" / "job.py").write_text(
        "import os, sys, beside, helpers\nfrom pathlib import Path\n"
        "from pyspark.sql import SparkSession, functions as F\n"
        "spark = SparkSession.builder.getOrCreate()\n"
        "print(beside.NAME, sys.argv, Path(__file__).relative_to(Path.cwd()), Path('left.tmp').exists())\n"
        "sales = spark.read.option('header', True).csv('data/sales.csv')\n"
        "print([row[0] for row in sales.select(F.udf(helpers.rate, 'double')('region')).collect()])\n"
        "sales.write.csv('out')\nprint(len(list(Path('out').glob('part-*'))) > 0, os.getcwd())\n"
    )
    shown = run(cluster, tmp_path, "job", "run", "--working-dir", "project", "project/sub/job.py", "x").splitlines()
    assert shown[:2] == ["beside ['sub/job.py', 'x'] sub/job.py False", "[0.5, 2.0]"]
    written, _, copy = shown[2].partition(" ")
    assert written == "True"
    assert not Path(copy).exists(), "it goes with the attempt"
    assert not (project / "out").exists()
    refused = understudy(cluster, tmp_path, "job", "run", "-D", "client.working-dir.max-size=10b", "--working-dir",
                         "project", "project/sub/job.py")  # fmt: skip
    assert refused.returncode == 1
    assert "the largest are" in refused.stderr
    assert "remedy: name in a .gitignore" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_directories_as_py_files(cluster: Cluster, tmp_path: Path) -> None:
    library = make_project(tmp_path / "library")
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "job.py").write_text(
        "from pyspark.sql import SparkSession\nimport conf.settings, runtime\n"
        "context = SparkSession.builder.getOrCreate().sparkContext\n"
        "print(conf.settings.NAME, context.range(1).map(lambda _: runtime.described()).collect())\n"
    )
    given = f"{library / 'conf'},{library}/runtime.py"
    shown = run(cluster, tmp_path / "here", "job", "run", "--py-files", given, "job.py")
    assert shown == "own settings ['own runtime']\n"
