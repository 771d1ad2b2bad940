"""An application: a user's main() that runs in a cluster of its own, and the jobs that it executes there.

The master starts a process that looks after the application (`runtime.cluster.application_bootstrap`). It runs `main`,
the process with the user's code, which reaches the cluster only through it (`client`). `state` decides what comes next,
and how the application has ended.
"""
