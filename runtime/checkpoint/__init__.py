"""Checkpoints and savepoints of Structured Streaming queries: what is kept of a query's files, and how it comes back."""
