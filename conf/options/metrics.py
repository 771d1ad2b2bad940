"""Options of the metrics that are pushed."""

from __future__ import annotations

from conf.option import option
from conf.values import Boolean, Duration, SecretUrl, Text


class MetricOptions:
    """Metrics that are sent to a Prometheus push gateway. The REST API offers all of them for scraping in any case."""

    PUSH_URL = option(
        "metrics.reporter.promgateway.hostUrl",
        SecretUrl(("http", "https"), "http://user:password@127.0.0.1:9091"),
        None,
        "URL of the Prometheus push gateway to which the leading web endpoint sends all metrics, with user and "
        "password if it requires them. Unset: metrics are not sent.",
    )
    PUSH_JOB = option(
        "metrics.reporter.promgateway.jobName",
        Text("flights", r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "letters, digits, `.`, `_` and `-`"),
        None,
        "The label `job` of the sent metrics. Unset: `cluster.id`.",
    )
    PUSH_INTERVAL = option(
        "metrics.reporter.promgateway.interval",
        Duration("10 s", minimum=0.1),
        "60 s",
        "Time between two pushes.",
    )
    PUSH_DELETE = option(
        "metrics.reporter.promgateway.deleteOnShutdown",
        Boolean(),
        "true",
        "Whether the cluster deletes its metrics from the push gateway when it stops.",
    )
