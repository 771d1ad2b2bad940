"""The JobGraph: what a user asks to have run, validated, serialisable and cut into tasks."""
