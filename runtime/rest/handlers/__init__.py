"""The handlers of requests, by area (Flink's `runtime.rest.handler`). `ROUTES` are all routes of the endpoint.

Each area has two parts. First come pure functions that turn values of Understudy's gateways into the JSON of Flink's
REST API v1 (`runtime.rest.messages`). Then come the handlers, each below its route.
"""

from __future__ import annotations

from runtime.rest.handlers import (
    applications,
    checkpoints,
    cluster,
    gateways,
    history,
    jobs,
    metrics,
    processes,
    rescales,
    resource_requirements,
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
    *switched_off.ROUTES,  # before checkpoints: /rescales/config is not a trigger id
    *rescales.ROUTES,  # neither is /rescales/history
    *resource_requirements.ROUTES,
    *checkpoints.ROUTES,
    *applications.ROUTES,
    *task_managers.ROUTES,
    *submission.ROUTES,
    *gateways.ROUTES,
    *history.ROUTES,
)
