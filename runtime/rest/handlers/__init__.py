"""The handlers of requests, by area (Flink's `runtime.rest.handler`). `ROUTES` is all that the endpoint serves.

Each area first has the pure functions that turn the values of our gateways into the JSON of Flink's REST API v1
(`runtime.rest.messages`), and then the handlers, each below its route.
"""

from __future__ import annotations

from runtime.rest.handlers import (
    applications,
    checkpoints,
    cluster,
    gateways,
    jobs,
    metrics,
    processes,
    submission,
    switched_off,
    task_managers,
    vertices,
)
from runtime.rest.routing import RestRoute

ROUTES: tuple[RestRoute, ...] = (
    *metrics.ROUTES,
    *cluster.ROUTES,
    *processes.ROUTES,
    *jobs.ROUTES,
    *vertices.ROUTES,
    *checkpoints.ROUTES,
    *applications.ROUTES,
    *task_managers.ROUTES,
    *submission.ROUTES,
    *gateways.ROUTES,
    *switched_off.ROUTES,
)
