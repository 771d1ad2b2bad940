"""PySpark's own examples, run by plain Python and by ``understudy job run``, and compared.

    python -m tests.spark_examples --json FILE [--resume] [--only WORD] [--write]

Each script runs in a directory of its own, which has PySpark's `data` and `examples` as Spark's home has them. What the
wheel lacks (`examples/src/main/resources`) is made here with the same columns. Plain Python gets the seed of string
hashes that `spark-submit` sets, by which PySpark's estimators choose their random numbers. ``--write`` makes
``docs/spark-examples.md`` of the result; ``--table FILE`` makes it of an earlier one.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tests.cluster_harness import Cluster
from tests.standalone_spark import SPARK_HOME, spark_environment

EXAMPLES = Path("examples/src/main/python")
PAGE = Path(__file__).resolve().parents[1] / "docs" / "spark-examples.md"
TIMEOUT_S = 600

ENDLESS = {
    "avro_inputformat.py": "needs a jar that PySpark does not bring",
    "parquet_inputformat.py": "needs a jar that PySpark does not bring",
    "sql/jdbc.py": "needs a database",
    "mllib/streaming_linear_regression_example.py": "waits for files for ever",
    "streaming/hdfs_wordcount.py": "waits for files for ever",
}
"""Scripts that are not run, beside those that read a socket or Kafka, and why."""

DIFFERENT = {
    "mllib/kmeans.py": "begins with random centers",
    "status_api_demo.py": "shows the Spark jobs as they run, which depends on the moment",
}
"""Scripts whose output differs, and why."""

ARGUMENTS = {
    "kmeans.py": ("data/mllib/kmeans_data.txt", "2", "0.001"),
    "logistic_regression.py": ("data/lr.txt", "3"),
    "mllib/gaussian_mixture_model.py": ("data/mllib/kmeans_data.txt", "2", "--seed", "1"),
    "mllib/kmeans.py": ("data/mllib/kmeans_data.txt", "2"),
    "mllib/logistic_regression.py": ("data/lr.txt", "3"),
    "mllib/word2vec.py": ("data/text8_lines",),
    "pagerank.py": ("data/mllib/pagerank_data.txt", "3"),
    "sort.py": ("data/numbers.txt",),
    "wordcount.py": ("data/words.txt",),
}


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one script.

    Args:
        script: its path below PySpark's examples.
        plain: exit status under plain Python; None: it did not end in time.
        understudy: exit status of ``job run``; None: it did not end in time.
        output: ``equal``; ``varies`` where two plain runs differ, too; ``differs``; empty where it did not pass twice.
        plain_s, understudy_s: seconds.
        error: last line of the standard error of what did not pass.
    """

    script: str
    plain: int | None
    understudy: int | None
    output: str
    plain_s: float
    understudy_s: float
    error: str = ""


@dataclass(frozen=True, slots=True)
class Run:
    """One run of a script."""

    status: int | None
    output: str
    error: str
    seconds: float


def scripts() -> list[str]:
    """Return the scripts that end by themselves."""
    root = SPARK_HOME / EXAMPLES
    found = sorted(str(path.relative_to(root)) for path in root.rglob("*.py") if path.name != "__init__.py")
    return [name for name in found if name not in ENDLESS and not _reads_a_source(root / name)]


def _reads_a_source(path: Path) -> bool:
    text = path.read_text()
    return any(word in text for word in ("socketTextStream", 'format("socket")', "format('socket')", "kafka"))


def compare(script: str, directory: Path, cluster: Cluster) -> Result:
    """Run a script both ways."""
    plain = run_plain(script, directory / "plain")
    ours = run_by_us(script, directory / "ours", cluster)
    output = ""
    if plain.status == ours.status == 0:
        output = "equal" if plain.output == ours.output else "differs"
        if output == "differs" and run_plain(script, directory / "again").output != plain.output:
            output = "varies"
    failed = next((run for run in (plain, ours) if run.status != 0), None)
    lines = [line for line in failed.error.splitlines() if line.strip()] if failed else []
    error = next((line for line in reversed(lines) if "rror" in line), lines[-1] if lines else "")
    times = (round(plain.seconds, 1), round(ours.seconds, 1))
    return Result(script, plain.status, ours.status, output, *times, error.strip()[:200])


def run_plain(script: str, directory: Path) -> Run:
    """Run a script by Python alone, whose PySpark starts a Spark of its own."""
    home = spark_directory(directory)
    command = [sys.executable, str(EXAMPLES / script), *ARGUMENTS.get(script, ())]
    return _run(command, home, {**spark_environment(directory), "PYTHONHASHSEED": "0"})


def run_by_us(script: str, directory: Path, cluster: Cluster) -> Run:
    """Run a script by ``understudy job run`` in the same kind of directory."""
    home = spark_directory(directory)
    command = [sys.executable, "-m", "understudy", "job", "run", "-D", f"cluster.runtime-dir={cluster.directory}"]
    return _run([*command, str(EXAMPLES / script), "--", *ARGUMENTS.get(script, ())], home, None)


def _run(command: list[str], directory: Path, environment: dict[str, str] | None) -> Run:
    started = time.monotonic()
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Run(None, "", f"did not end within {TIMEOUT_S} s", time.monotonic() - started)
    output, error = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
    return Run(done.returncode, output, error, time.monotonic() - started)


def spark_directory(directory: Path) -> Path:
    """Make a directory that has what the examples look for in Spark's home."""
    home = directory / "home"
    (home / "examples" / "src" / "main").mkdir(parents=True)
    (home / EXAMPLES).symlink_to(SPARK_HOME / EXAMPLES)
    (home / "data").mkdir()
    for part in (SPARK_HOME / "data").iterdir():
        (home / "data" / part.name).symlink_to(part)
    (home / "data" / "words.txt").write_text("to be or not to be that is the question\n" * 30)
    (home / "data" / "text8_lines").write_text("china trades with japan and japan trades with india\n" * 30)
    (home / "data" / "numbers.txt").write_text("3 1 2\n10 7\n")
    rows = ("1" if number % 2 else "-1" for number in range(40))
    points = (
        " ".join([label, *(str((index * 7 + place) % 10 / 10) for place in range(10))])
        for index, label in enumerate(rows)
    )
    (home / "data" / "lr.txt").write_text("\n".join(points) + "\n")
    _make_resources(home / "examples" / "src" / "main" / "resources")
    return home


def _make_resources(resources: Path) -> None:
    import pyarrow as pa
    import pyarrow.orc
    import pyarrow.parquet

    resources.mkdir()
    people = [("Michael", None), ("Andy", 30), ("Justin", 19)]
    named = [{"name": name} | ({"age": age} if age else {}) for name, age in people]
    (resources / "people.json").write_text("".join(json.dumps(row) + "\n" for row in named))
    (resources / "people.txt").write_text("".join(f"{name}, {age or 29}\n" for name, age in people))
    (resources / "people.csv").write_text("name;age;job\nJorge;30;Developer\nBob;32;Developer\n")
    tags = "".join(f"<person><name>{name}</name><age>{age or 29}</age></person>" for name, age in people)
    (resources / "people.xml").write_text(f"<people>{tags}</people>\n")
    (resources / "kv1.txt").write_text("".join(f"{key}\x01val_{key}\n" for key in (238, 86, 311, 5, 2, 2)))
    users = pa.table(
        {
            "name": ["Alyssa", "Ben"],
            "favorite_color": pa.array([None, "red"], pa.string()),
            "favorite_numbers": pa.array([[3, 9, 15, 20], []], pa.list_(pa.int32())),
        }
    )
    pa.parquet.write_table(users, resources / "users.parquet")
    pa.orc.write_table(users, resources / "users.orc")
    (resources / "dir1" / "dir2").mkdir(parents=True)
    for number, path in ((1, "dir1/file1.parquet"), (2, "dir1/dir2/file2.parquet")):
        pa.parquet.write_table(pa.table({"file": [f"file{number}.parquet"]}), resources / path)
    (resources / "dir1" / "file3.json").write_text('{"file":"corrupt.json"}\n')


def figures(results: list[Result]) -> dict[str, int]:
    """Return how many scripts passed, and how many of those had the same output."""
    both = [result for result in results if result.plain == result.understudy == 0]
    return {
        "examples": len(results),
        "examples_plain_ok": sum(result.plain == 0 for result in results),
        "examples_understudy_ok": sum(result.understudy == 0 for result in results),
        "examples_output_equal": sum(result.output == "equal" for result in both),
        "examples_output_varies": sum(result.output == "varies" for result in both),
    }


_HEAD = """\
# PySpark's own examples

<!-- Written by `python -m tests.spark_examples --write`: change that, not this. -->

PySpark brings examples. Those that end by themselves were each run by plain `python` and by `understudy job run`, in a
directory with PySpark's `data` and `examples`. Plain `python` runs with the `PYTHONHASHSEED=0` of `spark-submit`.
Output is *equal* where both print the same, and *varies* where two runs by plain `python` differ, too.

"""


def page(results: list[Result]) -> str:
    """Return the page of docs."""
    found = figures(results)
    lines = [
        f"Of {found['examples']} scripts {found['examples_plain_ok']} pass by plain `python`, and "
        f"{found['examples_understudy_ok']} by `understudy job run`. Of those that pass both ways "
        f"{found['examples_output_equal']} print the same, and {found['examples_output_varies']} vary from run to run.",
        "",
        "| script | plain | understudy | output | why |",
        "|---|---|---|---|---|",
    ]
    for result in results:
        words = [_word(result.plain), _word(result.understudy)]
        error = result.error.replace("|", "\\|").replace("`", "'")
        why = f"`{error}`" if error else DIFFERENT.get(result.script, "") if result.output == "differs" else ""
        lines.append(f"| `{result.script}` | {' | '.join(words)} | {result.output} | {why} |")
    left_out = [f"`{name}` {why}" for name, why in ENDLESS.items()]
    lines += ["", f"Not run: scripts that read a socket or Kafka; {'; '.join(left_out)}."]
    return _HEAD + "\n".join(lines) + "\n"


def _word(status: int | None) -> str:
    return "no end" if status is None else "passes" if status == 0 else f"fails ({status})"


def compare_all(names: list[str]) -> Iterator[Result]:
    """Run scripts one after the other, on one cluster."""
    with tempfile.TemporaryDirectory(prefix="us-ex-") as scratch:
        cluster = Cluster(Path(scratch) / "cluster")
        cluster.run("start", "-D", "cluster.start-timeout=10 min")
        try:
            for number, name in enumerate(names):
                yield compare(name, Path(scratch) / str(number), cluster)
        finally:
            cluster.run("stop", check=False)


def _read(file: Path) -> list[Result]:
    known = {item.name for item in fields(Result)}
    return [
        Result(**{key: value for key, value in each.items() if key in known})
        for each in json.loads(file.read_text())["scripts"]
    ]


def main() -> int:
    """Run and compare them; the exit status is 1 where one passes plainly and not here."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark_examples", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there, after each script")
    parser.add_argument("--only", default="", metavar="WORD", help="only scripts with this in their path")
    parser.add_argument("--resume", action="store_true", help="take what is equal or varies from FILE, run the others")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name}")
    parser.add_argument("--table", type=Path, metavar="FILE", help="write the page of these results, and run nothing")
    given = parser.parse_args()
    if given.resume and given.json is None:
        parser.error("--resume reads the file that --json names")
    results: list[Result] = []
    if given.table:
        results = _read(given.table)
    else:
        if given.resume:
            results = [result for result in _read(given.json) if result.output in ("equal", "varies")]
        done = {result.script for result in results}
        for result in compare_all([name for name in scripts() if given.only in name and name not in done]):
            results.append(result)
            results.sort(key=lambda each: each.script)
            print(json.dumps(asdict(result)), flush=True)  # noqa: T201
            if given.json:
                given.json.write_text(
                    json.dumps({**figures(results), "scripts": [asdict(each) for each in results]}, indent=1) + "\n"
                )
    if given.write or given.table:
        PAGE.write_text(page(results))
    return int(any(result.plain == 0 and result.understudy != 0 for result in results))


if __name__ == "__main__":
    sys.exit(main())
