"""Processes that share a login, without processes: who waits for a renewal, and how often the issuer is asked."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actors.errors import RecipientUnreachable
from runtime.cluster import logins
from runtime.cluster.logins import RETRY_MS, IssuerLine, LoginFile, StoredToken
from runtime.http_client import WebAddress
from runtime.issuer_client import IssuerUnreachableError
from runtime.users.login import Login
from tests.waiting import PATIENCE_S

EXPIRES_MS = 1_000_000


class Issuer:
    """Does not answer; *release* ends the requests that are waiting for an answer."""

    def __init__(self) -> None:
        self.asked = 0
        self.release = threading.Event()

    def renew(self, login: Login) -> tuple[int, Mapping[str, Any]]:
        self.asked += 1
        assert self.release.wait(PATIENCE_S)
        raise IssuerUnreachableError("the issuer does not answer")


@pytest.fixture
def file(tmp_path: Path) -> LoginFile:
    file = LoginFile(tmp_path / "logins", [WebAddress.parse("http://127.0.0.1:8081")])
    file.write(Login(file.cluster, "https://id", "c", False, "https://id/token", "", "bearer", EXPIRES_MS, "refresh"))
    return file


def process(file: LoginFile, issuer: Issuer, now_ms: int) -> StoredToken:
    return StoredToken(file, cast(IssuerLine, issuer), lambda: now_ms)


class Flock:
    """Counts the processes that ask for the lock, and refuses to wait for it if *waits* is false."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, waits: bool) -> None:
        self.waits = waits
        self.asked = threading.Semaphore(0)
        fake = SimpleNamespace(LOCK_EX=fcntl.LOCK_EX, LOCK_NB=fcntl.LOCK_NB, flock=self)
        monkeypatch.setattr(logins, "fcntl", fake)

    def __call__(self, descriptor: int, operation: int) -> None:
        assert self.waits or operation & fcntl.LOCK_NB, "it would wait"
        self.asked.release()
        fcntl.flock(descriptor, operation)


def test_a_token_that_is_valid_waits_for_no_renewal_by_another_process(
    file: LoginFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer()
    with file.locked():
        Flock(monkeypatch, waits=False)
        assert process(file, issuer, EXPIRES_MS - 1)() == "bearer"
    assert issuer.asked == 0


def test_processes_that_wait_for_a_renewal_share_its_failure(file: LoginFile, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer, flock, failures = Issuer(), Flock(monkeypatch, waits=True), list[str]()

    def use() -> None:
        try:
            process(file, issuer, EXPIRES_MS)()
        except RecipientUnreachable as error:
            failures.append(str(error))

    threads = [threading.Thread(target=use) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in threads:
        assert flock.asked.acquire(timeout=PATIENCE_S)
    issuer.release.set()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert issuer.asked == 1
    assert sorted(failures) == [
        f"the login at {file.cluster} cannot be renewed: {why}"
        for why in [*["https://id has just given another process no answer"] * 3, "the issuer does not answer"]
    ]
    with pytest.raises(RecipientUnreachable, match="the issuer does not answer"):
        process(file, issuer, EXPIRES_MS)()
    assert issuer.asked == 2, "who has not waited asks"


def test_a_refused_token_is_shown_again_if_its_renewal_has_failed_elsewhere(
    file: LoginFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    issuer = Issuer()
    issuer.release.set()
    flock, now_ms = Flock(monkeypatch, waits=True), EXPIRES_MS - 2 * RETRY_MS
    with file.renewing(waits=True) as renewal:
        assert renewal is not None
        assert flock.asked.acquire(timeout=PATIENCE_S)
        shown: list[str] = []
        thread = threading.Thread(target=lambda: shown.append(process(file, issuer, now_ms)(refused="bearer")))
        thread.start()
        assert flock.asked.acquire(timeout=PATIENCE_S)
        renewal.fail()
    thread.join(PATIENCE_S)
    assert (shown, issuer.asked) == (["bearer"], 0)
