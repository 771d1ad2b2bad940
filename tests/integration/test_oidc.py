"""A whole cluster whose users a provider identifies: both log-ins, a job of one's own, and the audit log."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.cluster_harness import Cluster, await_value
from tests.fakes.oidc_provider import SigningKey, running_provider
from tests.job_files import write_job
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S


def test_a_user_logs_in_runs_a_job_and_is_named(make_cluster: Callable[..., Cluster], tmp_path: Path) -> None:
    """The cluster has no TaskExecutor, so the job waits until its owner cancels it."""
    with running_provider(SigningKey("k", "ES256")) as provider:
        cluster = make_cluster(
            "taskmanager.count=0",
            "high-availability.type=none",
            f"security.oidc.issuer={provider.issuer}",
            "security.oidc.client-id=understudy",
            "security.oidc.roles.user=data-engineers",
        )
        rest = RestClient.of(cluster)
        own = {name: text for name, text in os.environ.items() if not name.startswith(("UNDERSTUDY_", "XDG_"))}
        environment = {**own, "HOME": str(tmp_path), "UNDERSTUDY_URL": rest.url}

        def understudy(*arguments: str, status: int = 0) -> str:
            done = subprocess.run(
                [sys.executable, "-m", "understudy", *arguments],
                capture_output=True,
                text=True,
                env=environment,
                timeout=PATIENCE_S,
                check=False,
            )
            assert done.returncode == status, f"{done.stdout}\n{done.stderr}\n{cluster.logs()}"
            return done.stdout + done.stderr

        assert "enter the code WDJB-MJHT" in understudy("login")
        job_id = understudy("job", "run", "--detach", str(write_job(tmp_path, "pass"))).split()[0]
        assert rest.get(f"/v1/jobs/{job_id}")["jid"] == job_id
        understudy("job", "cancel", job_id)
        assert "has the role user" in understudy("user", "list", status=1)

        login = rest.log_in_on_the_page()
        assert login.status == 200, login.body
        page = RestClient(rest.url, login.json["token"])
        assert page.get("/v1/whoami")["user"] == "ada"

        log = cluster.directory / "audit" / "audit.jsonl"

        def said() -> set[tuple[str, str, str]]:
            lines = [json.loads(line) for line in log.read_text().splitlines()]
            return {(line["user"], line["action"].rpartition("/")[2], line["outcome"]) for line in lines}

        expected = {
            ("ada", "submit_job", "done"),
            ("ada", "cancel_job", "done"),
            ("ada", "list_users", "refused"),
            ("ada", "finish", "done"),
        }
        await_value(lambda: expected <= said())
        stored = next((tmp_path / ".config" / "understudy" / "logins").glob("*.json"))
        bearer = json.loads(stored.read_text())["bearer"]
        logged = cluster.logs() + log.read_text()
        assert [secret for secret in (bearer, page.token, login.json["refresh-token"]) if secret in logged] == []
