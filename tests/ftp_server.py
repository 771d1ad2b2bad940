"""A real FTP server for tests of remote file systems."""

from __future__ import annotations

import logging
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyftpdlib.authorizers import DummyAuthorizer
from pyftpdlib.handlers import FTPHandler
from pyftpdlib.servers import FTPServer

from tests.waiting import PATIENCE_S

# For a job: Hadoop's FTP client has the server connect back by default.
HADOOP_FTP = """\
spark.conf.set("fs.ftp.user.127.0.0.1", "anonymous")
spark.conf.set("fs.ftp.password.127.0.0.1", "none")
spark.conf.set("fs.ftp.data.connection.mode", "PASSIVE_LOCAL_DATA_CONNECTION_MODE")
"""
USER, PASSWORD = "understudy", "correct-horse-battery"


class FtpServer:
    """An FTP server of its own thread over a directory.

    Args:
        directory: what it serves.
        port: on the loopback address; 0 for a free one.
        anonymous: whether everybody may read and write; else `USER` with `PASSWORD` may.
    """

    def __init__(self, directory: Path, port: int = 0, *, anonymous: bool = False) -> None:
        log = logging.getLogger("pyftpdlib")
        log.addHandler(logging.NullHandler())  # otherwise it sets up its own, and writes a line of each command
        log.setLevel(logging.WARNING)
        directory.mkdir(exist_ok=True)
        self.directory = directory
        authorizer = DummyAuthorizer()
        if anonymous:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # everybody may write: that is wanted here
                authorizer.add_user("anonymous", "", str(directory), perm="elradfmw")
        else:
            authorizer.add_user(USER, PASSWORD, str(directory), perm="elradfmw")
        self.before_removal: Callable[[Path], object] = lambda path: None
        """Called in the server's thread before a file is removed."""

        def remove(handler: Any, path: str) -> Any:
            self.before_removal(Path(path))
            return FTPHandler.ftp_DELE(handler, path)

        settings = {"authorizer": authorizer, "auth_failed_timeout": 0, "ftp_DELE": remove}
        self._handler = type("Handler", (FTPHandler,), settings)
        self.port = port
        self.open()

    def open(self) -> None:
        """Serve, again after `close`, at the same port."""
        self._server = FTPServer(("127.0.0.1", self.port), self._handler)
        self.port = self._server.address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"timeout": 0.02}, daemon=True)
        self._thread.start()

    def url(self, password: str = PASSWORD) -> str:
        return f"ftp://{USER}:{password}@127.0.0.1:{self.port}/deep/store"

    def close(self) -> None:
        """Be away."""
        self._server.close_all()
        self._thread.join(PATIENCE_S)
