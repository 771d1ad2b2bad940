from __future__ import annotations

import os
from pathlib import Path

from blob.key import BlobType
from blob.uploads import MOST_PARKED, PARKED_FROM, ParkedUploads, Upload, UploadName


def upload(directory: Path, number: int = 0, received: int = PARKED_FROM) -> Upload:
    name = UploadName(BlobType.TRANSIENT, None, number.to_bytes(16), 2 * PARKED_FROM)
    path = directory / f"temp-{number}"
    made = Upload(name, os.open(path, os.O_CREAT | os.O_RDWR), path, lambda ended: ended.temporary.unlink())
    made.received = received
    return made


def test_what_was_parked_is_resumed_once(tmp_path: Path) -> None:
    parked = ParkedUploads(10.0)
    one = upload(tmp_path)
    with one:
        assert parked.park(one, 0.0) == []
    assert one.temporary.exists()
    assert parked.expired(9.9) == []
    assert parked.resume(one.name) is one
    assert parked.resume(one.name) is None
    with one:
        pass
    assert not one.temporary.exists()


def test_small_ones_and_those_of_a_server_without_a_window_are_not_kept(tmp_path: Path) -> None:
    for parked, one in (
        (ParkedUploads(10.0), upload(tmp_path, 1, PARKED_FROM - 1)),
        (ParkedUploads(0.0), upload(tmp_path, 2)),
    ):
        with one:
            assert parked.park(one, 0.0) == []
        assert (len(parked), one.temporary.exists()) == (0, False)


def test_the_window_and_the_number_are_limited(tmp_path: Path) -> None:
    parked = ParkedUploads(10.0)
    first, second = upload(tmp_path), upload(tmp_path, 1)
    parked.park(first, 0.0)
    parked.park(second, 5.0)
    again = upload(tmp_path, 1)
    assert parked.park(again, 6.0) == [second]
    assert parked.expired(10.0) == [first]
    assert parked.take(lambda name, _: name == again.name) == [again]
    dropped = [one for number in range(MOST_PARKED + 2) for one in parked.park(upload(tmp_path, number), 0.0)]
    assert [one.name.random for one in dropped] == [number.to_bytes(16) for number in range(2)]
    for one in [first, second, again, *dropped, *parked.take(lambda _name, _since: True)]:
        one.temporary.touch()
        one.end()
