"""The blob service: job artifacts and oversized messages, by content-addressed key (Flink's `runtime.blob`).

`BlobServer` keeps the blobs, and `BlobClient` calls it. `BlobCache` keeps local copies. `BlobStore` keeps permanent
blobs beyond the life of the server. `blob.offload` sends messages that are too large for a frame as blobs.
"""
