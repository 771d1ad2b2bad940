"""Plans of faults kept for BlobServers, clients and caches."""

from __future__ import annotations

from tests.simulation.faults import Fault
from tests.simulation.kept.model import Kept

KEPT: tuple[Kept, ...] = (
    Kept(
        "What a failing disk did not remove stayed in the BlobServer's directory until it restarted.",
        "rest-of-a-failed-removal-forgotten",
        "blobs",
        0,
        (Fault(15.0, "disk_remove_errors", ("m1", 1.0, 5.0)),),
        20.0,
        "nothing is left behind",
    ),
    Kept(
        "A client that reads into a stream got the server's damaged copy again each time, and never the store's.",
        "damaged-copy-streamed-again",
        "blobs",
        3,
        (Fault(4.6, "blob_damage", ("m1", 0.48)),),
        11.0,
        "a damaged copy is replaced",
    ),
)

RARE: tuple[Kept, ...] = (
    Kept(
        "A server that finds its copy damaged serves it, and does not take the store's.",
        "damaged-copy-here-served",
        "blobs",
        3,
        (Fault(4.6, "blob_damage", ("m1", 0.48)),),
        11.0,
        "a damaged copy is replaced",
    ),
)
