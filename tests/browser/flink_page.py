"""Flink's own web page before a cluster: its files, and everything else passed on with the token."""

from __future__ import annotations

import http.client
import mimetypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.flink_package import web_files
from tests.rest_client import RestClient
from tests.waiting import PATIENCE_S

_PASSED_ON = ("content-type", "content-length", "transfer-encoding")


@contextmanager
def flink_page(rest: RestClient) -> Iterator[str]:
    """The address of the page, for as long as it is served."""
    files = web_files()
    where = urlsplit(rest.url)

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = self.path.partition("?")[0]
            content = files.get("/index.html" if path == "/" else path)
            if content is None:
                self._pass_on()
            else:
                self._answer(200, mimetypes.guess_type(path)[0] or "text/html", content)

        def do_POST(self) -> None:
            self._pass_on()

        def _pass_on(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=PATIENCE_S)
            try:
                headers = {name: self.headers[name] for name in _PASSED_ON if name in self.headers}
                connection.request(self.command, self.path, body, {**headers, "Authorization": f"Bearer {rest.token}"})
                answer = connection.getresponse()
                self._answer(answer.status, answer.getheader("content-type", ""), answer.read())
            finally:
                connection.close()

        def _answer(self, status: int, media: str, content: bytes) -> None:
            with suppress(ConnectionError):  # a page that is left gives up what it has asked for
                self.send_response(status)
                self.send_header("content-type", media)
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: what went wrong, the browser tells."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Proxy)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
