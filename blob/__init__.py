"""The blob service: job artifacts and oversized messages, by content-addressed key (Flink's `runtime.blob`).

`BlobServer` keeps the blobs, `BlobClient` talks to it, `BlobCache` keeps local copies, `BlobStore` makes permanent
blobs survive the server; `blob.offload` sends a message that is too large for a frame as a blob.
"""
