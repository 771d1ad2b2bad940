from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.remote.heartbeats import PhiAccrualFailureDetector


def fed(*times: float, **options: float) -> PhiAccrualFailureDetector:
    detector = PhiAccrualFailureDetector(**options)  # type: ignore[arg-type]
    for now in times:
        detector.heartbeat(now)
    return detector


def akka_phi(silence: float, mean: float, deviation: float) -> float:
    """Akka's formula as it stands there."""
    y = (silence - mean) / deviation
    e = math.exp(-y * (1.5976 + 0.070566 * y * y))
    return -math.log10(e / (1 + e)) if silence > mean else -math.log10(1 - 1 / (1 + e))


def test_before_the_first_heartbeat_nothing_is_suspicious() -> None:
    detector = PhiAccrualFailureDetector()
    assert detector.phi(1e9) == 0.0
    assert detector.is_available(1e9)


@pytest.mark.parametrize("silence", [0.0, 0.5, 1.0, 2.0, 3.9, 4.0, 4.5, 5.0, 5.5])
def test_the_first_estimate_is_akkas(silence: float) -> None:
    # estimate 1 s: mean 1 s, standard deviation a quarter of it
    assert fed(0.0).phi(silence) == pytest.approx(akka_phi(silence, 1.0 + 3.0, 0.25), abs=1e-9)


@pytest.mark.parametrize("silence", [0.5, 1.5, 2.0, 2.5, 2.9])
def test_the_estimate_follows_the_intervals(silence: float) -> None:
    intervals = [1.0, 1.2, 0.8, 1.1, 0.9, 1.3, 0.7] * 3
    now = 10.0
    detector = fed(now, acceptable_pause_s=1.0)
    for interval in intervals:
        now += interval
        detector.heartbeat(now)
    seen = [0.75, 1.25, *intervals]
    expected = akka_phi(silence, statistics.fmean(seen) + 1.0, statistics.pstdev(seen))
    assert detector.phi(now + silence) == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_values_of_akkas_own_test() -> None:
    """ "use good enough cumulative distribution function" of Akka's AccrualFailureDetectorSpec."""
    for silence, survival in (
        (10.0, 0.5),
        (13.3, 0.37),
        (15.8, 0.28),
        (20.0, 0.16),
        (25.0, 0.07),
        (35.0, 0.01),
        (40, 0.0),
    ):
        # mean 0, standard deviation 10, moved by 10 so that all silences are positive
        detector = PhiAccrualFailureDetector(acceptable_pause_s=0, first_interval_s=10.0, min_std_deviation_s=10.0)
        detector.heartbeat(0.0)
        assert 10 ** -detector.phi(silence) == pytest.approx(survival, abs=0.02)


@given(
    st.lists(st.floats(0.01, 5), max_size=30),
    st.lists(st.floats(0, 1e9), min_size=2, max_size=20),
    st.floats(0, 10),
)
def test_suspicion_grows_with_the_silence_and_is_always_a_number(
    intervals: list[float], silences: list[float], pause: float
) -> None:
    now = 100.0
    detector = fed(now, acceptable_pause_s=pause)
    for interval in intervals:
        now += interval
        detector.heartbeat(now)
    phis = [detector.phi(now + silence) for silence in sorted(silences)]
    assert phis == sorted(phis)
    assert all(math.isfinite(phi) and phi >= 0 for phi in phis)


def test_long_silence_is_told_from_longer() -> None:
    detector = fed(0.0)
    assert detector.phi(1e4) < detector.phi(1e5) < detector.phi(1e6)
    assert not detector.is_available(1e6)


def dies_after(detector: PhiAccrualFailureDetector, last: float) -> float:
    """After how many seconds of silence it is held for dead."""
    silence = 0.0
    while detector.is_available(last + silence):
        silence += 0.01
    return silence


def test_steady_heartbeats() -> None:
    detector = fed(*map(float, range(300)))
    assert all(detector.is_available(299 + tenth / 10) for tenth in range(41))
    # the pause of 3 s, the interval of 1 s, and five to six times the least deviation of 0.1 s
    assert 4.4 < dies_after(detector, 299.0) < 4.7


def test_jittery_heartbeats_make_it_patient() -> None:
    rng = random.Random(7)
    detector = PhiAccrualFailureDetector()
    now = 0.0
    for _ in range(500):
        now += rng.uniform(0.2, 1.8)
        assert detector.is_available(now)
        detector.heartbeat(now)
    assert dies_after(detector, now) > 5.5


def test_a_pause_within_what_is_acceptable() -> None:
    detector = fed(*map(float, range(50)))
    assert detector.is_available(49 + 3.9)
    assert not fed(*map(float, range(50)), acceptable_pause_s=0).is_available(49 + 2.5)


def test_the_threshold() -> None:
    silences = [dies_after(fed(*map(float, range(50)), threshold=threshold), 49.0) for threshold in (1, 4, 8, 12)]
    assert silences == sorted(silences)
    assert len(set(silences)) == 4


def test_a_node_that_comes_back_is_available_and_no_more_trusted_than_before() -> None:
    detector = fed(*map(float, range(50)))
    patience = dies_after(detector, 49.0)
    assert not detector.is_available(200.0)
    detector.heartbeat(200.0)
    assert detector.is_available(200.0)
    assert dies_after(detector, 200.0) == pytest.approx(patience, abs=0.02)
    for now in range(201, 210):
        detector.heartbeat(float(now))
        assert detector.is_available(now + 0.5)


def test_only_so_many_intervals_are_remembered() -> None:
    slow = [number * 3.0 for number in range(50)]
    fast = [slow[-1] + number for number in range(1, 12)]
    detector = fed(*slow, *fast, max_samples=10)
    assert dies_after(detector, fast[-1]) < 5
    assert dies_after(fed(*slow, *fast, max_samples=1000), fast[-1]) > 6


def test_faster_heartbeats_than_expected_are_learnt() -> None:
    detector = fed(*(number / 10 for number in range(400)), acceptable_pause_s=0.5)
    assert dies_after(detector, 39.9) < 1.3


def test_a_clock_that_stands_still() -> None:
    detector = fed(5.0, 5.0, 5.0, 4.0)
    assert detector.is_available(5.0)
    assert math.isfinite(detector.phi(5.0))


@pytest.mark.parametrize(
    "options",
    [
        {"threshold": 0},
        {"threshold": -1},
        {"threshold": math.inf},
        {"max_samples": 0},
        {"min_std_deviation_s": 0},
        {"acceptable_pause_s": -0.1},
        {"acceptable_pause_s": math.nan},
        {"first_interval_s": 0},
    ],
)
def test_bad_settings(options: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(options))):
        PhiAccrualFailureDetector(**options)  # type: ignore[arg-type]
