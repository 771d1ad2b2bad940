from __future__ import annotations

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from blob.errors import InvalidBlobKey
from blob.key import BlobKey, PermanentBlobKey, TransientBlobKey, check_job_id
from blob.storage import blob_file_name, job_directory_name

DIGEST = bytes(range(32))
RANDOM = bytes(range(16))


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16))
def test_a_key_survives_its_text_form(digest: bytes, random: bytes) -> None:
    for key_type in (PermanentBlobKey, TransientBlobKey):
        key = key_type.create(digest, random)
        parsed = BlobKey.parse(str(key))
        assert parsed == key
        assert type(parsed) is key_type
        assert (parsed.digest, parsed.random, hash(parsed)) == (digest, random, hash(key))
        assert pickle.loads(pickle.dumps(key)) == key


@given(st.text())
def test_any_other_text_is_refused(text: str) -> None:
    with pytest.raises(InvalidBlobKey):
        BlobKey.parse(text)


@pytest.mark.parametrize(
    "spoil",
    [
        lambda t: t + "\n",
        lambda t: t.upper(),
        lambda t: "x" + t[1:],
        lambda t: t[:-1],
        lambda t: t + "0",
        lambda t: "../" + t,
        lambda t: t[:10] + "/" + t[11:],
        lambda t: t[:10] + "\0" + t[11:],
        lambda t: t[:10] + "\u0661" + t[11:],
        lambda t: "/" + t,
    ],
)
def test_a_spoilt_key_is_refused(spoil) -> None:
    with pytest.raises(InvalidBlobKey, match="PermanentBlobKey"):
        PermanentBlobKey(spoil(PermanentBlobKey.create(DIGEST, RANDOM)))


def test_the_two_types_are_apart() -> None:
    permanent, transient = PermanentBlobKey.create(DIGEST, RANDOM), TransientBlobKey.create(DIGEST, RANDOM)
    assert permanent != transient
    assert permanent[1:] == transient[1:]
    with pytest.raises(InvalidBlobKey):
        PermanentBlobKey(transient)
    with pytest.raises(InvalidBlobKey):
        TransientBlobKey(permanent)
    with pytest.raises(TypeError, match="PermanentBlobKey or TransientBlobKey"):
        BlobKey(permanent)


def test_two_uploads_of_one_content_have_two_keys() -> None:
    assert TransientBlobKey.create(DIGEST) != TransientBlobKey.create(DIGEST)


@pytest.mark.parametrize(
    "job_id", ["", "../" + "a" * 29, "A" * 32, "a" * 31, "a" * 33, "a" * 32 + "\n", "a" * 31 + "\0"]
)
def test_a_job_id_is_thirty_two_hex_digits(job_id: str) -> None:
    with pytest.raises(InvalidBlobKey, match="not a job id"):
        check_job_id(job_id)


def test_names_in_a_directory() -> None:
    assert job_directory_name(None) == "no_job"
    assert job_directory_name("a" * 32) == "job_" + "a" * 32
    assert blob_file_name(TransientBlobKey.create(DIGEST, RANDOM)) == f"blob_t-{DIGEST.hex()}-{RANDOM.hex()}"
