"""A BlobServer by itself has the limits that the cluster's options have by default."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, cast

from actors.address import ActorAddress
from blob.settings import BlobServerOptions
from conf.configuration import Configuration
from runtime.cluster.master import ComponentSpecs
from runtime.environment.context import ComponentContext
from runtime.environment.directory import ClusterDirectory


def test_its_limits_have_one_source(tmp_path: Path) -> None:
    directory = ClusterDirectory(tmp_path)
    directory.create()
    configuration = Configuration.from_dict({"cluster.runtime-dir": str(tmp_path)})
    context = ComponentContext(configuration, directory, ActorAddress("understudy", "127.0.0.1", 1, "/user/x"))
    options = cast(dict[str, Any], ComponentSpecs(context, "").blob_server().arguments["options"])
    assert BlobServerOptions(**options) == BlobServerOptions()
    assert {field.name for field in fields(BlobServerOptions)} - set(options) == {"backlog", "resume_window"}, (
        "they have no option"
    )
