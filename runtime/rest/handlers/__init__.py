"""What answers the requests, by area (Flink's `runtime.rest.handler`). `ROUTES` is all that the endpoint serves."""

from __future__ import annotations

from runtime.rest.handlers import (
    applications,
    checkpoints,
    cluster,
    job_logs,
    jobs,
    metrics,
    processes,
    savepoints,
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
    *job_logs.ROUTES,
    *vertices.ROUTES,
    *checkpoints.ROUTES,
    *savepoints.ROUTES,
    *applications.ROUTES,
    *task_managers.ROUTES,
    *submission.ROUTES,
    *switched_off.ROUTES,
)
