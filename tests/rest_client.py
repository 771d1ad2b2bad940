"""Asks the REST API of a cluster as a program does, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.cluster_harness import Cluster
from tests.waiting import PATIENCE_S

BOUNDARY = "a7d9e1boundary"


@dataclass(frozen=True)
class Reply:
    """An answer: its status, its body, and, not compared, its headers by their names in lower case."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict, compare=False)

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
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=PATIENCE_S)
        try:
            shown = {"Authorization": f"Bearer {self.token}"} if self.token else {}
            shown |= {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, target, body, shown)
            answer = connection.getresponse()
            headers = {name.lower(): text for name, text in answer.getheaders()}
            return Reply(answer.status, answer.read(), headers)
        finally:
            connection.close()

    def get(self, target: str) -> Any:
        """The JSON that a good GET answers with."""
        reply = self.ask("GET", target)
        assert reply.status == 200, f"{target}: {reply.status} {reply.body!r}"
        return reply.json

    def page_login(self, step: str, **form: str) -> Reply:
        """Send a request of the web page's log-in, as the page does."""
        body = json.dumps({"address": f"{self.url}/", **form}).encode()
        return self.ask("POST", f"/v1/login/{step}", body, Content_Type="application/json", Origin=self.url)

    def log_in_on_the_page(self) -> Reply:
        """Log in as the web page does, with a visit to the issuer in between."""
        begun = self.page_login("begin").json
        parts = urlsplit(begun["url"])
        issuer = RestClient(f"http://{parts.netloc}", "")
        back = urlsplit(issuer.ask("GET", f"{parts.path}?{parts.query}").headers["location"])
        return self.page_login("finish", verifier=begun["verifier"], **dict(parse_qsl(back.query)))

    def submit(self, script: bytes, file_name: str, *args: str) -> str:
        """Submit a script; returns the job's id."""
        reply = self.post_form(
            "/v1/scripts", *(("arg", "", argument.encode()) for argument in args), ("script", file_name, script)
        )
        assert reply.status == 202, reply.body
        return str(reply.json["jobid"])

    def post_form(self, target: str, *parts: tuple[str, str, bytes]) -> Reply:
        """Send a form: the name of each part, the name of its file or nothing, and its content."""
        body = b""
        for name, file_name, content in parts:
            kind = f'; filename="{file_name}"' if file_name else ""
            head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="{name}"{kind}\r\n\r\n'
            body += head.encode() + content + b"\r\n"
        body += f"--{BOUNDARY}--\r\n".encode()
        return self.ask("POST", target, body, Content_Type=f"multipart/form-data; boundary={BOUNDARY}")
