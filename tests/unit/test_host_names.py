"""A text that is not a host name is an error with a remedy wherever a user or a component gives a host."""

from __future__ import annotations

import ssl
from collections.abc import Callable

import pytest

from actors.errors import RecipientUnreachable
from blob.client import BlobClient
from blob.errors import BlobConnectionError
from blob.key import TransientBlobKey
from runtime.cluster.command_line import _resolved
from runtime.cluster.preflight import check_port_free
from runtime.cluster.roles import _is_own, check_host
from runtime.errors import PreflightError
from runtime.http_client import WebAddress, WebClient
from runtime.issuer_client import IssuerUnreachableError, ask
from runtime.rest.connect.gateway import _problem_with
from runtime.rest.listening import listen
from runtime.spark.driver.launch import _address_towards, check_master
from runtime.spark.errors import DriverStartError

NO_HOSTS = ["master..example.org", f"{'x' * 64}.example.org"]
WHY = "it is not a host name"


def blob(host: str) -> object:
    client = BlobClient((host, 1), bytes(32), retries=1, backoff=0.001)
    return client.put_bytes(b"x", TransientBlobKey)


@pytest.mark.parametrize("host", NO_HOSTS)
@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (blob, BlobConnectionError),
        (lambda host: WebClient([WebAddress("http", host, 1)], None).request("GET", "/config"), RecipientUnreachable),
        (lambda host: ask(f"https://{host}/x", ssl.create_default_context()), IssuerUnreachableError),
        (lambda host: check_master(f"spark://{host}:7077"), DriverStartError),
        (lambda host: check_port_free(host, 1, "jobmanager.rpc.port"), PreflightError),
        (lambda host: listen(host, [0], "rest.port"), PreflightError),
        (check_host, PreflightError),
    ],
)
def test_what_is_no_host_name_is_an_error_of_the_caller(
    call: Callable[[str], object], expected: type[Exception], host: str
) -> None:
    with pytest.raises(expected, match=WHY):
        call(host)


@pytest.mark.parametrize("host", NO_HOSTS)
def test_what_is_no_host_name_has_no_address(host: str) -> None:
    assert _resolved(host) == []
    assert not _is_own(host)
    assert _address_towards(f"spark://{host}:7077") is None
    assert _problem_with(host, 0) == WHY
