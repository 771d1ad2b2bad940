"""TaskExecutors as pods of Kubernetes; only the module `client` imports its official client."""
