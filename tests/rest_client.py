"""Asks the REST API of a cluster as a program does, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from tests.cluster_harness import Cluster

BOUNDARY = "a7d9e1boundary"


@dataclass(frozen=True)
class Reply:
    """An answer: its status and its body."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


@dataclass(frozen=True)
class RestClient:
    """One web endpoint, asked with a token."""

    url: str
    token: str

    @classmethod
    def of(cls, cluster: Cluster, name: str = "rest") -> RestClient:
        """The endpoint of that name, as `status` shows it."""
        urls = {view["name"]: view["url"] for view in cluster.json("status")["cluster"]["processes"]}
        return cls(urls[name], (cluster.directory / "rest-token").read_text().strip())

    def ask(self, method: str, target: str, body: bytes | None = None, **headers: str) -> Reply:
        """One request on a connection of its own; underscores in names of headers are dashes."""
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)
        try:
            shown = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            shown |= {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, target, body, shown)
            answer = connection.getresponse()
            return Reply(answer.status, answer.read())
        finally:
            connection.close()

    def get(self, target: str) -> Any:
        """The JSON that a good GET answers with."""
        reply = self.ask("GET", target)
        assert reply.status == 200, f"{target}: {reply.status} {reply.body!r}"
        return reply.json

    def submit(self, script: bytes, file_name: str, *args: str) -> str:
        """Submit a script; returns the job's id."""
        fields = [f'name="arg"\r\n\r\n{argument}'.encode() for argument in args]
        fields.append(f'name="script"; filename="{file_name}"\r\n\r\n'.encode() + script)
        start = f"--{BOUNDARY}\r\nContent-Disposition: form-data; ".encode()
        body = b"".join(start + field + b"\r\n" for field in fields) + f"--{BOUNDARY}--\r\n".encode()
        kind = f"multipart/form-data; boundary={BOUNDARY}"
        reply = self.ask("POST", "/v1/scripts", body, Content_Type=kind)
        assert reply.status == 202, reply.body
        return str(reply.json["jobid"])
