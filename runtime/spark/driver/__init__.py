"""Spark drivers: a JVM of our own, a program's, or a Spark Connect endpoint; `api` is what all of them give."""
