"""The Python environments of jobs on a worker: built once, leased to tasks, removed when unused."""
