"""A cluster whose TaskExecutors are pods: of an API server of the tests, whose containers are processes here."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conf.configuration import Configuration
from conf.options import HighAvailabilityOptions
from runtime.kubernetes.pod import CONTAINER
from tests.cluster_harness import ROOT, Cluster, await_value
from tests.job_files import TRIVIAL, write_job
from tests.kubernetes_server import NAMESPACE, KubernetesServer
from tests.waiting import PATIENCE_S


class Kubelet:
    """Runs the containers of pods, and says how they ended."""

    def __init__(self, server: KubernetesServer, environ: dict[str, str]) -> None:
        self._server = server
        self._environ = environ
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._seen = 0
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def stop(self) -> None:
        """After the server: its end is this one's."""
        self._thread.join()
        for process in self.processes.values():
            process.terminate()
        for process in self.processes.values():
            process.wait(PATIENCE_S)

    def _run(self) -> None:
        server = self._server
        while not server.closed:
            with server.changed:
                server.changed.wait_for(lambda: server.closed or len(server.events) > self._seen, timeout=0.2)
                events, self._seen = server.events[self._seen :], len(server.events)
            for _, kind, pod in events:
                name = pod["metadata"]["name"]
                if kind == "ADDED":
                    self.processes[name] = self._start(pod)
                    server.set_status(name, phase="Running")
                elif kind == "DELETED":
                    self.processes[name].send_signal(signal.SIGTERM)
            for name, process in self.processes.items():
                is_running = name in server.pods and server.pods[name]["status"]["phase"] == "Running"
                if is_running and process.poll() is not None:
                    server.terminate(name, exitCode=process.returncode, reason="Error")

    def _start(self, pod: dict[str, Any]) -> subprocess.Popen[bytes]:
        [container] = [item for item in pod["spec"]["containers"] if item["name"] == CONTAINER]
        # An address of its own, as a pod has: what shares an address shares a directory of Unix sockets.
        own = {"POD_NAME": pod["metadata"]["name"], "POD_IP": "127.0.0.2"}
        assert {item["name"] for item in container["env"]} == set(own)
        python, *arguments = container["command"]
        assert python == "python"
        return subprocess.Popen([sys.executable, *arguments], env={**self._environ, **own}, cwd=ROOT)


@pytest.fixture
def server() -> Iterator[KubernetesServer]:
    made = KubernetesServer()
    yield made
    made.close()


def test_a_job_runs_in_a_pod_that_comes_for_it_and_goes_after_it(
    server: KubernetesServer, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    storage = tmp_path / "shared"
    cluster = make_cluster(
        "resourcemanager.driver=kubernetes",
        "resourcemanager.taskmanager-timeout=15s",
        "taskmanager.task-pool.size=0",
        f"kubernetes.namespace={NAMESPACE}",
        f"kubernetes.config.file={server.kubeconfig(tmp_path / 'kubeconfig')}",
        f"high-availability.storageDir={storage}",
    )
    mounted, work = tmp_path / "mounted", tmp_path / "work"
    mounted.mkdir()
    (mounted / "secret").write_bytes((cluster.directory / "secret").read_bytes())
    url = Configuration.read(cluster.directory / "configuration.json").get(HighAvailabilityOptions.REDIS_URL)
    assert url is not None
    (mounted / "redis-url").write_text(url.reveal())
    (mounted / "config.yaml").write_text(
        "resourcemanager.driver: kubernetes\ntaskmanager.task-pool.size: 0\n"
        f"cluster.runtime-dir: {work}\nhigh-availability.storageDir: {storage}\n"
    )
    kubelet = Kubelet(
        server, {**os.environ, "UNDERSTUDY_CONF_DIR": str(mounted), "UNDERSTUDY_SECRETS_DIR": str(mounted)}
    )
    try:
        assert cluster.run("job", "run", str(write_job(tmp_path, TRIVIAL))).stdout == "sum 499500\n"
        [name] = kubelet.processes
        await_value(lambda: not server.pods)
        assert kubelet.processes[name].wait(PATIENCE_S) == 0, "it ended in good order"
    finally:
        server.close()
        kubelet.stop()
