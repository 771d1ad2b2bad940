"""An actor of xoscar's, for comparison; imported only where that is installed."""

from __future__ import annotations

import xoscar


class XoscarEcho(xoscar.Actor):  # type: ignore[misc, unused-ignore]  # not installed where this is checked
    """Sends back what it gets."""

    def echo(self, data: bytes) -> bytes:
        return data
