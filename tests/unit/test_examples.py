"""The files of `examples` that no cluster of a test can run: they fit together, and name what there is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

from conf.configuration import Configuration
from conf.options import ClusterOptions, RestOptions
from runtime.rest.handlers.metrics import ROUTES

ROOT = Path(__file__).resolve().parents[2]
MONITORING = ROOT / "examples" / "monitoring"


def read(name: str) -> Any:
    return yaml.safe_load((MONITORING / name).read_text())


def volumes(service: dict[str, Any]) -> dict[str, str]:
    """Return what is mounted, by its place in the container."""
    short = [volume.split(":") for volume in service["volumes"] if isinstance(volume, str)]
    long = [volume for volume in service["volumes"] if not isinstance(volume, str)]
    return {place: source for source, place, *_ in short} | {volume["target"]: volume["source"] for volume in long}


def test_the_services_mount_what_there_is() -> None:
    compose = read("compose.yaml")
    for service in compose["services"].values():
        for source in volumes(service).values():
            assert source in compose["volumes"] or (MONITORING / source).resolve().exists(), source
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    build = compose["services"]["cluster"]["build"]
    context = (MONITORING / build["context"]).resolve()
    assert context == ROOT
    containerfile = (context / build["dockerfile"]).read_text()
    assert f"USER {compose['services']['prometheus']['user']}\n" in containerfile  # it reads its token, of mode 0600
    assert "-o 10001 -g 10001 -m 0700 /var/lib/understudy" in containerfile


def test_prometheus_finds_the_clusters_metrics() -> None:
    services = read("compose.yaml")["services"]
    cluster = Configuration.load(environ={"UNDERSTUDY_CONF_DIR": str(MONITORING / "cluster")})
    [job] = read("prometheus.yml")["scrape_configs"]
    assert job["static_configs"] == [{"targets": [f"127.0.0.1:{cluster.get(RestOptions.PORT)}"]}]
    assert services["prometheus"]["network_mode"] == "service:cluster"
    token = Path(job["authorization"]["credentials_file"])
    [started] = services["cluster"]["command"]
    assert f"token={token}\n" in started
    assert services["cluster"]["healthcheck"]["test"][-1] == str(token)
    assert volumes(services["cluster"])[str(token.parents[1])] == "state"
    assert job["metrics_path"] in {route.path for route in ROUTES}


def test_prometheus_sees_nothing_of_the_cluster_but_its_own_token() -> None:
    services = read("compose.yaml")["services"]
    [job] = read("prometheus.yml")["scrape_configs"]
    token = Path(job["authorization"]["credentials_file"])
    [mounted] = [volume for volume in services["prometheus"]["volumes"] if not isinstance(volume, str)]
    assert (mounted["source"], mounted["target"], mounted["read_only"]) == ("state", str(token.parent), True)
    assert mounted["volume"] == {"subpath": token.parent.name}
    cluster = Configuration.load(environ={"UNDERSTUDY_CONF_DIR": str(MONITORING / "cluster")})
    secrets = cluster.get(ClusterOptions.RUNTIME_DIR)
    assert token.parent not in (secrets, *secrets.parents)
    [started] = services["cluster"]["command"]
    assert "user add prometheus --role metrics" in started


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    services = read("compose.yaml")["services"]
    [source] = read("grafana/datasources.yaml")["datasources"]
    host, port = source["url"].removeprefix("http://").split(":")
    assert f"127.0.0.1:{port}:9090" in services[host]["ports"]
    [provider] = read("grafana/dashboards.yaml")["providers"]
    mounted = volumes(services["grafana"])
    dashboard = json.loads((MONITORING / mounted[f"{provider['options']['path']}/understudy.json"]).read_text())
    [variable] = [one for one in dashboard["templating"]["list"] if one["type"] == "datasource"]
    assert variable["query"] == source["type"]
