"""The Spark Connect gateway beside a direct connection to the same driver's Connect server; and named sessions.

- ``added_p50_ms``: how much longer a trivial query takes through the gateway; ``added_named_p50_ms``: the same in a
  named session. Medians of `QUERIES` in each round.
- ``throughput_ratio``: 100 MB of Arrow through the gateway, beside the same directly; 1 is as fast.
- ``session_start_s``: a new session on a warm driver, until its first result; ``direct_session_start_s``: directly.
  Both in a client process that has begun sessions before.
- ``sessions_survived``: how often a named session gave the right result of a view, a function and a setting after
  SIGKILL of its driver, and of the leading master with its gateway; of ``sessions_hit``. ``rebuilt_p50_s``: from the
  SIGKILL of a driver to that result.
- ``users``, ``user_jobs``, ``fairness``: see `tests.bench.scale.users`.

What is compared alternates. The first round of each is not counted. PySpark reports what it has read of an answer, also
after its end; each transfer begins when the gateway has passed these reports on, so that none pays for another.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from pyspark.errors import PySparkException

from conf.configuration import Configuration
from runtime.client import ClusterClient
from runtime.cluster.discovery import connect
from runtime.spark.driver.api import DriverInfo, info_file
from tests.bench import scale
from tests.fakes.sshd import unused_port
from tests.processes import lives

QUERIES = 40
ROWS = 100 * (1 << 20) // 8
DEADLINE_S = 300.0
IDLE_S = 0.7
ZONE = "Asia/Tokyo"

Figures = dict[str, float]


def run(rounds: int, kills: int = 2) -> tuple[Figures, list[tuple[str, str]]]:
    """Measure; returns the figures and the table's rows.

    Args:
        rounds: measured rounds.
        kills: how many drivers are killed, and how many masters.
    """
    os.environ["SPARK_CONNECT_MODE_ENABLED"] = "1"
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        directory, port = Path(scratch) / "c", unused_port()
        options = [f"cluster.runtime-dir={directory}", "jobmanager.rpc.port=0", "rest.port=0", "connect.enabled=true"]
        # Three sessions are open at once, each in a slot.
        options += [f"connect.port={port}", "high-availability.lease=5s", "taskmanager.numberOfTaskSlots=3"]
        setting = [part for option in options for part in ("-D", option)]
        _command("start", "--masters", "2", *setting)
        try:
            url = f"sc://localhost:{port}/;token={(directory / 'rest-token').read_text().strip()}"
            figures = _beside(directory, url, port, rounds)
            with connect(Configuration.read(directory / "configuration.json")) as client:
                figures |= _survival(client, setting, url, kills)
        finally:
            _command("stop", *setting)
    figures |= scale.run(1, 1.0, ("users",))[0]
    return figures, _table(figures)


def _session(url: str) -> Any:
    from pyspark.sql.connect.session import SparkSession

    return SparkSession.builder.remote(url).create()


# ---------------------------------------------------------------------------- beside a direct connection


def _beside(directory: Path, url: str, port: int, rounds: int) -> Figures:
    driver = DriverInfo.read(info_file(next(directory.glob("tm-*")) / "spark"))
    direct = f"sc://localhost:{driver.connect_port}/;token={driver.connect_token}"
    urls = {"direct": direct, "gateway": url, "named": f"{url};session_name=bench"}
    sessions = {name: _session(each) for name, each in urls.items()}
    samples: dict[str, list[float]] = {}
    for number in range(rounds + 1):
        found = [(f"{name} query", _median(session, QUERIES)) for name, session in sessions.items()]
        for name in ("direct", "gateway"):
            _await_idle(port)
            found.append((f"{name} arrow", _time(_arrow(sessions[name]))))
        _await_idle(port)
        found += [(f"{name} start", _start(urls[name])) for name in ("direct", "gateway")]
        for name, seconds in found if number else ():
            samples.setdefault(name, []).append(seconds)
    for session in sessions.values():
        session.stop()
    median = {name: statistics.median(values) for name, values in samples.items()}
    return {
        "direct_p50_ms": 1000 * median["direct query"],
        "added_p50_ms": 1000 * (median["gateway query"] - median["direct query"]),
        "added_named_p50_ms": 1000 * (median["named query"] - median["direct query"]),
        "throughput_ratio": median["direct arrow"] / median["gateway arrow"],
        "session_start_s": median["gateway start"],
        "direct_session_start_s": median["direct start"],
    }


def _await_idle(port: int) -> None:
    """Wait until the gateways that listen on a port use less than a tenth of a core each."""
    found = psutil.net_connections("tcp")
    for pid in {
        item.pid for item in found if item.status == psutil.CONN_LISTEN and item.laddr and item.laddr.port == port
    }:
        process = psutil.Process(pid)
        while process.cpu_percent(IDLE_S) > 10:
            pass


def _median(session: Any, times: int) -> float:
    return statistics.median(_time(lambda: session.range(1).collect()) for _ in range(times))


def _arrow(session: Any) -> Callable[[], object]:
    def fetch() -> None:
        if (rows := session.range(ROWS).toArrow().num_rows) != ROWS:
            raise RuntimeError(f"{rows} rows came of {ROWS}")

    return fetch


def _start(url: str) -> float:
    began = time.perf_counter()
    session = _session(url)
    session.range(1).collect()
    took = time.perf_counter() - began
    session.stop()
    return took


def _time(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


# ---------------------------------------------------------------------------- named sessions


def _survival(client: ClusterClient, setting: list[str], url: str, kills: int) -> Figures:
    session = _session(f"{url};session_name=survivor")
    session.conf.set("spark.sql.session.timeZone", ZONE)
    session.udf.register("twice", lambda number: 2 * number, "int")
    session.range(3).createOrReplaceTempView("numbers")
    session.sql("CREATE TEMP VIEW doubled AS SELECT twice(CAST(id AS INT)) AS n FROM numbers")
    if not _is_right(session):
        raise RuntimeError("the view is wrong before anything was killed")
    survived, rebuilt = 0, []
    for _ in range(kills):
        driver = int(session.sql("SELECT reflect('java.lang.ProcessHandle', 'current')").collect()[0][0])
        began = time.perf_counter()
        os.kill(driver, signal.SIGKILL)
        if _is_right(session):
            survived += 1
            rebuilt.append(time.perf_counter() - began)
    for _ in range(kills):
        _kill_leading_master(client)
        survived += _is_right(session)
        _command("start-master", *setting)
    session.stop()
    figures: Figures = {"sessions_survived": survived, "sessions_hit": 2 * kills}
    return figures | ({"rebuilt_p50_s": statistics.median(rebuilt)} if rebuilt else {})


def _is_right(session: Any) -> bool:
    try:
        rows = [row.n for row in session.table("doubled").orderBy("n").collect()]
        return rows == [0, 2, 4] and session.conf.get("spark.sql.session.timeZone") == ZONE
    except PySparkException as error:
        print(f"a session did not survive: {error}", file=sys.stderr)
        return False


def _kill_leading_master(client: ClusterClient) -> None:
    processes = client.status().processes
    (leader,) = [view.name for view in processes if view.leadership == "leader" and view.name.startswith("dispatcher")]
    pids = {view.name: view.pid for view in processes}
    os.kill(pids[leader.replace("dispatcher", "master")], signal.SIGKILL)
    gone = [pids[leader], pids[leader.replace("dispatcher", "rest")]]
    deadline = time.monotonic() + DEADLINE_S
    while any(lives(pid) for pid in gone):  # they outlive their master by a moment
        if time.monotonic() > deadline:
            raise RuntimeError(f"a component of the killed master has not ended within {DEADLINE_S:g} s")
        time.sleep(0.01)


def _command(*arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "runtime.cluster", *arguments], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"{arguments} failed with status {done.returncode}:\n{done.stdout}{done.stderr}")


def _table(figures: Figures) -> list[tuple[str, str]]:
    rows = [
        ("trivial query, directly", f"{figures['direct_p50_ms']:7.2f} ms"),
        ("added by the gateway", f"{figures['added_p50_ms']:7.2f} ms  (to reach: 2)"),
        ("added in a named session", f"{figures['added_named_p50_ms']:7.2f} ms"),
        ("100 MB of Arrow, beside directly", f"{figures['throughput_ratio']:7.2f}  (to reach: 0.9)"),
        ("new session, warm", f"{figures['session_start_s']:7.2f} s  (to reach: 0.5)"),
        ("new session, directly", f"{figures['direct_session_start_s']:7.2f} s"),
        (f"{figures['users']:.0f} users, Jain's index", f"{figures['fairness']:7.2f}  (to reach: 0.95)"),
        ("named sessions survived", f"{figures['sessions_survived']:.0f} of {figures['sessions_hit']:.0f} kills"),
    ]
    if "rebuilt_p50_s" in figures:
        rows.append(("driver killed, to the right result", f"{figures['rebuilt_p50_s']:7.2f} s"))
    return rows
