"""A real S3 server (moto's) for tests of object stores."""

from __future__ import annotations

import json
import logging
import urllib.request

from moto.server import ThreadedMotoServer

BUCKET = "bucket"
KEY, SECRET = "understudy", "correct-horse-battery-staple"


class S3Server:
    """An S3 server of its own thread, with an empty bucket `BUCKET`."""

    def __init__(self) -> None:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self._server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        self._server.start()
        host, port = self._server.get_host_and_port()
        self.endpoint = f"http://{host}:{port}"
        self._request("POST", "/moto-api/reset")
        self._request("PUT", f"/{BUCKET}")

    @property
    def settings(self) -> dict[str, object]:
        """Return what users write below ``s3`` into fsspec's configuration."""
        return {
            "key": KEY,
            "secret": SECRET,
            "client_kwargs": {"endpoint_url": self.endpoint, "region_name": "us-east-1"},
        }

    @property
    def environment(self) -> dict[str, str]:
        """Return the same as environment variables."""
        return {"FSSPEC_S3": json.dumps(self.settings)}

    def close(self) -> None:
        self._server.stop()

    def _request(self, method: str, path: str) -> None:
        with urllib.request.urlopen(urllib.request.Request(self.endpoint + path, method=method)):
            pass
