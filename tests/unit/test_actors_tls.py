from __future__ import annotations

import datetime
import pickle
import random
import ssl
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from actors.errors import ActorError, ActorSystemError, AuthenticationError, WireError
from actors.rpc.tls import TlsConfig, TlsStream
from conf.configuration import Configuration
from runtime.environment.context import tls_config
from tests.fakes.certificates import CertificateAuthority


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> CertificateAuthority:
    return CertificateAuthority(tmp_path_factory.mktemp("stranger"))


def pair(server: TlsConfig, client: TlsConfig) -> tuple[TlsStream, TlsStream]:
    return (
        TlsStream(server.contexts()[0], server_side=True),
        TlsStream(client.contexts()[1], server_side=False),
    )


def exchange(server: TlsStream, client: TlsStream) -> tuple[bytes, bytes]:
    """Carry bytes to and fro until there are no more; what each has received."""
    at_server, at_client = b"", b""
    while True:
        to_server, to_client = client.outgoing(), server.outgoing()
        if not to_server and not to_client:
            return at_server, at_client
        at_server += server.receive(to_server)
        at_client += client.receive(to_client)


# ------------------------------------------------------------------ the stream


def test_two_processes_of_one_authority_talk(authority: CertificateAuthority) -> None:
    server, client = pair(authority.issue(), authority.issue())
    client.send(b"said before it is established")
    assert exchange(server, client) == (b"said before it is established", b"")
    assert server.established
    assert client.established
    server.send(b"to the client")
    client.send(b"to the ")
    client.send(b"server")
    assert exchange(server, client) == (b"to the server", b"to the client")


def test_what_travels_is_not_readable_and_is_tls_1_3(authority: CertificateAuthority) -> None:
    server, client = pair(authority.issue(), authority.issue())
    exchange(server, client)
    client.send(b"confidential" * 100)
    travelled = client.outgoing()
    assert b"confidential" not in travelled
    assert server.receive(travelled) == b"confidential" * 100
    assert server._object.version() == "TLSv1.3"


def test_bytes_may_come_in_any_pieces(authority: CertificateAuthority) -> None:
    server, client = pair(authority.issue(), authority.issue())
    payload = random.Random(1).randbytes(100_000)
    client.send(payload)
    received = b""
    while len(received) < len(payload):
        outgoing = client.outgoing()
        assert outgoing
        for start in range(0, len(outgoing), 7):
            received += server.receive(outgoing[start : start + 7])
        for byte in server.outgoing():
            client.receive(bytes([byte]))
    assert received == payload


def test_a_changed_byte_ends_the_connection(authority: CertificateAuthority) -> None:
    server, client = pair(authority.issue(), authority.issue())
    exchange(server, client)
    client.send(b"a message")
    record = bytearray(client.outgoing())
    record[-1] ^= 1
    with pytest.raises(WireError):
        server.receive(bytes(record))


def test_a_record_played_again_ends_the_connection(authority: CertificateAuthority) -> None:
    server, client = pair(authority.issue(), authority.issue())
    exchange(server, client)
    client.send(b"add 1")
    record = client.outgoing()
    assert server.receive(record) == b"add 1"
    with pytest.raises(WireError):
        server.receive(record)


def test_a_connection_is_never_resumed(authority: CertificateAuthority) -> None:
    server, client = pair(authority.issue(), authority.issue())
    exchange(server, client)
    session = client._object.session
    assert session is None or not session.has_ticket


def test_the_end_of_what_the_peer_sends_is_seen(authority: CertificateAuthority) -> None:
    server, client = pair(authority.issue(), authority.issue())
    exchange(server, client)
    client.send(b"last words")
    with pytest.raises(ssl.SSLWantReadError):  # it waits for the server's own end; its own is on its way
        client._object.unwrap()
    assert server.receive(client.outgoing()) == b"last words"
    assert server.closed


@pytest.mark.parametrize("foreign", ["client", "server"])
def test_a_certificate_of_another_authority_is_refused(
    authority: CertificateAuthority, stranger: CertificateAuthority, foreign: str
) -> None:
    own, other = authority.issue(), stranger.issue()
    server, client = pair(other, own) if foreign == "server" else pair(own, other)
    with pytest.raises(AuthenticationError, match=r"certificate is not accepted:.*security\.ssl\.internal\.ca"):
        exchange(server, client)


def test_the_refused_side_is_told(authority: CertificateAuthority, stranger: CertificateAuthority) -> None:
    own = authority.issue()
    # It accepts the server's certificate, but shows one that the server does not know.
    certificate = stranger.issue()
    server = TlsStream(own.contexts()[0], server_side=True)
    context = own.contexts()[1]
    context.load_cert_chain(certificate.certificate, certificate.key)
    client = TlsStream(context, server_side=False)
    server.receive(client.outgoing())
    client.receive(server.outgoing())
    assert client.established, "as far as it knows"
    with pytest.raises(AuthenticationError, match="the peer's certificate is not accepted"):
        server.receive(client.outgoing())
    assert not server.established
    with pytest.raises(AuthenticationError, match="does not accept this side's certificate"):
        client.receive(server.outgoing())


def test_a_client_without_a_certificate_is_refused(authority: CertificateAuthority) -> None:
    own = authority.issue()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(own.ca)
    server, client = TlsStream(own.contexts()[0], server_side=True), TlsStream(context, server_side=False)
    server.receive(client.outgoing())
    client.receive(server.outgoing())
    with pytest.raises(AuthenticationError, match="has shown no certificate"):
        server.receive(client.outgoing())
    with pytest.raises(AuthenticationError, match="does not accept this side's certificate"):
        client.receive(server.outgoing())


def test_an_older_tls_is_refused(authority: CertificateAuthority) -> None:
    own = authority.issue()
    context = own.contexts()[1]
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    server, client = TlsStream(own.contexts()[0], server_side=True), TlsStream(context, server_side=False)
    with pytest.raises(WireError, match=r"does not speak TLS 1\.3"):
        server.receive(client.outgoing())


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\nHost: a\r\n\r\n", b"UNDR\x01" + bytes(32), bytes(100)], ids=["http", "rpc", "zeroes"]
)
@pytest.mark.parametrize("server_side", [True, False])
def test_what_is_no_tls_is_refused(authority: CertificateAuthority, data: bytes, server_side: bool) -> None:
    stream = TlsStream(authority.issue().contexts()[0 if server_side else 1], server_side=server_side)
    with pytest.raises(WireError, match=r"does not speak TLS 1\.3.*has to be the same on both"):
        stream.receive(data)


def test_a_flood_before_the_handshake_is_refused_at_once(authority: CertificateAuthority) -> None:
    stream = TlsStream(authority.issue().contexts()[0], server_side=True)
    record = b"\x16\x03\x01\x40\x00" + bytes(0x4000)

    def flood() -> None:
        for _ in range(100):
            stream.receive(record)

    with pytest.raises(ActorError):
        flood()


# ------------------------------------------------------------------ the files


def test_the_configuration_is_plain_data(authority: CertificateAuthority) -> None:
    config = authority.issue()
    assert pickle.loads(pickle.dumps(config)) == config


@pytest.mark.parametrize("field", ["certificate", "key", "ca"])
def test_a_missing_file_is_named_with_its_option(authority: CertificateAuthority, field: str, tmp_path: Path) -> None:
    config = replace(authority.issue(), **{field: tmp_path / "missing.pem"})
    with pytest.raises(
        ActorSystemError, match=rf"^security\.ssl\.internal\.{field}: .*missing\.pem cannot be read: No "
    ):
        config.contexts()


@pytest.mark.parametrize("field", ["certificate", "key", "ca"])
def test_a_directory_is_no_file(authority: CertificateAuthority, field: str, tmp_path: Path) -> None:
    with pytest.raises(ActorSystemError, match=rf"^security\.ssl\.internal\.{field}: .* cannot be read"):
        replace(authority.issue(), **{field: tmp_path}).contexts()


@pytest.mark.parametrize("field", ["certificate", "key", "ca"])
def test_a_file_of_something_else_is_named(authority: CertificateAuthority, field: str, tmp_path: Path) -> None:
    file = tmp_path / "wrong.pem"
    file.write_text("this is not a certificate\n")
    file.chmod(0o600)
    with pytest.raises(ActorSystemError, match=r"wrong\.pem .*PEM form") as caught:
        replace(authority.issue(), **{field: file}).contexts()
    assert "\n" not in str(caught.value)


def test_a_key_of_another_certificate_is_refused(authority: CertificateAuthority) -> None:
    with pytest.raises(ActorSystemError, match=r"key values mismatch.*belong together"):
        replace(authority.issue(), key=authority.issue().key).contexts()


def test_a_key_that_others_can_read_is_refused(authority: CertificateAuthority) -> None:
    config = authority.issue()
    config.key.chmod(0o640)
    with pytest.raises(ActorSystemError, match=r"can be read by others.*chmod 600"):
        config.contexts()


def test_an_encrypted_key_is_refused_and_nobody_is_asked(authority: CertificateAuthority) -> None:
    config = authority.issue()
    key = load_pem_private_key(config.key.read_bytes(), None)
    config.key.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password")))
    with pytest.raises(ActorSystemError, match=r"the key is encrypted"):
        config.contexts()


def test_an_expired_certificate_is_noticed_by_its_owner(authority: CertificateAuthority) -> None:
    yesterday = datetime.datetime.now(datetime.UTC) - datetime.timedelta(days=1)
    with pytest.raises(ActorSystemError, match=r"would be refused by every peer.*certificate has expired"):
        authority.issue(not_after=yesterday).contexts()


def test_a_certificate_of_another_authority_is_noticed_by_its_owner(
    authority: CertificateAuthority, stranger: CertificateAuthority
) -> None:
    with pytest.raises(ActorSystemError, match=r"would be refused by every peer.*unable to get local issuer"):
        replace(authority.issue(), ca=stranger.issue().ca).contexts()


def test_a_certificate_through_one_in_between_is_accepted(authority: CertificateAuthority, tmp_path: Path) -> None:
    between = CertificateAuthority(tmp_path, authority.authority.create_child_ca())
    config = replace(between.issue(), ca=authority.issue().ca)
    server, client = pair(config, authority.issue())
    exchange(server, client)
    assert server.established


def test_the_names_in_certificates_do_not_matter(authority: CertificateAuthority) -> None:
    server, client = pair(authority.issue("one.example"), authority.issue("two.example"))
    exchange(server, client)
    assert server.established


def test_public_authorities_are_not_trusted(authority: CertificateAuthority) -> None:
    for context in authority.issue().contexts():
        assert len(context.get_ca_certs()) == 1


def test_errors_are_one_line(authority: CertificateAuthority, stranger: CertificateAuthority, tmp_path: Path) -> None:
    good = authority.issue()
    for wrong in (replace(good, ca=stranger.issue().ca), replace(good, key=tmp_path), replace(good, ca=good.key)):
        with pytest.raises(ActorSystemError) as caught:
            wrong.contexts()
        assert "\n" not in str(caught.value)


# ------------------------------------------------------------------ the options


def test_tls_is_off_by_default() -> None:
    assert tls_config(Configuration()) is None


def test_the_options_name_the_files() -> None:
    options = {f"security.ssl.internal.{name}": f"/tls/{name}.pem" for name in ("certificate", "key", "ca")}
    assert tls_config(Configuration.from_dict(options)) is None, "not enabled"
    configuration = Configuration.from_dict({**options, "security.ssl.internal.enabled": True})
    assert tls_config(configuration) == TlsConfig(*(Path(path) for path in options.values()))
