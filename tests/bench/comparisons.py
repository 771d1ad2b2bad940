"""What each benchmark's figures are set beside: the floor of the machine, or a peer; and where we lose, and why. Pure.

Every ratio is ours over theirs in what is spent (time; for rates the other way round): 1 is as good, 2 takes twice as
much, 0.5 half. Both come from one run, so the machine's own speed is in neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Figures = Mapping[str, float]
FLOOR = "floor"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One ratio.

    Args:
        what: in words.
        ours: a figure, as ``benchmark/figure``.
        theirs: what it is set beside; None where the figure is a ratio itself.
        beside: whose that is: `FLOOR`, or the name of a peer; with what it does.
        is_rate: whether more is better in both.
        why: of one that is lost: why.
    """

    what: str
    ours: str
    theirs: str | None
    beside: str
    is_rate: bool = False
    why: str = ""

    def ratio(self, figures: Figures) -> float | None:
        """Ours over theirs; None where one of the two was not measured."""
        ours = figures.get(self.ours)
        theirs = 1.0 if self.theirs is None else figures.get(self.theirs)
        if not ours or not theirs:
            return None
        return theirs / ours if self.is_rate else ours / theirs


_ASK_ONE_CORE = "a floor of some 5 us is less than Python needs for anything: encode, look up, dispatch, decode"
_HASH_TWICE = "the content is hashed by the sender and again by the receiver, the floor hashes once"
_IN_PROCESS = "Pykka's actors are threads of the asking process: nothing is encoded, and nothing leaves it"
_NO_PROCESS = "Flink runs tasks as threads of its TaskManager, here each is a process that opens a session of Spark"

COMPARISONS = (
    Comparison("job by the command line", "submit/cli_finished_s", "submit/spark_submit_s", "spark-submit"),
    Comparison(
        "job by the command line",
        "submit/cli_finished_s",
        "submit/flink_run_s",
        "Flink: `flink run` on a warm session cluster, its client's Java included",
    ),
    Comparison(
        "job by a client in process",
        "submit/finished_s",
        "submit/flink_rest_finished_s",
        "Flink: a jar that a warm session cluster has, run by REST, planned in the JobManager, asked each 5 ms",
        why=_NO_PROCESS,
    ),
    Comparison(
        "job by a client in process",
        "submit/finished_s",
        "submit/connect_client_s",
        "a bare Spark Connect client, its start included",
    ),
    Comparison(
        "the main job",
        "submit/overhead_ratio",
        None,
        f"{FLOOR}: the same Spark plans without us",
        why="a process, a slot and a state for each of its tasks, results announced and checked: a part of a short job",
    ),
    *(
        Comparison(
            f"ask of 100 bytes over {name}, {where}",
            f"rpc/{prefix}.ask_p50_us",
            f"rpc/{prefix}.floor_p50_us",
            f"{FLOOR}: blocking ping-pong over the same kind of socket",
            why=why,
        )
        for kind, name in (("uds", "a Unix socket"), ("tcp", "TCP"))
        for prefix, where, why in (
            (kind, "two cores", "Python's part of an ask, beside two wake-ups that the floor pays too"),
            (f"{kind}.one_core", "one core", _ASK_ONE_CORE),
        )
    ),
    Comparison("ask", "rpc/uds.ask_p50_us", "rpc/thespian.ask_p50_us", "raw Thespian"),
    *(
        Comparison(f"{what} to another process", f"rpc/uds.{ours}", f"rpc/{name}.{theirs}", title, is_rate)
        for name, title in (("ray", "Ray"), ("xoscar", "xoscar"))
        for what, ours, theirs, is_rate in (
            ("ask", "ask_p50_us", "ask_p50_us", False),
            ("100 asks outstanding,", "pipelined_asks_per_s", "asks_per_s", True),
        )
    ),
    Comparison("ask", "rpc/uds.ask_p50_us", "rpc/pykka.ask_p50_us", "Pykka, in one process", why=_IN_PROCESS),
    Comparison(
        "100 asks outstanding",
        "rpc/uds.pipelined_asks_per_s",
        "rpc/pykka.asks_per_s",
        "Pykka, in one process",
        is_rate=True,
        why=_IN_PROCESS,
    ),
    *(
        Comparison(
            f"{verb.upper()} of a blob of {size}",
            f"blob/{verb}_{size}_mbps",
            f"blob/floor_{verb}_{size}_mbps",
            f"{FLOOR}: a plain program that {does}",
            is_rate=True,
            why=why,
        )
        for verb, does, why in (
            ("put", "reads, hashes, writes and syncs", _HASH_TWICE),
            ("get", "sends, receives, hashes and writes", "the handshake, and the file's own place and rename"),
        )
        for size in ("1mb", "64mb", "512mb")
    ),
    Comparison(
        "batches while checkpoints are taken",
        "checkpoint/batch_overhead_ratio",
        None,
        f"{FLOOR}: the same query without checkpoints",
        why="noise of Spark's batches: the snapshot is made of links, beside the query",
    ),
    Comparison("a checkpoint of 10^6 keys", "checkpoint/copy_time_ratio_1e6", None, f"{FLOOR}: cp -r"),
    Comparison("a checkpoint's new bytes", "checkpoint/incremental_bytes_ratio", None, f"{FLOOR}: all its bytes"),
    Comparison(
        "a master's loss until jobs are served again",
        "failover/master_kill_to_serving_s",
        "failover/lease_s",
        f"{FLOOR}: the lease",
        why="the lease has to end first, then the next master recovers",
    ),
)

PEERS = {
    "ray": "Ray",
    "xoscar": "xoscar",
    "pykka": "Pykka",
    "thespian": "Thespian",
    "pyspark": "spark-submit",
    "apache-flink-libraries": "Flink",
}
"""The distributions that are peers, by their names on PyPI."""

GROWTHS = "_growth_exponent"
BENDS = "_bends_at"


def growths(figures: Figures) -> list[tuple[str, float, float]]:
    """What was measured of growth: name, exponent, and from where on it bends (0: nowhere)."""
    return [
        (name.removesuffix(GROWTHS), value, figures.get(name.removesuffix(GROWTHS) + BENDS, 0.0))
        for name, value in figures.items()
        if name.endswith(GROWTHS)
    ]
