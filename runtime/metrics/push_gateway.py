"""Sends all metrics to a Prometheus push gateway, again and again (Flink's `PrometheusPushGatewayReporter`)."""

from __future__ import annotations

import asyncio
import base64
import logging
import threading
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable
from urllib.parse import quote, unquote, urlsplit

from conf.configuration import Configuration
from conf.options import ClusterOptions, MetricOptions
from runtime.metrics.prometheus import MEDIA

logger = logging.getLogger(__name__)

ANSWER_S = 10.0
"""Seconds that a push gateway may take to answer."""


class PushGateway:
    """One group of metrics at a push gateway, named by its label ``job``. Its methods block.

    Args:
        url: of the gateway, with user and password where it asks for them.
        job: the label.
    """

    def __init__(self, url: str, job: str) -> None:
        self._lock = threading.Lock()
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        self._group = f"{parts.scheme}://{host}{parts.path.rstrip('/')}/metrics/job/{quote(job, safe='')}"
        self._headers = {"Content-Type": MEDIA}
        if user:
            self._headers["Authorization"] = "Basic " + base64.b64encode(unquote(user).encode()).decode()

    def put(self, text: str) -> None:
        """Replace what the gateway has of the group; raises OSError."""
        self._send("PUT", text.encode())

    def delete(self) -> None:
        """Let the gateway forget the group; raises OSError."""
        self._send("DELETE", None)

    def _send(self, method: str, body: bytes | None) -> None:
        # The option takes nothing but http and https.
        request = urllib.request.Request(self._group, body, self._headers, method=method)  # noqa: S310
        try:
            # One after the other: what is still on its way is not to come after the end.
            with self._lock, urllib.request.urlopen(request, timeout=ANSWER_S):  # noqa: S310
                pass
        except urllib.error.HTTPError as error:
            said = error.read(200).decode(errors="replace").strip()
            raise OSError(f"status {error.code}: {said or error.reason}") from None


class PushReporter:
    """Sends while it runs. A gateway that does not take them is told of once, and again when it does.

    Args:
        gateway: where to.
        interval_s: seconds between two sendings.
        collect: returns the metrics in Prometheus's format.
        forgets: whether the gateway is to forget them at the end.
    """

    def __init__(
        self, gateway: PushGateway, interval_s: float, collect: Callable[[], Awaitable[str]], *, forgets: bool
    ) -> None:
        self._gateway = gateway
        self._interval_s = interval_s
        self._collect = collect
        self._forgets = forgets
        self._complaint = ""
        self._work: asyncio.Task[None] | None = None

    @classmethod
    def of(cls, configuration: Configuration, collect: Callable[[], Awaitable[str]]) -> PushReporter | None:
        """The one that is configured; None where there is none."""
        url = configuration.get(MetricOptions.PUSH_URL)
        if url is None:
            return None
        job = configuration.get(MetricOptions.PUSH_JOB) or configuration.get(ClusterOptions.ID)
        return cls(
            PushGateway(url.reveal(), job),
            configuration.get(MetricOptions.PUSH_INTERVAL),
            collect,
            forgets=configuration.get(MetricOptions.PUSH_DELETE),
        )

    def start(self) -> None:
        """Begin to send; to be called on the event loop."""
        self._work = asyncio.get_running_loop().create_task(self._run(), name="metrics to the push gateway")

    async def stop(self, *, forget: bool = False) -> None:
        """End it; *forget* where nobody goes on with it. One that has not been started is no error."""
        if self._work is None:
            return
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)
        self._work = None
        if forget and self._forgets:
            await self._try(lambda: asyncio.to_thread(self._gateway.delete))

    async def _run(self) -> None:
        while True:
            await self._try(self._send)
            await asyncio.sleep(self._interval_s)

    async def _send(self) -> None:
        await asyncio.to_thread(self._gateway.put, await self._collect())

    async def _try(self, send: Callable[[], Awaitable[None]]) -> None:
        try:
            await send()
        except Exception as error:  # whatever it is: metrics end nothing else
            if str(error) != self._complaint:
                logger.warning("the push gateway did not take the metrics (%s): %s", MetricOptions.PUSH_URL.key, error)
            self._complaint = str(error)
        else:
            if self._complaint:
                logger.info("the push gateway takes the metrics again")
            self._complaint = ""
