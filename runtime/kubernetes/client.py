"""The few requests to Kubernetes' API server that workers need; the only module that imports the official client.

The client blocks, so each request runs in a thread; a watch has its own thread. Answers are plain JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

from conf.configuration import Configuration
from conf.options import KubernetesOptions
from runtime.protocol.resource_manager_driver import DriverError

try:
    from kubernetes import client, config
    from kubernetes.client.exceptions import ApiException
    from kubernetes.config.config_exception import ConfigException
    from urllib3.exceptions import HTTPError
except ImportError as _error:
    raise DriverError(
        f"resourcemanager.driver is kubernetes, and the client of Kubernetes is missing ({_error.name}): "
        "pip install 'understudy-spark[kubernetes]'"
    ) from _error

T = TypeVar("T")

IN_CLUSTER = "KUBERNETES_SERVICE_HOST"
WATCH_S = 300  # seconds after which the server ends a watch, and the driver starts the next one
_END = object()


class KubernetesError(DriverError):
    """The API server does not answer, or rejects a request.

    Args:
        status: of HTTP; 0 without an answer, so that it is unknown whether the request was carried out.
        cause: the cause, in one line.
    """

    def __init__(self, status: int, cause: str) -> None:
        super().__init__(cause)
        self.status = status


@dataclass(frozen=True, slots=True)
class WatchEvent:
    """One line of a watch: ``ADDED``, ``MODIFIED``, ``DELETED`` or ``BOOKMARK``, and the object."""

    type: str
    object: dict[str, Any]


class KubernetesApi:
    """The API server, for the pods of one namespace.

    Args:
        configuration: the cluster's.

    Raises:
        DriverError: no API server is configured.
    """

    def __init__(self, configuration: Configuration) -> None:
        get = configuration.get
        self._namespace = get(KubernetesOptions.NAMESPACE)
        self._timeout_s = get(KubernetesOptions.REQUEST_TIMEOUT)
        settings = client.Configuration()
        file, context = get(KubernetesOptions.CONFIG_FILE), get(KubernetesOptions.CONTEXT)
        try:
            if file is None and context is None and os.environ.get(IN_CLUSTER):
                config.load_incluster_config(client_configuration=settings)
            else:
                config.load_kube_config(
                    None if file is None else str(file), context=context, client_configuration=settings
                )
        except (ConfigException, OSError) as error:
            raise DriverError(
                f"no way to Kubernetes: {error}; set {KubernetesOptions.CONFIG_FILE.key}, or run in a pod"
            ) from error
        settings.retries = False  # the caller knows which requests may be repeated, and repeats them
        self._client = client.ApiClient(settings)
        self._pods = client.CoreV1Api(self._client)
        self._apps = client.AppsV1Api(self._client)
        self._threads = ThreadPoolExecutor(max_workers=8, thread_name_prefix="kubernetes")

    async def list_pods(self, labels: str) -> tuple[list[dict[str, Any]], str]:
        """Return the pods with these labels, and the version from which to watch them. Raises `KubernetesError`."""
        answer = await self._ask(self._pods.list_namespaced_pod, self._namespace, label_selector=labels)
        return answer.get("items") or [], str(answer["metadata"]["resourceVersion"])

    async def create_pod(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """Create a pod; no error if it exists. Raises `KubernetesError`."""
        try:
            return await self._ask(self._pods.create_namespaced_pod, self._namespace, manifest)
        except KubernetesError as error:
            if error.status == 409:  # an earlier request for it, whose answer was lost
                return manifest
            raise

    async def delete_pod(self, name: str) -> None:
        """Delete a pod; no error if there is none. Raises `KubernetesError`."""
        try:
            await self._ask(self._pods.delete_namespaced_pod, name, self._namespace)
        except KubernetesError as error:
            if error.status != 404:
                raise

    async def read_deployment(self, name: str) -> dict[str, Any]:
        """Return a deployment. Raises `KubernetesError`."""
        return await self._ask(self._apps.read_namespaced_deployment, name, self._namespace)

    async def watch_pods(self, labels: str, version: str) -> AsyncGenerator[WatchEvent, None]:
        """Yield the events of the pods with these labels after *version*, until the server ends the watch.

        Raises:
            KubernetesError: the connection broke, or the server rejects the watch; status 410: the version is too old.
        """
        loop = asyncio.get_running_loop()
        events: asyncio.Queue[Any] = asyncio.Queue()
        response = await self._in_thread(
            lambda: self._pods.list_namespaced_pod(
                self._namespace,
                label_selector=labels,
                resource_version=version,
                watch=True,
                allow_watch_bookmarks=True,
                timeout_seconds=WATCH_S,
                _preload_content=False,
                _request_timeout=(self._timeout_s, WATCH_S + self._timeout_s),
            )
        )
        reading = loop.run_in_executor(self._threads, _read_lines, response, loop, events.put_nowait)
        try:
            while (item := await events.get()) is not _END:
                if isinstance(item, Exception):
                    raise _explained(item)
                yield _event(item)
        finally:
            with contextlib.suppress(ValueError, RuntimeError, OSError):  # it has ended by itself
                response.shutdown()  # ends the thread's read
            await asyncio.shield(reading)
            response.close()

    def close(self) -> None:
        """Close the connections."""
        self._threads.shutdown(wait=False)
        self._client.close()

    async def _ask(self, method: Callable[..., Any], *args: object, **more: object) -> dict[str, Any]:
        def ask() -> dict[str, Any]:
            response = method(*args, **more, _preload_content=False, _request_timeout=self._timeout_s)
            try:
                return dict(json.loads(response.data))
            finally:
                response.release_conn()

        return await self._in_thread(ask)

    async def _in_thread(self, work: Callable[[], T]) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        except (ApiException, HTTPError, OSError, ValueError, KeyError) as error:
            raise _explained(error) from error


def _read_lines(response: Any, loop: asyncio.AbstractEventLoop, put: Callable[[Any], None]) -> None:
    """Pass on each line, then the error that ended the response, if any, and then `_END`."""

    def tell(item: Any) -> None:
        loop.call_soon_threadsafe(put, item)

    rest = b""
    try:
        for chunk in response.stream(amt=None):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in filter(None, lines):
                tell(line)
    except (HTTPError, OSError, ValueError) as error:
        tell(error)
    tell(_END)


def _event(line: bytes) -> WatchEvent:
    try:
        values = json.loads(line)
        kind, found = str(values["type"]), dict(values["object"])
    except (ValueError, KeyError, TypeError) as error:
        raise KubernetesError(0, f"the API server sent a line that is not an event: {line[:80]!r}") from error
    if kind == "ERROR":
        raise KubernetesError(int(found.get("code") or 0), _refusal(int(found.get("code") or 0), found))
    return WatchEvent(kind, found)


def _explained(error: Exception) -> KubernetesError:
    if isinstance(error, KubernetesError):
        return error
    if isinstance(error, ApiException) and error.status:
        try:
            body = json.loads(error.body or b"{}")
        except ValueError:
            body = {}
        return KubernetesError(error.status, _refusal(error.status, body if isinstance(body, dict) else {}))
    words = " ".join(str(error).split())[:200]
    if isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError):
        return KubernetesError(400, f"the client of Kubernetes does not take the request: {words}")
    return KubernetesError(0, f"the API server of Kubernetes does not answer: {type(error).__name__}: {words}")


def _refusal(status: int, body: dict[str, Any]) -> str:
    message = " ".join(str(body.get("message") or body.get("reason") or "it gives no reason").split())[:300]
    remedy = ""
    if status == 403 and "quota" in message:
        remedy = "; raise the quota, or set slotmanager.number-of-slots.max to what it allows"
    elif status in (401, 403):
        remedy = "; the master's service account needs the role of conf/kubernetes/20-rbac.yaml"
    return f"the API server of Kubernetes refuses ({status}): {message}{remedy}"
