"""An application: a user's main() that runs in a cluster of its own, and the jobs that it executes there.

The master starts a process that runs the application (`runtime.cluster.application_bootstrap`). That process starts
`main`, the process with the user's code, which reaches the cluster only through it (`client`). `state` decides on the
next step, and on the application's result.
"""
