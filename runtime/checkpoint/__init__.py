"""Checkpoints and savepoints of Structured Streaming queries: what is kept of their files, and how it comes back."""
