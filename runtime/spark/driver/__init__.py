"""Spark drivers: the cluster's own JVM, a program's, or a Spark Connect endpoint; `api` is their common interface."""
