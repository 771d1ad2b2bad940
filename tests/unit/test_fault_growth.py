"""The pure parts of the long soak: slopes, bounds, verdicts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.faults.growth import BOUNDS, LIFE_BOUNDS, MB, ProcessSample, Sample, Verdict, judge, slope
from tests.faults.sampling import role_of


def process(role: str, pid: int, **figures: int) -> ProcessSample:
    return ProcessSample(role, pid, **{"rss": 90 * MB, "uss": 50 * MB, "descriptors": 40, "threads": 5, **figures})


def wrong(samples: list[Sample]) -> set[str]:
    return {verdict.what for verdict in judge(samples) if not verdict.holds}


def test_a_slope_is_not_moved_by_single_samples() -> None:
    line = [(float(at), 3.0 * at) for at in range(40)]
    assert slope(line) == 3.0
    line[17], line[33] = (17.0, 1e9), (33.0, 0.0)
    assert 2.9 < slope(line) < 3.1
    assert slope(line[:1]) == slope([]) == 0.0


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=30), st.integers(-50, 50))
def test_a_slope_follows_what_is_added_each_second(values: list[int], rate: int) -> None:
    still = [(float(at), float(value)) for at, value in enumerate(values)]
    rising = [(at, value + rate * at) for at, value in still]
    assert abs(slope(rising) - slope(still) - rate) < 1e-6


def test_what_stays_as_it_is_holds_whatever_the_noise() -> None:
    noise = random.Random(3)
    samples = [
        Sample(
            5.0 * number,
            (
                process("rest", 10, uss=50 * MB + noise.randrange(4 * MB), descriptors=40 + noise.randrange(6)),
                process("jobmaster", 100 + number, uss=noise.randrange(20 * MB, 60 * MB)),
                process("java", 11, uss=800 * MB + 9 * MB * (number % 60)),
            ),
            {"keys": 100 + noise.randrange(10), "redis memory": 2 * MB} if number % 9 else {},
            {"log": (20 + number % 5, 3 * MB), "ha": (noise.randrange(30), MB)},
        )
        for number in range(200)
    ]
    assert wrong(samples) == set()
    assert {"keys of redis", "files log", "uss rest, while it lives"} <= {verdict.what for verdict in judge(samples)}


def test_a_leak_is_named_by_role_and_kind() -> None:
    samples = [
        Sample(
            5.0 * number,
            (process("rest", 10, descriptors=40 + number // 2), process("dispatcher", 11, uss=50 * MB + number * MB)),
            {"keys": 100 + number},
            {"archive": (number * 2, 0), "log": (5, number * MB)},
        )
        for number in range(200)
    ]
    assert wrong(samples) == {
        "descriptors rest",
        "descriptors rest, while it lives",
        "uss dispatcher",
        "uss dispatcher, while it lives",
        "keys of redis",
        "files archive",
        "bytes log",
    }


def grows(kind: str, by: float, number: int) -> Sample:
    """A sample whose figure of one kind gains *by* with each sample before it."""
    value = round(by * number)
    if kind == "processes":
        return Sample(5.0 * number, tuple(process("rest", pid) for pid in range(10 + value)))
    if kind in ("keys", "redis memory"):
        return Sample(5.0 * number, redis={kind: 100 + value})
    if kind in ("files", "bytes"):
        return Sample(5.0 * number, files={"log": (value, MB) if kind == "files" else (5, value)})
    return Sample(5.0 * number, (process("rest", number, **{kind: 10 + value}),))


@pytest.mark.parametrize("kind", BOUNDS)
def test_each_figure_is_named_that_gains_more_than_it_may_and_no_other(kind: str) -> None:
    """Also where no process lives long enough to be judged alone."""
    least, judged = BOUNDS[kind].least, 100
    leaks = wrong([grows(kind, 1.5 * least / judged, number) for number in range(2 * judged + 1)])
    assert leaks
    assert {what.split(" rest")[0].split(" of")[0].split(" log")[0] for what in leaks} == {kind}
    assert wrong([grows(kind, 0.5 * least / judged, number) for number in range(2 * judged + 1)]) == set()


@pytest.mark.parametrize("kind", LIFE_BOUNDS)
def test_what_one_process_gains_while_it_lives_is_named(kind: str) -> None:
    """Beside another process of its role that has more and gains nothing."""
    least, judged = LIFE_BOUNDS[kind].least, 100

    def leaks(by: float) -> set[str]:
        return wrong(
            [
                Sample(
                    5.0 * number,
                    (
                        process("rest", 1, **{kind: round(by * number)}),
                        process("rest", 2, **{kind: round(10 * least)}),
                    ),
                )
                for number in range(2 * judged + 1)
            ]
        )

    assert leaks(1.5 * least / judged) == {f"{kind} rest, while it lives"}
    assert leaks(0.5 * least / judged) == set()


def test_a_leak_of_processes_that_are_killed_all_the_time_is_seen_in_their_lives() -> None:
    samples = [
        Sample(5.0 * number, (process("rest", number // 40, uss=50 * MB + (number % 40) * MB),))
        for number in range(400)
    ]
    assert wrong(samples) == {"uss rest, while it lives"}


def test_who_begins_to_lead_gains_by_that_and_it_is_no_leak() -> None:
    samples = [
        Sample(
            5.0 * number,
            (
                process("dispatcher", 1, descriptors=32 + 15 * (number > 160), threads=1 + 5 * (number > 160)),
                process("dispatcher", 2, descriptors=48, threads=6),
            ),
        )
        for number in range(220)
    ]
    assert wrong(samples) == set()


def test_what_grows_only_in_the_beginning_is_no_leak() -> None:
    samples = [Sample(5.0 * number, redis={"keys": min(number, 90) * 10}) for number in range(200)]
    assert wrong(samples) == set()


def test_processes_that_are_left_over_are_counted_and_a_heap_has_a_ceiling() -> None:
    samples = [
        Sample(
            5.0 * number, (process("java", 1, rss=2300 * MB), *(process("python", 2 + n) for n in range(number // 8)))
        )
        for number in range(100)
    ]
    assert wrong(samples) == {"processes of all", "processes python", "rss java, at most"}


def test_roles_are_told_by_name_and_command_line() -> None:
    python = ["/venv/bin/python", "-m"]
    assert role_of("us-resourcemana", [*python, "runtime.cluster.entrypoint"]) == "resourcemanager"
    assert role_of("us-rest", []) == "rest"
    assert role_of("us-jobmaster-d6", []) == "jobmaster"
    assert role_of("python", [*python, "understudy.runtime.spark.task.zygote", "27"]) == "zygote"
    assert role_of("python", [*python, "pyspark.daemon", "pyspark.worker"]) == "python worker"
    assert role_of("java", ["/bin/java", "@java.args"]) == "java"


def test_a_verdict_is_one_line() -> None:
    told = str(Verdict("uss rest", 50 * MB, 30 * MB, BOUNDS["uss"].of(50 * MB)))
    assert told == "GROWS uss rest: about 50.0 MB, 30.0 MB more, may be 24.0 MB"
    assert judge([]) == []
