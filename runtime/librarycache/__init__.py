"""The Python environments of jobs on a worker: built once, leased, removed when nobody uses them."""
