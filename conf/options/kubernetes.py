"""Options of `resourcemanager.driver: kubernetes`."""

from __future__ import annotations

from enum import Enum

from conf.option import option
from conf.values import Choice, Duration, FilePath, MemorySize, Number, Text, TextList

NAME = Text("understudy", r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "lower-case letters, digits, '-' or '.'")


class ImagePullPolicy(Enum):
    """When a node fetches the image."""

    IF_NOT_PRESENT = "IfNotPresent"
    ALWAYS = "Always"
    NEVER = "Never"


class KubernetesOptions:
    """TaskExecutors as pods, by Flink's names. What is not said here stands in a pod template."""

    NAMESPACE = option(
        "kubernetes.namespace",
        NAME,
        "default",
        "The namespace of the pods.",
    )
    CONFIG_FILE = option(
        "kubernetes.config.file",
        FilePath("/home/me/.kube/config"),
        None,
        "The kubeconfig by which the API server is reached. Unset: in a pod its service account, otherwise "
        "`$KUBECONFIG` or `~/.kube/config`.",
    )
    CONTEXT = option(
        "kubernetes.context",
        Text("minikube"),
        None,
        "The context of the kubeconfig. Unset: its current one.",
    )
    IMAGE = option(
        "kubernetes.container.image.ref",
        Text("registry.example.org/understudy:0.1.0", r"\S+", "the reference of an image"),
        "understudy:latest",
        "The image of the TaskExecutors' container.",
        fallback_keys=("kubernetes.container.image",),
    )
    IMAGE_PULL_POLICY = option(
        "kubernetes.container.image.pull-policy",
        Choice(ImagePullPolicy),
        "IfNotPresent",
        "When a node fetches the image.",
    )
    IMAGE_PULL_SECRETS = option(
        "kubernetes.container.image.pull-secrets",
        TextList("registry-key"),
        "",
        "The secrets by which a node may fetch the image.",
    )
    SERVICE_ACCOUNT = option(
        "kubernetes.taskmanager.service-account",
        NAME,
        None,
        "The service account of the TaskExecutors' pods, which need no rights. Unset: the namespace's default.",
        fallback_keys=("kubernetes.service-account",),
    )
    CPU = option(
        "kubernetes.taskmanager.cpu.amount",
        Number(0.01, 1024.0, "2.0"),
        "1.0",
        "The cores that a TaskExecutor's pod asks for.",
        fallback_keys=("kubernetes.taskmanager.cpu",),
    )
    MEMORY = option(
        "kubernetes.taskmanager.memory",
        MemorySize("4 gb", minimum=256 << 20),
        "4 gb",
        "The memory of a TaskExecutor's pod, asked for and its limit. It is to hold the Spark driver "
        "(`spark.driver.memory`), its Python workers and the task processes.",
    )
    LABELS = option(
        "kubernetes.taskmanager.labels",
        TextList("team=data"),
        "",
        "More labels of the pods, as `key=value`.",
    )
    ANNOTATIONS = option(
        "kubernetes.taskmanager.annotations",
        TextList("example.org/owner=data"),
        "",
        "Annotations of the pods, as `key=value`.",
    )
    NODE_SELECTOR = option(
        "kubernetes.taskmanager.node-selector",
        TextList("disktype=ssd"),
        "",
        "Labels of the nodes on which the pods may run, as `key=value`.",
    )
    ENV_SECRETS = option(
        "kubernetes.env.secretKeyRef",
        TextList("AWS_SECRET_ACCESS_KEY=storage/secret-key"),
        "",
        "Environment variables of the container from secrets of the namespace, as `VARIABLE=secret/key`.",
    )
    POD_TEMPLATE = option(
        "kubernetes.pod-template-file.taskmanager",
        FilePath("/etc/understudy/taskmanager-pod.yaml"),
        None,
        "A pod as YAML to begin with: volumes, tolerations, sidecars. The container named `task-executor` is the "
        "TaskExecutor's. What the options here say is put over it.",
        fallback_keys=("kubernetes.pod-template-file",),
    )
    OWNER = option(
        "kubernetes.jobmanager.deployment",
        NAME,
        None,
        "The deployment of the masters: it owns the pods, so that they go with it. Unset: nothing owns them.",
    )
    REQUEST_TIMEOUT = option(
        "kubernetes.client.request-timeout",
        Duration("10 s", minimum=0.1),
        "10 s",
        "How long the API server may take to answer.",
    )
