"""History of a cluster: ended jobs, the last known state of running ones, and figures over time, in files.

The leaders of a cluster write it (`HistoryDirectory`, `FigureFile`). The web endpoint and `understudy history` read it
(`ClusterHistory`), also after the cluster was stopped.
"""
