"""Options of the metrics that are sent to others."""

from __future__ import annotations

from conf.option import option
from conf.values import Boolean, Duration, SecretUrl, Text


class MetricOptions:
    """Metrics that are sent to a Prometheus push gateway. All of them can be scraped from the REST API in any case."""

    PUSH_URL = option(
        "metrics.reporter.promgateway.hostUrl",
        SecretUrl(("http", "https"), "http://user:password@127.0.0.1:9091"),
        None,
        "The Prometheus push gateway that the leading web endpoint sends all metrics to; user and password where it "
        "asks for them. Unset: they are not sent.",
    )
    PUSH_JOB = option(
        "metrics.reporter.promgateway.jobName",
        Text("flights", r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "letters, digits, `.`, `_` and `-`"),
        None,
        "The label `job` of what is sent. Unset: `cluster.id`.",
    )
    PUSH_INTERVAL = option(
        "metrics.reporter.promgateway.interval",
        Duration("10 s", minimum=0.1),
        "60 s",
        "How often they are sent.",
    )
    PUSH_DELETE = option(
        "metrics.reporter.promgateway.deleteOnShutdown",
        Boolean(),
        "true",
        "Whether the push gateway is told to forget them when the cluster stops.",
    )
