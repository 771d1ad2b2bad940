"""The files of `conf/kubernetes` and the Containerfile: what they say fits together, and what the pods begin with."""

from __future__ import annotations

import re
import stat
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes import client

from conf.configuration import Configuration
from conf.errors import ConfigurationFileError, InvalidValueError
from conf.options import (
    ClusterOptions,
    HighAvailabilityOptions,
    JobManagerOptions,
    KubernetesOptions,
    SecurityOptions,
)
from runtime.cluster.container import command_of, pod_configuration, prepare, probe
from runtime.errors import ClusterError
from runtime.kubernetes.pod import COMMAND, CONTAINER, load_template, worker_pod

ROOT = Path(__file__).resolve().parents[2]
PLAIN = {"str": str, "int": int, "bool": bool, "datetime": str, "object": object}


def built(kind: str, value: Any) -> Any:
    """Build a model of Kubernetes' client from plain data.

    Raises:
        KeyError, TypeError, ValueError: it has a field that the model does not have, lacks one, or has a wrong value.
    """
    if kind.startswith("list["):
        return [built(kind.removeprefix("list[").removesuffix("]"), each) for each in value]
    if kind.startswith("dict["):
        return {name: built(kind.partition(", ")[2].removesuffix("]"), each) for name, each in value.items()}
    if kind in PLAIN:
        if not isinstance(value, PLAIN[kind]):
            raise TypeError(f"{value!r} is not of type {kind}")
        return value
    model = getattr(client, kind)
    fields = {shown: name for name, shown in model.attribute_map.items()}
    return model(**{fields[key]: built(model.openapi_types[fields[key]], each) for key, each in value.items()})


def test_an_object_with_a_wrong_field_is_not_valid() -> None:
    pod: dict[str, Any] = {"kind": "Pod", "spec": {"containers": [{"name": "x", "ports": [{"containerPort": 1}]}]}}
    built("V1Pod", pod)
    [container] = pod["spec"]["containers"]
    container["ports"] = [{"containerPort": "1"}]
    with pytest.raises(TypeError, match="'1' is not of type int"):
        built("V1Pod", pod)
    container["ports"] = [{}]
    with pytest.raises(ValueError, match="container_port"):
        built("V1Pod", pod)
    container["ports"] = [{"containerport": 1}]
    with pytest.raises(KeyError, match="containerport"):
        built("V1Pod", pod)


def manifests() -> dict[tuple[str, str], dict[str, Any]]:
    """Every object of every file, by kind and name."""
    found = {}
    for path in sorted((ROOT / "conf" / "kubernetes").glob("*.yaml")):
        for item in yaml.safe_load_all(path.read_text()):
            found[item["kind"], item["metadata"]["name"]] = item
    return found


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """Of a container whose volumes are mounted below *tmp_path*."""
    for name, text in manifests()["ConfigMap", "understudy-config"]["data"].items():
        text = text.replace("/var/lib/understudy", str(tmp_path / "work")).replace(
            "/etc/understudy/conf", str(tmp_path)
        )
        (tmp_path / name).write_text(text)
    (tmp_path / "work").mkdir()
    (tmp_path / "secret").write_text("a secret of sixteen characters and more\n")
    (tmp_path / "secret").chmod(0o440)
    (tmp_path / "redis-url").write_text("redis://:password@redis:6379/0\n")
    return {
        "POD_IP": "10.1.2.3",
        "POD_NAME": "understudy-taskmanager-ab12cd-1",
        "UNDERSTUDY_CONF_DIR": str(tmp_path),
        "UNDERSTUDY_SECRETS_DIR": str(tmp_path),
    }


def test_every_object_is_valid_in_one_namespace_and_what_it_names_is_there() -> None:
    found = manifests()
    for (kind, name), item in found.items():
        built(f"V1{kind}", item)
        assert item["metadata"].get("namespace", "understudy") == "understudy", name
    for item in found.values():
        if item["kind"] not in ("Deployment", "StatefulSet"):
            continue
        template = item["spec"]["template"]
        assert item["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
        check_pod(template["spec"], found)
    for name in ("understudy-master", "redis"):
        kind = "Deployment" if name == "understudy-master" else "StatefulSet"
        labels = found[kind, name]["spec"]["template"]["metadata"]["labels"]
        assert found["Service", name]["spec"]["selector"].items() <= labels.items()


def check_pod(spec: dict[str, Any], found: dict[tuple[str, str], dict[str, Any]]) -> None:
    """It has what it mounts, runs as nobody in particular, and may become nobody else."""
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    if "serviceAccountName" in spec:
        assert ("ServiceAccount", spec["serviceAccountName"]) in found
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    for volume in volumes.values():
        if "configMap" in volume:
            assert ("ConfigMap", volume["configMap"]["name"]) in found
        if "persistentVolumeClaim" in volume:
            assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in found
        if "secret" in volume:
            assert volume["secret"]["secretName"] == "understudy-secret"
    for container in spec["containers"]:
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        mounted = {mount["name"] for mount in container["volumeMounts"]}
        assert mounted <= {*volumes, "data"}


def test_the_rights_are_those_that_the_driver_uses() -> None:
    found = manifests()
    role = found["Role", "understudy-master"]["rules"]
    assert role[0] == {"apiGroups": [""], "resources": ["pods"], "verbs": ["create", "delete", "list", "watch"]}
    assert role[1]["verbs"] == ["get"]
    assert role[1]["resourceNames"] == ["understudy-master"]
    assert found["ServiceAccount", "understudy-worker"]["automountServiceAccountToken"] is False
    [subject] = found["RoleBinding", "understudy-master"]["subjects"]
    assert subject["name"] == found["Deployment", "understudy-master"]["spec"]["template"]["spec"]["serviceAccountName"]


def test_a_task_executors_pod_of_this_configuration_is_valid(environ: dict[str, str]) -> None:
    configuration = pod_configuration(environ)
    owner = {"metadata": {"name": configuration.get(KubernetesOptions.OWNER), "uid": "u"}}
    pod = worker_pod(configuration, load_template(configuration), environ["POD_NAME"], owner)
    built("V1Pod", pod)
    found = manifests()
    check_pod(pod["spec"], found)
    master = found["Deployment", "understudy-master"]
    assert owner["metadata"]["name"] == master["metadata"]["name"]
    [container] = pod["spec"]["containers"]
    assert (container["name"], container["command"]) == (CONTAINER, COMMAND)
    assert container["image"] == master["spec"]["template"]["spec"]["containers"][0]["image"]
    assert configuration.get(KubernetesOptions.NAMESPACE) == master["metadata"]["namespace"]
    wrong = configuration.set(KubernetesOptions.LABELS, "team")
    with pytest.raises(InvalidValueError, match="expected key=value"):
        worker_pod(wrong, {}, "x", None)


@pytest.mark.parametrize(
    ("parts", "wrong"),
    [
        ({"metadata": None, "spec": None}, ""),
        ({"spec": {"containers": None}, "metadata": {"labels": None, "annotations": None}}, ""),
        ({"spec": {"containers": [{"name": CONTAINER, "env": None, "resources": {"limits": None}}]}}, ""),
        ({"spec": []}, "spec is not a mapping"),
        ({"metadata": {"labels": ["a"]}}, "metadata.labels is not a mapping"),
        ({"spec": {"containers": {"name": CONTAINER}}}, "spec.containers is not a list"),
        ({"spec": {"containers": [CONTAINER]}}, "an entry of spec.containers is not a mapping"),
        ({"spec": {"containers": [{"name": "a", "env": {"A": "b"}}]}}, "spec.containers[a].env is not a list"),
        (
            {"spec": {"containers": [{"name": "a", "resources": {"limits": "1Gi"}}]}},
            "spec.containers[a].resources.limits is not a mapping",
        ),
    ],
)
def test_a_pod_template_that_is_no_pod_inside_is_refused_with_the_part_that_is_wrong(
    parts: dict[str, Any], wrong: str, environ: dict[str, str], tmp_path: Path
) -> None:
    template = tmp_path / "pod.yaml"
    template.write_text(yaml.safe_dump({"kind": "Pod", **parts}))
    configuration = pod_configuration(environ).set(KubernetesOptions.POD_TEMPLATE, template)
    configuration = configuration.set(KubernetesOptions.ANNOTATIONS, ("a=b",))
    if wrong:
        with pytest.raises(ConfigurationFileError, match=re.escape(f"{template} cannot be used: {wrong}")):
            load_template(configuration)
    else:
        built("V1Pod", worker_pod(configuration, load_template(configuration), "x", None))


def test_a_container_makes_its_directory_and_becomes_its_process(environ: dict[str, str]) -> None:
    configuration = pod_configuration(environ)
    directory = prepare(configuration, environ)
    prepare(configuration, environ)  # as when the container of a pod is started again
    assert configuration.get(JobManagerOptions.RPC_ADDRESS) == "10.1.2.3"
    secret = configuration.get(SecurityOptions.SECRET_FILE)
    assert secret.parent == directory.root
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    written = Configuration.read(directory.configuration_file)
    url = written.get(HighAvailabilityOptions.REDIS_URL)
    assert url is not None
    assert url.reveal() == "redis://:password@redis:6379/0"
    assert written.get(ClusterOptions.ID) == "understudy"
    worker = command_of("task-executor", configuration, directory, environ)
    assert worker[:4] == [sys.executable, "-m", "runtime.cluster.worker", str(directory.root)]
    assert worker[-2:] == ["0", environ["POD_NAME"]]
    assert "password" not in " ".join(worker)
    assert directory.taskmanager(0).is_dir()


def test_what_a_container_lacks_is_said(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ClusterError, match="POD_IP is not set"):
        pod_configuration({key: value for key, value in environ.items() if key != "POD_IP"})
    assert "does not answer" in probe(pod_configuration(environ))
    (tmp_path / "redis-url").unlink()
    with pytest.raises(ClusterError, match="no Redis that its pods could share") as error:
        pod_configuration(environ)
    assert "redis-url" in error.value.remedy


def test_the_image_has_what_it_copies_and_no_more_rights_or_secrets_than_it_needs() -> None:
    lines = (ROOT / "Containerfile").read_text().splitlines()
    copied = [
        word for line in lines if line.startswith("COPY ") and "--from" not in line for word in line.split()[1:-1]
    ]
    assert copied
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    for name in copied:
        assert (ROOT / name).exists()
        assert f"!{name}" in ignored
    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert all("python:3.11-slim" in base for base in bases)
    assert [line for line in lines if line.startswith("USER ")] == ["USER 10001:10001"]
    [entry] = [line for line in lines if line.startswith("ENTRYPOINT ")]
    assert "runtime.cluster.container" in entry
    assert not [line for line in lines if line.startswith(("ENV", "ARG")) and ("SECRET" in line or "PASSWORD" in line)]
