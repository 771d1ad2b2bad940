"""The Spark vehicle: one driver JVM a worker, task processes forked from a warm zygote.

    driver = await SparkDriver.start(DriverOptions(work_dir=..., log_file=...))     # the worker process
    driver = await SparkDriver.adopt(info_file(work_dir))                           # the TaskExecutor
    zygote = await Zygote.start(log_file=...)
    asyncio.create_task(warm_up(driver, zygote, directory))

    endpoint = driver.new_session()                       # or, for a script, await driver.open_classic(attempt_id)
    task = await zygote.fork(TaskSpec(..., connect=endpoint))
    async for message in task.messages(): ...
    status = await task.wait()
    await driver.release_session(endpoint)                # or close_classic(endpoint)

Only this package imports pyspark and py4j, and only task processes import pyspark. The names here are loaded on first
use: importing this costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from runtime.spark.cds import ArchiveBuild
    from runtime.spark.driver import SparkDriver
    from runtime.spark.errors import (
        DriverCallError,
        DriverError,
        DriverLostError,
        DriverStartError,
        JavaNotFoundError,
        SparkError,
        StillRunningError,
        TaskCancelled,
        UnsupportedJavaError,
        ZygoteError,
        ZygoteLostError,
    )
    from runtime.spark.info import DriverInfo, info_file
    from runtime.spark.java import Java, find_java
    from runtime.spark.launch import DriverOptions, default_archive_dir
    from runtime.spark.query_info import StreamingQueryInfo
    from runtime.spark.spec import (
        ClassicEndpoint,
        ConnectEndpoint,
        TaskSpec,
    )
    from runtime.spark.trial import try_driver
    from runtime.spark.warm import keep_warming, warm_up
    from runtime.spark.zygote_client import TaskProcess, Zygote

__all__ = [
    "ArchiveBuild",
    "ClassicEndpoint",
    "ConnectEndpoint",
    "DriverCallError",
    "DriverError",
    "DriverInfo",
    "DriverLostError",
    "DriverOptions",
    "DriverStartError",
    "Java",
    "JavaNotFoundError",
    "SparkDriver",
    "SparkError",
    "StillRunningError",
    "StreamingQueryInfo",
    "TaskCancelled",
    "TaskProcess",
    "TaskSpec",
    "UnsupportedByEndpointError",
    "UnsupportedJavaError",
    "Zygote",
    "ZygoteError",
    "ZygoteLostError",
    "default_archive_dir",
    "find_java",
    "info_file",
    "keep_warming",
    "try_driver",
    "warm_up",
]

_MODULES = {
    "cds": ("ArchiveBuild",),
    "driver": ("SparkDriver",),
    "info": ("DriverInfo", "info_file"),
    "java": ("Java", "find_java"),
    "launch": ("DriverOptions", "default_archive_dir"),
    "query_info": ("StreamingQueryInfo",),
    "spec": (
        "ClassicEndpoint",
        "ConnectEndpoint",
        "TaskSpec",
    ),
    "trial": ("try_driver",),
    "warm": ("keep_warming", "warm_up"),
    "zygote_client": ("TaskProcess", "Zygote"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f".{_HOMES.get(name, 'errors')}", __name__)
    return getattr(module, name)
