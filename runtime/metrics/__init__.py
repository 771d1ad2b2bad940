"""Metrics as Flink has them: kinds and scopes, a registry in each component's process, and the actor that tells it."""
