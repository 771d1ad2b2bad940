"""Options of `resourcemanager.driver: kubernetes`."""

from __future__ import annotations

from enum import Enum

from conf.option import option
from conf.values import Choice, Duration, FilePath, MemorySize, Number, Text, TextList

NAME = Text("understudy", r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?", "lower-case letters, digits, '-' or '.'")


class ImagePullPolicy(Enum):
    """Policy of a node for fetching the image."""

    IF_NOT_PRESENT = "IfNotPresent"
    ALWAYS = "Always"
    NEVER = "Never"


class KubernetesOptions:
    """TaskExecutors as pods, with Flink's names of options. A pod template sets everything else."""

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
        "The kubeconfig for access to the API server. Unset: the service account in a pod, otherwise `$KUBECONFIG` or "
        "`~/.kube/config`.",
    )
    CONTEXT = option(
        "kubernetes.context",
        Text("minikube"),
        None,
        "The context of the kubeconfig. Unset: its current one.",
    )
    IMAGE = option(
        "kubernetes.container.image.ref",
        Text("registry.example.org/understudy:0.2.0", r"\S+", "the reference of an image"),
        "understudy:latest",
        "The image of the TaskExecutors' container.",
        fallback_keys=("kubernetes.container.image",),
    )
    IMAGE_PULL_POLICY = option(
        "kubernetes.container.image.pull-policy",
        Choice(ImagePullPolicy),
        "IfNotPresent",
        "Policy of a node for fetching the image.",
    )
    IMAGE_PULL_SECRETS = option(
        "kubernetes.container.image.pull-secrets",
        TextList("registry-key"),
        "",
        "The secrets with which a node may fetch the image.",
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
        "The cores that a TaskExecutor's pod requests.",
        fallback_keys=("kubernetes.taskmanager.cpu",),
    )
    MEMORY = option(
        "kubernetes.taskmanager.memory",
        MemorySize("4 gb", minimum=256 << 20),
        "4 gb",
        "The memory request and limit of a TaskExecutor's pod. It has to suffice for the Spark driver "
        "(`spark.driver.memory`), its Python workers and the task processes.",
    )
    LABELS = option(
        "kubernetes.taskmanager.labels",
        TextList("team=data"),
        "",
        "Additional labels of the pods, as `key=value`.",
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
        "A YAML file with the pod on which the TaskExecutors' pods are based: volumes, tolerations, sidecars. Its "
        "container named `task-executor` is the TaskExecutor's. The options here override it.",
        fallback_keys=("kubernetes.pod-template-file",),
    )
    OWNER = option(
        "kubernetes.jobmanager.deployment",
        NAME,
        None,
        "The deployment of the masters. It owns the pods, so that Kubernetes deletes them with it. Unset: the pods "
        "have no owner.",
    )
    REQUEST_TIMEOUT = option(
        "kubernetes.client.request-timeout",
        Duration("10 s", minimum=0.1),
        "10 s",
        "Timeout of requests to the API server.",
    )
