"""Metrics after Flink's: kinds and scopes, a registry in each component's process, and the actor that serves it."""
