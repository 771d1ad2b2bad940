"""A cluster of the previous release is upgraded to the checkout and back, while it works and processes are killed.

It is the cluster of `tests.upgrade.orders`: two masters, three TaskExecutors, two streaming queries with exactly-once
sinks, a batch job of 12 s that runs when an upgrade begins, and a client that submits, watches and cancels jobs all the
time. The first upgrade is undisturbed. The others go there and back in turn, and something is killed at two steps of
each. Half of the upgrades are those of another cluster, of the checkout, to a planted next release: its TaskExecutors
hand their tasks over, which those of 0.1.0 cannot.

- ``orders_tried``: upgrades, each from its begin until all processes run the other release.
- ``upgrade_s``: seconds of the undisturbed one from the previous release, which waits for the batch job.
- ``hand_over_upgrade_s``: seconds of the undisturbed one to the next release.
- ``serving_gap_s``: seconds until the client had the latest answer during the undisturbed one, at a lease of 3 s.
- ``query_restarts``, ``query_failures``: of the streaming jobs during the undisturbed one to the next release.
- ``query_restarts_of_drained``: of the streaming jobs during the undisturbed one from the previous release. They move
  from a TaskExecutor that is drained; ``query_failures_of_drained`` counts their failures.
- ``batch_gaps``: numbers of batches that are missing among those that the queries' checkpointLocations keep.
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
from tests.upgrade.orders import LARGE, Round, random_rounds, run_to_next
from tests.upgrade.orders import run as run_from_previous


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
    choice, results = random.Random(seed), []
    for carry_out, number in ((run_from_previous, rounds - rounds // 2), (run_to_next, max(1, rounds // 2))):
        later = random_rounds(choice, number, LARGE)[1:]
        with tempfile.TemporaryDirectory(prefix="us-bench-") as scratch:
            results.append(carry_out(Path(scratch), [Round(), *later], seed, LARGE))
    result, following = results
    calm, adopted = result.done[0], following.done[0]
    problems = [*result.problems, *following.problems]
    releases = [directory for directory in GOLDEN.iterdir() if directory.is_dir()]
    files = [{path.stem for path in directory.iterdir()} for directory in releases]
    figures = {
        "orders_tried": len(result.done) + len(following.done),
        "upgrade_s": calm.seconds,
        "hand_over_upgrade_s": adopted.seconds,
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
        ("upgrades to the next release and back", f"{len(following.done)}, with {len(following.killed)} kills"),
        (
            "the undisturbed one",
            f"{calm.seconds:.1f} s; {calm.restarts} restarts of the queries, {calm.failures} failures",
        ),
        (
            "the undisturbed one to the next release",
            f"{adopted.seconds:.1f} s; {adopted.restarts} restarts of the queries, {adopted.failures} failures",
        ),
        ("the client's longest wait for an answer", f"{calm.longest_answer_s:.2f} s  to reach: under 1.0"),
        (
            "batches of the queries, gaps",
            f"{result.batches + following.batches}, {result.batch_gaps + following.batch_gaps}",
        ),
        (
            "jobs of the client finished, lost",
            f"{result.finished + following.finished}, {result.lost + following.lost}",
        ),
        ("formats, with golden files", f"{len(FORMATS)}, {figures['formats_with_golden_files']:.0f}"),
        *(("problem", text) for text in problems),
    ]
    return figures, rows
