"""TaskExecutors as pods of Kubernetes; `client` is the only module that imports its official client."""
