"""Spark's own UI of a running driver, which `understudy history-server` shows.

With `spark.ui.enabled` a driver serves it at a free port. Spark's `JWSFilter` answers there only requests with a token
that is signed with the driver's key (RFC 7515, HS256). The key is new for each driver, in its `driver.json` (0600) and
in its settings, where Spark masks it. Nothing can be killed from the UI: `understudy job cancel` asks who may.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from collections.abc import Mapping
from pathlib import Path

from runtime.spark.driver.api import DriverInfo
from runtime.spark.errors import DriverLostError
from runtime.spark.process import start_time

KEY_SIZE = 32
LIFETIME_S = 60
"""Seconds for which a token is valid."""

UI_ENABLED = "spark.ui.enabled"
_FILTERS = "spark.ui.filters"
_FILTER = "org.apache.spark.ui.JWSFilter"
_DRIVER_FILES = ("tm-*/spark/driver.json", "tm-*/tasks/*/*/spark/driver.json")
"""The shared drivers of a machine's TaskExecutors, and those that one task has to itself."""


def filter_settings(given: Mapping[str, str], key: bytes) -> dict[str, str]:
    """Return the settings with which Spark's web pages are served only to those who have a token.

    Args:
        given: a user's settings; their own filters run after this one.
        key: with which tokens are signed, of `KEY_SIZE` bytes.
    """
    filters = [_FILTER, *filter(None, map(str.strip, given.get(_FILTERS, "").split(",")))]
    return {_FILTERS: ",".join(dict.fromkeys(filters)), f"spark.{_FILTER}.param.secretKey": encoded(key)}


def is_served(settings: Mapping[str, str]) -> bool:
    """Return whether a driver with these settings serves its UI."""
    return settings.get(UI_ENABLED, "").strip().lower() == "true"


def ui_settings(given: Mapping[str, str], key: bytes) -> dict[str, str]:
    """Return the further settings of a driver that serves its UI; see `filter_settings`."""
    port = {} if "spark.ui.port" in given else {"spark.ui.port": "0"}
    return {**port, "spark.ui.killEnabled": "false", **filter_settings(given, key)}


def encoded(data: bytes) -> str:
    """Return bytes in the alphabet of URLs, without padding, as JWS has them."""
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(key: bytes, now_s: float) -> str:
    """Return a token for requests of the next minute, as a JWS in compact form; *now_s* is seconds since the epoch."""
    claims = {"sub": "understudy", "exp": int(now_s) + LIFETIME_S}
    parts = [encoded(json.dumps(part).encode()) for part in ({"alg": "HS256", "typ": "JWT"}, claims)]
    signed = ".".join(parts)
    return f"{signed}.{encoded(hmac.new(key, signed.encode(), hashlib.sha256).digest())}"


def find_uis(runtime_dir: Path) -> dict[str, DriverInfo]:
    """Return the running drivers of a cluster on this machine that serve their UI, by their Spark applications."""
    found = {}
    for path in (path for pattern in _DRIVER_FILES for path in runtime_dir.glob(pattern)):
        try:
            info = DriverInfo.read(path)
        except DriverLostError:  # it has just ended
            continue
        if info.ui_port and start_time(info.pid) == info.start_time:
            found[info.application] = info
    return found
