"""An application: a user's main() that runs in a cluster of its own, and the jobs that it executes there.

`bootstrap` is the process that the master starts and looks after; `main` the one with the user's code, which reaches
the cluster only through it (`client`); `book` decides what comes next, and how the application has ended.
"""
