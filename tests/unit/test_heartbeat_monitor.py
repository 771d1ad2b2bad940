from __future__ import annotations

import pytest

from runtime.heartbeat import DISABLED, HeartbeatMonitor


def test_a_silent_target_is_lost_once() -> None:
    monitor = HeartbeatMonitor(interval=1.0, timeout=5.0)
    monitor.monitor(0.0, "tm-1")
    monitor.monitor(1.0, "tm-2")
    assert monitor.expired(4.9) == []
    (lost,) = monitor.expired(5.0)
    assert (lost.target, lost.silent_for_s) == ("tm-1", 5.0)
    assert "heartbeat.timeout is 5 s" in lost.reason
    assert monitor.expired(5.5) == []
    assert monitor.targets() == ("tm-2",)
    assert monitor.expired(5.9) == []
    assert [other.target for other in monitor.expired(6.0)] == ["tm-2"]


def test_a_heartbeat_puts_the_deadline_off_and_an_old_one_does_not_bring_it_near() -> None:
    monitor = HeartbeatMonitor(1.0, 5.0)
    monitor.monitor(0.0, "tm-1")
    assert monitor.receive(4.0, "tm-1")
    assert monitor.receive(3.0, "tm-1")
    assert monitor.expired(8.9) == []
    assert [lost.target for lost in monitor.expired(9.0)] == ["tm-1"]


def test_a_heartbeat_of_a_stranger_is_no_registration() -> None:
    monitor = HeartbeatMonitor(1.0, 5.0)
    assert not monitor.receive(0.0, "tm-1")
    assert not monitor.report_unreachable("tm-1")
    assert monitor.targets() == ()


def test_undeliverable_messages_in_a_row_mean_lost() -> None:
    monitor = HeartbeatMonitor(1.0, 5.0, rpc_failure_threshold=2)
    monitor.monitor(0.0, "tm-1")
    assert not monitor.report_unreachable("tm-1")
    monitor.receive(0.2, "tm-1")
    assert not monitor.report_unreachable("tm-1")
    assert monitor.expired(0.3) == []
    assert monitor.report_unreachable("tm-1")
    (lost,) = monitor.expired(0.4)
    assert lost.reason == "unreachable 2 times in a row"
    assert monitor.targets() == ()


def test_undeliverable_messages_may_be_ignored() -> None:
    monitor = HeartbeatMonitor(1.0, 5.0, rpc_failure_threshold=DISABLED)
    monitor.monitor(0.0, "tm-1")
    assert not any(monitor.report_unreachable("tm-1") for _ in range(100))
    assert monitor.expired(4.9) == []


def test_watching_anew_forgets_the_past_and_unwatching_is_final() -> None:
    monitor = HeartbeatMonitor(1.0, 5.0)
    monitor.monitor(0.0, "tm-1")
    monitor.report_unreachable("tm-1")
    monitor.monitor(2.0, "tm-1")
    assert not monitor.report_unreachable("tm-1")
    monitor.unmonitor("tm-1")
    monitor.unmonitor("tm-1")
    assert monitor.expired(1e9) == []


def test_the_watchers_own_standstill_is_not_held_against_the_targets() -> None:
    monitor = HeartbeatMonitor(1.0, 5.0)
    monitor.monitor(0.0, "tm-1")
    monitor.monitor(61.0, "tm-2")
    monitor.suspended_for(61.0, 60.0)
    assert monitor.expired(61.0) == []
    assert monitor.expired(64.9) == []
    (lost,) = monitor.expired(65.0)
    assert lost.target == "tm-1"
    assert monitor.expired(65.9) == []
    assert monitor.expired(66.0), "what was heard after it is not put off: it would be in the future"


@pytest.mark.parametrize(
    ("interval", "timeout", "threshold"), [(0.0, 5.0, 2), (5.0, 5.0, 2), (1.0, 5.0, 0), (1.0, 5.0, -2)]
)
def test_settings_out_of_range_are_refused(interval: float, timeout: float, threshold: int) -> None:
    with pytest.raises(ValueError, match="heartbeat"):
        HeartbeatMonitor(interval, timeout, threshold)
