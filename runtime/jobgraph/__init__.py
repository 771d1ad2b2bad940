"""The JobGraph: a job of a user, validated, serialisable and cut into tasks."""
