"""Workers as pods (Flink's `KubernetesResourceManagerDriver`): found again by their labels, watched, deleted."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Sequence
from contextlib import aclosing

from conf.configuration import Configuration
from conf.errors import ConfigurationError
from conf.options import KubernetesOptions
from runtime.ids import ResourceID
from runtime.kubernetes.client import KubernetesApi, KubernetesError
from runtime.kubernetes.pod import (
    Pod,
    end_of,
    is_going,
    load_template,
    name_of,
    pod_name,
    selector,
    trouble_of,
    worker_labels,
    worker_pod,
)
from runtime.protocol.resource_manager_driver import DriverError, OnTerminated, ResourceManagerDriver

logger = logging.getLogger(__name__)

CREATE_TRIES = 3
FIRST_DELAY_S = 0.2
LONGEST_DELAY_S = 10.0
GONE = 410


class KubernetesDriver(ResourceManagerDriver):
    """Starts workers as pods, watches them and deletes them.

    Args:
        configuration: the cluster's.
        api: the API server.

    Raises:
        ConfigurationError: the pod template cannot be used.
    """

    def __init__(self, configuration: Configuration, api: KubernetesApi) -> None:
        self._configuration = configuration
        self._api = api
        self._labels = selector(worker_labels(configuration))
        self._template = load_template(configuration)
        self._token = secrets.token_hex(3)
        self._number = 0
        self._owner: Pod | None = None
        self._pods: dict[str, str] = {}
        self._creating: dict[str, str] = {}
        self._released: set[str] = set()
        self._version = ""
        self._on_terminated: OnTerminated = lambda resource_id, cause: None
        self._watching: asyncio.Task[None] | None = None
        self._deleting: set[asyncio.Task[None]] = set()

    async def initialize(self, on_terminated: OnTerminated) -> Sequence[ResourceID]:
        """Return the pods that run; delete those that have ended since the last leader."""
        await self.stop()
        self._on_terminated = on_terminated
        deployment = self._configuration.get(KubernetesOptions.OWNER)
        if deployment is not None:
            self._owner = await self._api.read_deployment(deployment)
        pods, self._version = await self._api.list_pods(self._labels)
        for pod in pods:
            if end_of(pod) is not None:
                self._delete(name_of(pod))
            elif not is_going(pod):
                self._pods[name_of(pod)] = ""
        self._watching = asyncio.get_running_loop().create_task(self._watch(), name="watch pods")
        return [ResourceID(name) for name in self._pods]

    async def request_resource(self) -> ResourceID:
        """Create a pod under a new name, so that repeating the request is harmless."""
        self._number += 1
        name = pod_name(self._configuration, self._token, self._number)
        try:
            manifest = worker_pod(self._configuration, self._template, name, self._owner)
        except ConfigurationError as error:
            raise DriverError(str(error)) from error
        self._pods[name] = self._creating[name] = ""
        try:
            await self._create(manifest)
        except BaseException:
            del self._creating[name]
            self._pods.pop(name, None)
            raise
        if cause := self._creating.pop(name):  # it has ended already: report it once the caller knows its name
            asyncio.get_running_loop().call_soon(self._on_terminated, ResourceID(name), cause)
        return ResourceID(name)

    async def _create(self, manifest: Pod) -> None:
        for left in reversed(range(CREATE_TRIES)):
            try:
                await self._api.create_pod(manifest)
            except KubernetesError as error:
                if error.status:  # the server has answered, so the pod was not created
                    raise
                if not left:
                    self._released.add(name_of(manifest))
                    self._delete(name_of(manifest))
                    raise
                logger.warning("whether pod %s was created is not known (%s): asking again", name_of(manifest), error)
            else:
                return

    async def release_resource(self, resource_id: ResourceID) -> bool:
        """Delete the pod, if it is one of this cluster; it ends by SIGTERM, within its grace period."""
        if resource_id not in self._pods:
            return False
        trouble = self._pods.pop(resource_id)
        self._released.add(resource_id)
        try:
            await self._api.delete_pod(resource_id)
        except BaseException:
            if resource_id in self._released:  # no event has reported its deletion
                self._released.discard(resource_id)
                self._pods[resource_id] = trouble
            raise
        return True

    async def stop(self) -> None:
        """Stop watching; the pods keep running."""
        tasks = [*self._deleting, *([] if self._watching is None else [self._watching])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._watching = None
        self._pods.clear()
        self._released.clear()

    def hindrance(self) -> str:
        """Return the first known cause why a pod has not started; empty for none."""
        return next(filter(None, self._pods.values()), "")

    # -------------------------------------------------------------------- watch

    async def _watch(self) -> None:
        delay_s = FIRST_DELAY_S
        while True:
            try:
                async with aclosing(self._api.watch_pods(self._labels, self._version)) as events:
                    async for event in events:
                        self._version = str(event.object["metadata"]["resourceVersion"])
                        delay_s = FIRST_DELAY_S
                        if event.type != "BOOKMARK":
                            self._changed(event.object, is_deleted=event.type == "DELETED")
                await asyncio.sleep(FIRST_DELAY_S)
            except KubernetesError as error:
                logger.log(
                    logging.INFO if error.status == GONE else logging.WARNING, "the watch of pods ended: %s", error
                )
                await asyncio.sleep(delay_s)
                delay_s = min(2 * delay_s, LONGEST_DELAY_S)
                if error.status:
                    await self._list_again()

    async def _list_again(self) -> None:
        """List the pods to find the changes that the interrupted watch has missed."""
        known = set(self._pods) - set(self._creating)  # the list may be older than a pod that is created meanwhile
        try:
            pods, self._version = await self._api.list_pods(self._labels)
        except KubernetesError as error:
            logger.warning("the pods cannot be listed: %s", error)
            return
        for pod in pods:
            self._changed(pod, is_deleted=False)
        there = set(map(name_of, pods))
        self._released &= there
        for name in known - there:
            self._ended(name, "its pod was deleted")

    def _changed(self, pod: Pod, *, is_deleted: bool) -> None:
        name, end = name_of(pod), end_of(pod)
        if name in self._released:
            if is_deleted:
                self._released.discard(name)
            return
        if name not in self._pods and (is_deleted or end is not None or is_going(pod)):
            return
        self._pods[name] = trouble_of(pod)  # also adds a pod of which it was unknown whether it was created
        if end is not None:
            self._ended(name, end)
            if not is_deleted:
                self._delete(name)
        elif is_deleted or is_going(pod):
            self._ended(name, "its pod was deleted")

    def _ended(self, name: str, cause: str) -> None:
        if self._pods.pop(name, None) is None:
            return
        if name in self._creating:
            self._creating[name] = cause
        else:
            self._on_terminated(ResourceID(name), cause)

    def _delete(self, name: str) -> None:
        task = asyncio.get_running_loop().create_task(self._delete_ended(name), name=f"delete {name}")
        self._deleting.add(task)
        task.add_done_callback(self._deleting.discard)

    async def _delete_ended(self, name: str) -> None:
        try:
            await self._api.delete_pod(name)
        except KubernetesError as error:
            self._released.discard(name)
            logger.warning("pod %s, which is of no use any more, stays: %s", name, error)
