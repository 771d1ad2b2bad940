"""The few endpoints of Kubernetes' API server that workers need, over real HTTP; and what it may do wrong."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.waiting import PATIENCE_S

TOKEN = "the-token-of-the-service-account"
NAMESPACE = "jobs"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass
class Refusal:
    """How the next request of a method is answered."""

    status: int = 0
    message: str = ""
    after_work: bool = False  # carried out, and the answer lost


@dataclass
class KubernetesServer:
    """Pods and deployments in memory, with versions and events as the real one has them."""

    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    deployments: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[int, str, dict[str, Any]]] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)
    refusals: dict[str, deque[Refusal]] = field(default_factory=dict)
    delay_s: float = 0.0
    version: int = 100
    forgotten: int = 0
    """Versions before this one cannot be watched from any more."""
    watches: int = 0
    cut: int = 0
    """How often all watches were cut."""

    def __post_init__(self) -> None:
        self.changed = threading.Condition()
        self.closed = False
        self._http = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._http.daemon_threads = True
        self._thread = threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05})
        self._thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_port}"

    def kubeconfig(self, path: Path, token: str = TOKEN) -> Path:
        """Write the file by which the client finds this server."""
        path.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "v1",
                    "kind": "Config",
                    "current-context": "test",
                    "clusters": [{"name": "test", "cluster": {"server": self.url}}],
                    "users": [{"name": "test", "user": {"token": token}}],
                    "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
                }
            )
        )
        path.chmod(0o600)
        return path

    def close(self) -> None:
        with self.changed:
            if self.closed:
                return
            self.closed = True
            self.changed.notify_all()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    # ----------------------------------------------------------------- the world

    def note(self, kind: str, pod: dict[str, Any]) -> None:
        """Something happened to a pod: with the lock held."""
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, json.loads(json.dumps(pod))))
        self.changed.notify_all()

    def set_status(self, name: str, **status: Any) -> None:
        """The kubelet, or the scheduler, says how a pod is."""
        with self.changed:
            self.pods[name]["status"] = status
            self.note("MODIFIED", self.pods[name])

    def terminate(self, name: str, **terminated: Any) -> None:
        """The container of a pod ends."""
        ended = {"name": "task-executor", "state": {"terminated": terminated}}
        self.set_status(name, phase="Failed", containerStatuses=[ended])

    def remove(self, name: str) -> None:
        """A pod goes, whoever wanted that."""
        with self.changed:
            pod = self.pods.pop(name)
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.note("DELETED", pod)

    def cut_watches(self) -> None:
        """The connections of all watches break."""
        with self.changed:
            self.cut += 1
            self.changed.notify_all()

    def forget_versions(self) -> None:
        """What happened before now can be told to nobody any more (etcd has been compacted)."""
        with self.changed:
            self.forgotten = self.version + 1
            self.version += 1
            self.events.clear()

    def refuse(self, method: str, status: int = 0, message: str = "", *, after_work: bool = False) -> None:
        """What becomes of the next request of that method; status 0: its connection breaks."""
        self.refusals.setdefault(method, deque()).append(Refusal(status, message, after_work))

    def await_watch(self, number: int) -> None:
        """Wait until so many watches were begun."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.watches >= number, PATIENCE_S), self.requests


def _handler_of(server: KubernetesServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *arguments: Any) -> None:
            """Nothing: the test has `requests`."""

        def do_GET(self) -> None:
            path, query = self.begin()
            if path == PODS and query.get("watch") in ("true", "True"):
                with contextlib.suppress(OSError):  # whoever watched has gone
                    self.watch(query)
            elif path == PODS:
                self.answer("GET", lambda: (200, self.listing(query)))
            else:
                self.answer("GET", lambda: self.deployment(path))

        def do_POST(self) -> None:
            self.begin()
            manifest = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.answer("POST", lambda: self.create(manifest))

        def do_DELETE(self) -> None:
            path, _ = self.begin()
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self.answer("DELETE", lambda: self.delete(path.rpartition("/")[2]))

        def begin(self) -> tuple[str, dict[str, str]]:
            parts = urlsplit(self.path)
            query = {key: values[0] for key, values in parse_qs(parts.query).items()}
            server.requests.append(f"{self.command} {parts.path}{'?watch' if 'watch' in query else ''}")
            time.sleep(server.delay_s)
            return parts.path, query

        def answer(self, method: str, work: Any) -> None:
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.send(*_status(401, "Unauthorized"))
                return
            queue = server.refusals.get(method)
            refusal = queue.popleft() if queue else None
            if refusal is None or refusal.after_work:
                with server.changed:
                    status, body = work()
                if refusal is None:
                    self.send(status, body)
                    return
            if refusal.status:
                self.send(*_status(refusal.status, refusal.message))
            else:
                self.close_connection = True  # without a word

        def send(self, status: int, body: dict[str, Any]) -> None:
            data = json.dumps(body).encode()
            with contextlib.suppress(OSError):  # whoever asked has given it up
                self.send_response(status)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

        def listing(self, query: dict[str, str]) -> dict[str, Any]:
            wanted = _labels(query)
            items = [pod for pod in server.pods.values() if _matches(pod, wanted)]
            return {"kind": "PodList", "metadata": {"resourceVersion": str(server.version)}, "items": items}

        def create(self, manifest: dict[str, Any]) -> tuple[int, dict[str, Any]]:
            name = manifest["metadata"]["name"]
            if name in server.pods:
                return _status(409, f'pods "{name}" already exists')
            manifest["status"] = {"phase": "Pending"}
            server.pods[name] = manifest
            server.note("ADDED", manifest)
            return 201, manifest

        def delete(self, name: str) -> tuple[int, dict[str, Any]]:
            if name not in server.pods:
                return _status(404, f'pods "{name}" not found')
            pod = server.pods.pop(name)
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            server.note("MODIFIED", pod)
            server.note("DELETED", pod)
            return 200, pod

        def deployment(self, path: str) -> tuple[int, dict[str, Any]]:
            prefix = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/"
            found = server.deployments.get(path.removeprefix(prefix))
            return (200, found) if found else _status(404, f"{path} not found")

        def watch(self, query: dict[str, str]) -> None:
            at, wanted = int(query["resourceVersion"]), _labels(query)
            with server.changed:
                server.watches += 1
                cut = server.cut
                server.changed.notify_all()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.close_connection = True
            while True:
                with server.changed:
                    forgotten = at + 1 < server.forgotten
                    found = [event for event in server.events if event[0] > at]
                    if not found and not forgotten:
                        server.changed.wait_for(
                            lambda at=at: server.closed or server.cut != cut or server.version > at, timeout=300
                        )
                    if server.closed or server.cut != cut:
                        return  # in mid-stream: no last chunk
                if forgotten:
                    body = _status(410, f"too old resource version: {at}")[1]
                    self.line({"type": "ERROR", "object": body})
                    self.wfile.write(b"0\r\n\r\n")
                    return
                for version, kind, pod in found:
                    at = version
                    if _matches(pod, wanted):
                        self.line({"type": kind, "object": pod})

        def line(self, event: dict[str, Any]) -> None:
            data = json.dumps(event).encode() + b"\n"
            half = len(data) // 2  # events may come in any pieces
            for part in (data[:half], data[half:]):
                self.wfile.write(b"%x\r\n%s\r\n" % (len(part), part))
                self.wfile.flush()

    return Handler


def _labels(query: dict[str, str]) -> dict[str, str]:
    text = query.get("labelSelector", "")
    return dict(part.split("=", 1) for part in text.split(",") if part)


def _matches(pod: dict[str, Any], wanted: dict[str, str]) -> bool:
    labels = pod["metadata"].get("labels", {})
    return all(labels.get(key) == value for key, value in wanted.items())


def _status(code: int, message: str) -> tuple[int, dict[str, Any]]:
    return code, {"kind": "Status", "status": "Failure", "message": message, "code": code}
