"""The WebMonitorEndpoint: Flink's REST API v1 over this cluster's gateways (Flink's `runtime.rest`)."""
