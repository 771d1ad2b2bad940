"""A TaskExecutor's pod: its manifest, and the meaning of its state (pure; manifests and pods are plain JSON)."""

from __future__ import annotations

import copy
import re
from collections.abc import Mapping
from typing import Any

import yaml

from conf.configuration import Configuration
from conf.errors import ConfigurationFileError, InvalidValueError
from conf.option import ConfigOption
from conf.options import ClusterOptions, KubernetesOptions

Pod = dict[str, Any]

CONTAINER = "task-executor"
COMMAND = ["python", "-m", "runtime.cluster.container", "task-executor"]

_NEVER_STARTS = frozenset(
    {
        "CreateContainerConfigError",
        "CreateContainerError",
        "CrashLoopBackOff",
        "ErrImageNeverPull",
        "ImagePullBackOff",
        "InvalidImageName",
    }
)
"""Reasons of a waiting container that do not pass by themselves. `ErrImagePull` may, as the first of several tries."""


def worker_labels(configuration: Configuration) -> dict[str, str]:
    """Return the labels by which the workers of a cluster are found again."""
    return {
        "app.kubernetes.io/name": "understudy",
        "app.kubernetes.io/instance": configuration.get(ClusterOptions.ID).strip("._-"),
        "app.kubernetes.io/component": "taskmanager",
    }


def selector(labels: Mapping[str, str]) -> str:
    """Return labels as a label selector of the API server."""
    return ",".join(f"{key}={value}" for key, value in labels.items())


def pod_name(configuration: Configuration, token: str, number: int) -> str:
    """Return the name of a driver's *number*-th worker, which is also the TaskExecutor's `ResourceID`.

    *token* identifies the driver's process.
    """
    cluster = re.sub(r"[^a-z0-9]+", "-", configuration.get(ClusterOptions.ID).lower()).strip("-")
    return f"{cluster[:30]}-taskmanager-{token}-{number}"


def load_template(configuration: Configuration) -> Pod:
    """Return the configured pod template; an empty pod where there is none.

    Raises:
        ConfigurationFileError: it cannot be read, or is not a pod.
    """
    path = configuration.get(KubernetesOptions.POD_TEMPLATE)
    if path is None:
        return {}
    try:
        template = yaml.safe_load(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationFileError(
            f"the pod template {path} cannot be read: {error}", f"check {KubernetesOptions.POD_TEMPLATE.key}"
        ) from error
    except yaml.YAMLError as error:
        line = str(error).splitlines()[0]
        raise ConfigurationFileError(
            f"the pod template {path} is not valid YAML: {line}", "correct the file"
        ) from error
    if not isinstance(template, dict) or template.get("kind") != "Pod":
        raise ConfigurationFileError(
            f"{path} is not a pod: its kind is not Pod", "start it with apiVersion: v1, kind: Pod"
        )
    if wrong := _wrong_part(template):
        raise ConfigurationFileError(f"the pod template {path} cannot be used: {wrong}", "correct the file")
    return template


def _wrong_part(template: Pod) -> str:
    """Return what makes a template no base of `worker_pod`; empty if it is one. Parts that are null are removed."""
    return (
        _wrong_parts("", template, {"metadata": dict, "spec": dict})
        or _wrong_parts("metadata.", template.get("metadata", {}), {"labels": dict, "annotations": dict})
        or _wrong_parts("spec.", template.get("spec", {}), {"containers": list})
        or next(filter(None, map(_wrong_container, template.get("spec", {}).get("containers", []))), "")
    )


def _wrong_container(container: object) -> str:
    if not isinstance(container, dict):
        return "an entry of spec.containers is not a mapping"
    name = f"spec.containers[{container.get('name')}]."
    return _wrong_parts(name, container, {"resources": dict, "env": list, "command": list}) or _wrong_parts(
        f"{name}resources.", container.get("resources", {}), {"requests": dict, "limits": dict}
    )


def _wrong_parts(where: str, values: Pod, types: Mapping[str, type]) -> str:
    for key, type_ in types.items():
        if values.get(key) is None:
            values.pop(key, None)
        elif not isinstance(values[key], type_):
            return f"{where}{key} is not a {'mapping' if type_ is dict else 'list'}"
    return ""


def worker_pod(configuration: Configuration, template: Pod, name: str, owner: Pod | None) -> Pod:
    """Return the manifest of a worker.

    Args:
        configuration: the cluster's.
        template: of `load_template`.
        name: of the pod.
        owner: the deployment that owns it, if any.

    Raises:
        InvalidValueError: a list of ``key=value`` pairs has an invalid entry.
    """
    get, pod = configuration.get, copy.deepcopy(template)
    pod.update(apiVersion="v1", kind="Pod")
    metadata, spec = pod.setdefault("metadata", {}), pod.setdefault("spec", {})
    metadata["name"] = name
    metadata.pop("generateName", None)
    metadata["labels"] = {
        **metadata.get("labels", {}),
        **_pairs(configuration, KubernetesOptions.LABELS),
        **worker_labels(configuration),
    }
    if annotations := _pairs(configuration, KubernetesOptions.ANNOTATIONS):
        metadata["annotations"] = {**metadata.get("annotations", {}), **annotations}
    if owner is not None:
        metadata["ownerReferences"] = [
            {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "name": owner["metadata"]["name"],
                "uid": owner["metadata"]["uid"],
                "controller": False,
                "blockOwnerDeletion": False,
            }
        ]
    spec["restartPolicy"] = "Never"  # the ResourceManager decides whether a new worker is needed
    spec.setdefault("automountServiceAccountToken", False)
    if (account := get(KubernetesOptions.SERVICE_ACCOUNT)) is not None:
        spec["serviceAccountName"] = account
    if nodes := _pairs(configuration, KubernetesOptions.NODE_SELECTOR):
        spec["nodeSelector"] = {**spec.get("nodeSelector", {}), **nodes}
    if secrets := get(KubernetesOptions.IMAGE_PULL_SECRETS):
        spec["imagePullSecrets"] = [{"name": secret} for secret in secrets]
    _fill_container(configuration, _container(spec))
    return pod


def _container(spec: Pod) -> Pod:
    containers: list[Pod] = spec.setdefault("containers", [])
    for container in containers:
        if container.get("name") == CONTAINER:
            return container
    containers.insert(0, {"name": CONTAINER})
    return containers[0]


def _fill_container(configuration: Configuration, container: Pod) -> None:
    get = configuration.get
    container["image"] = get(KubernetesOptions.IMAGE)
    container["imagePullPolicy"] = get(KubernetesOptions.IMAGE_PULL_POLICY).value
    container.setdefault("command", COMMAND)
    cpu, memory = f"{round(get(KubernetesOptions.CPU) * 1000)}m", str(get(KubernetesOptions.MEMORY))
    resources = container.setdefault("resources", {})
    resources["requests"] = {**resources.get("requests", {}), "cpu": cpu, "memory": memory}
    resources["limits"] = {**resources.get("limits", {}), "memory": memory}
    own = [
        {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
    ]
    for variable, reference in _pairs(configuration, KubernetesOptions.ENV_SECRETS).items():
        secret, _, key = reference.partition("/")
        own.append({"name": variable, "valueFrom": {"secretKeyRef": {"name": secret, "key": key}}})
    names = {item["name"] for item in own}
    container["env"] = [*(item for item in container.get("env", []) if item["name"] not in names), *own]


def _pairs(configuration: Configuration, option: ConfigOption[tuple[str, ...]]) -> dict[str, str]:
    found = {}
    for text in configuration.get(option):
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise InvalidValueError(option.key, text, "key=value", option.value_type.example, "the configuration")
        found[key.strip()] = value.strip()
    return found


# ------------------------------------------------------------------- what became of it


def name_of(pod: Pod) -> str:
    """Return the pod's name."""
    return str(pod["metadata"]["name"])


def is_going(pod: Pod) -> bool:
    """Return whether the pod is being deleted."""
    return bool(pod["metadata"].get("deletionTimestamp"))


def end_of(pod: Pod) -> str | None:
    """Return the reason why the pod's TaskExecutor has ended or can never start; None while it runs or may start."""
    status = pod.get("status") or {}
    statuses = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    for item in statuses:
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") in _NEVER_STARTS:
            return _waits(item, waiting)
    if status.get("phase") not in ("Failed", "Succeeded"):
        return None
    if status.get("reason"):  # Evicted, DeadlineExceeded, NodeLost ...
        return f"it was ended by Kubernetes ({status['reason']}){_said(status)}"
    for item in statuses:
        ended = (item.get("state") or {}).get("terminated") or {}
        if ended and (ended.get("exitCode") or item.get("name") == CONTAINER):
            return _terminated(item, ended)
    return f"it has ended ({status['phase']})"


def trouble_of(pod: Pod) -> str:
    """Return the reason why the pod has not started yet; empty where none is known."""
    status = pod.get("status") or {}
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return f"pod {name_of(pod)} has no node ({condition.get('reason', 'Unschedulable')}){_said(condition)}"
    for item in status.get("containerStatuses", []):
        waiting = (item.get("state") or {}).get("waiting") or {}
        if waiting.get("message"):
            return f"pod {name_of(pod)} waits: {_waits(item, waiting)}"
    return ""


def _waits(item: Pod, waiting: Pod) -> str:
    reason = str(waiting.get("reason", ""))
    if "Image" in reason:
        return (
            f"its image {item.get('image', '')!r} is not available ({reason}){_said(waiting)}; see "
            f"{KubernetesOptions.IMAGE.key} and {KubernetesOptions.IMAGE_PULL_SECRETS.key}"
        )
    return f"its container {item.get('name', '')!r} does not start ({reason}){_said(waiting)}"


def _terminated(item: Pod, ended: Pod) -> str:
    if ended.get("reason") == "OOMKilled":
        return (
            f"its container {item.get('name', '')!r} took more memory than its limit (OOMKilled); raise "
            f"{KubernetesOptions.MEMORY.key}, or lower spark.driver.memory"
        )
    if ended.get("signal"):
        return f"its container {item.get('name', '')!r} was ended by signal {ended['signal']}{_said(ended)}"
    return (
        f"its container {item.get('name', '')!r} has ended with exit status {ended.get('exitCode', 0)} "
        f"({ended.get('reason', 'no reason')}){_said(ended)}"
    )


def _said(words: Mapping[str, Any]) -> str:
    message = " ".join(str(words.get("message") or "").split())
    return f": {message[:300]}" if message else ""
