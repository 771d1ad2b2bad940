"""A cluster of the previous release is upgraded to the checkout and back, while it works and processes are killed.

It is the cluster of `tests.upgrade.orders`: two masters, two TaskExecutors, a streaming query with an exactly-once
sink, a batch job of 12 s that runs when an upgrade begins, and a client that submits, watches and cancels jobs all the
time. The first upgrade is undisturbed. The others go there and back in turn, and something is killed at two steps of
each. Another cluster, of the checkout, is upgraded to a planted next release, undisturbed: its TaskExecutors hand their
tasks over, which those of 0.1.0 cannot.

- ``orders_tried``: upgrades, each from its begin until all processes run the other release.
- ``upgrade_s``: seconds of the undisturbed one, which waits for the batch job.
- ``serving_gap_s``: seconds until the client had the latest answer during the undisturbed one, at a lease of 3 s.
- ``query_restarts``, ``query_failures``: of the streaming job during the upgrade to the next release.
- ``query_restarts_of_drained``: of the streaming job during the undisturbed one from the previous release. It moves
  from a TaskExecutor that is drained; ``query_failures_of_drained`` counts its failures.
- ``batch_gaps``: numbers of batches that are missing among those that the query's checkpointLocation keeps.
- ``submissions_lost``: accepted jobs that the cluster did not know in the end.
- ``problems``: contradictions in the history of clients, processes and leaders; rows that are lost or doubled;
  processes that an upgrade has left out. Each is printed.
- ``formats``: stored formats; ``formats_with_golden_files``: those that have golden files.

An upgrade takes about a minute on two cores, and `all` leaves this benchmark out. ``UNDERSTUDY_SEED`` repeats a run.
"""

from __future__ import annotations

import contextlib
import random
import sys
import tempfile
from pathlib import Path

from tests import release
from tests.seeds import printed_seed
from tests.stored_formats import FORMATS, GOLDEN
from tests.upgrade.orders import Round, random_rounds, run_to_next
from tests.upgrade.orders import run as carry_out


def run(rounds: int) -> tuple[dict[str, float], list[tuple[str, str]]]:
    """Measure; return the figures and the rows of the table.

    Args:
        rounds: upgrades, the undisturbed one among them.

    Raises:
        RuntimeError: the clone lacks the commit of the previous release.
    """
    previous = release.latest_release()
    if previous is None:
        raise RuntimeError("the commit of the previous release is not here: clone with its whole history")
    with contextlib.redirect_stdout(sys.stderr):  # the figures may go to standard output
        seed = printed_seed()
    later = random_rounds(random.Random(seed), rounds)[1:]
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        result = carry_out(Path(scratch), [Round(), *later], seed)
    with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
        following = run_to_next(Path(scratch), [Round()], seed)
    calm, adopted = result.done[0], following.done[0]
    problems = [*result.problems, *following.problems]
    releases = [directory for directory in GOLDEN.iterdir() if directory.is_dir()]
    files = [{path.stem for path in directory.iterdir()} for directory in releases]
    figures = {
        "orders_tried": len(result.done),
        "upgrade_s": calm.seconds,
        "serving_gap_s": calm.longest_answer_s,
        "query_restarts": adopted.restarts,
        "query_failures": adopted.failures,
        "query_restarts_of_drained": calm.restarts,
        "query_failures_of_drained": calm.failures,
        "batch_gaps": result.batch_gaps + following.batch_gaps,
        "submissions_lost": result.lost + following.lost,
        "problems": len(problems),
        "formats": len(FORMATS),
        "formats_with_golden_files": sum(any(each.name in names for names in files) for each in FORMATS),
    }
    rows = [
        (f"upgrades from {previous} and back", f"{len(result.done)}, with {len(result.killed)} kills"),
        (
            "the undisturbed one",
            f"{calm.seconds:.1f} s; {calm.restarts} restarts of the query, {calm.failures} failures",
        ),
        (
            "the one to the next release",
            f"{adopted.seconds:.1f} s; {adopted.restarts} restarts of the query, {adopted.failures} failures",
        ),
        ("the client's longest wait for an answer", f"{calm.longest_answer_s:.2f} s  to reach: under 1.0"),
        ("batches of the query, gaps", f"{result.batches}, {result.batch_gaps}"),
        ("jobs of the client finished, lost", f"{result.finished}, {result.lost}"),
        ("formats, with golden files", f"{len(FORMATS)}, {figures['formats_with_golden_files']:.0f}"),
        *(("problem", text) for text in problems),
    ]
    return figures, rows
