"""Checkpoints and savepoints of Structured Streaming queries: which files are kept, and how they are restored."""
