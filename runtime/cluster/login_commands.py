"""The commands ``understudy login``, ``logout`` and ``whoami``."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from conf.configuration import Configuration
from conf.options import ClientOptions, OidcOptions
from runtime.cluster.command_line import configured, examples, json_option, readable_errors
from runtime.cluster.output import format_moment, print_answer, say
from runtime.errors import ClusterError

if TYPE_CHECKING:
    from runtime.cluster.logins import IssuerLine
    from runtime.users.login import Login, LoginOffer, Provider

_EXAMPLE_URL = "https://spark.example.org:8081"
_url_option = click.option("--url", metavar="URL", help="The cluster's web endpoint.  [default: client.url]")


def _at(configuration: Configuration, url: str | None) -> tuple[Configuration, str]:
    """Return the configuration for a cluster, and its URLs. Raises ClusterError if there are none."""
    from runtime.cluster.discovery import URL_VARIABLE, urls_of

    if url is not None:
        configuration = configuration.set(ClientOptions.URL, url)
    urls = urls_of(configuration)
    if urls is None:
        raise ClusterError(
            "no cluster is named; this machine's own needs no login",
            f"name it: --url {_EXAMPLE_URL}, or set client.url or {URL_VARIABLE}",
        )
    return configuration, urls


@contextmanager
def _login_errors() -> Iterator[None]:
    """Translate errors of a login into those of the command line."""
    from runtime.users.login import LoginError
    from runtime.users.oidc import IssuerAnswerError

    try:
        with readable_errors():
            yield
    except LoginError as error:
        raise ClusterError(str(error), error.remedy) from error
    except IssuerAnswerError as error:
        raise ClusterError(f"the issuer cannot be used: {error}", "check security.oidc.* of the cluster") from error


@click.command(
    epilog=examples(
        f"understudy login --url {_EXAMPLE_URL}",
        f"UNDERSTUDY_URL={_EXAMPLE_URL} understudy login",
    )
)
@configured
@_url_option
@click.option("--issuer", metavar="URL", help="Log in only if this is the cluster's issuer.")
@json_option
def login(configuration: Configuration, url: str | None, issuer: str | None, as_json: bool) -> None:
    """Log in at a cluster whose users an OpenID Connect provider identifies.

    Prints an address and a code. Open the address in any browser, enter the code, and log in there. Other commands then
    use the login, and renew it by themselves.
    """
    from runtime.cluster.discovery import endpoints_of
    from runtime.cluster.documents import StoredLogin
    from runtime.cluster.logins import login_file
    from runtime.issuer_client import fetch, trusted
    from runtime.users.login import Login, Provider, discovery_url

    configuration, urls = _at(configuration, url)
    with _login_errors():
        offer = _offer(configuration, urls)
        if issuer is not None and issuer != offer.issuer:
            raise ClusterError(f"the cluster's issuer is {offer.issuer}, not {issuer}", "check both addresses")
        provider = None
        if not offer.through_cluster:
            tls = trusted(configuration.get(OidcOptions.CA_FILE))
            provider = Provider.of(fetch(discovery_url(offer.issuer), tls), offer.issuer)
        file = login_file(configuration, endpoints_of(urls))
        begun = Login(
            file.cluster,
            offer.issuer,
            offer.client_id,
            offer.wants_access_token,
            "" if provider is None else provider.token_url,
            "" if provider is None else provider.revocation_url,
            through_cluster=offer.through_cluster,
        )
        done = begun.with_tokens(_tokens(offer, provider, begun, _line(configuration, urls)))
        with file.locked():
            file.write(done)
    renewed = "renewed by itself" if done.refresh_token else "not renewed, since the issuer gave no refresh token"
    print_answer(
        StoredLogin(file.cluster, offer.issuer, str(file.path), done.expires_ms, bool(done.refresh_token)),
        f"logged in at {file.cluster}; the token is valid until {format_moment(done.expires_ms)}, and {renewed}",
        as_json,
    )


def _offer(configuration: Configuration, urls: str) -> LoginOffer:
    """Ask the cluster how to log in. Raises ClusterError if it has no issuer."""
    import json

    from actors.errors import AuthenticationError
    from runtime.cluster.discovery import web_client
    from runtime.users.login import LoginOffer

    web = web_client(configuration, urls, is_public=True)
    try:
        answer = web.request_from_any("GET", "/v1/login")
    except AuthenticationError as error:
        raise ClusterError(
            f"the cluster at {web.endpoint} has no issuer at which to log in",
            "ask for a token (`understudy token add`), or have security.oidc.issuer set there",
        ) from error
    finally:
        web.close()
    try:
        return LoginOffer.from_json(json.loads(answer))
    except ValueError:
        return LoginOffer.from_json(None)


def _line(configuration: Configuration, urls: str) -> IssuerLine:
    from runtime.cluster.discovery import web_client
    from runtime.cluster.logins import IssuerLine

    ca_file = configuration.get(OidcOptions.CA_FILE)
    return IssuerLine(ca_file, lambda: web_client(configuration, urls, is_public=True))


def _tokens(offer: LoginOffer, provider: Provider | None, login: Login, line: IssuerLine) -> Mapping[str, Any]:
    """Have the user log in by device flow; return the issuer's answer with the tokens."""
    from runtime.issuer_client import IssuerUnreachableError
    from runtime.users.login import DeviceAuthorization, DeviceFlow, LoginError

    device_url = "" if provider is None else provider.device_url
    if not device_url and not offer.through_cluster:
        raise LoginError(
            f"{offer.issuer} has no device flow", "use a token of its in UNDERSTUDY_TOKEN or client.token-file"
        )
    begun = DeviceAuthorization.of(*line.begin(offer, device_url), offer.issuer)
    say(f"open {begun.url} and enter the code {begun.user_code}")
    if begun.complete_url:
        say(f"or open {begun.complete_url} and compare the code")
    flow = DeviceFlow(begun, time.monotonic())
    while True:
        time.sleep(flow.pause_s(time.monotonic()))
        try:
            status, answer = line.tokens(login, begun.device_code)
        except IssuerUnreachableError:
            flow.on_silence()
            continue
        if flow.on_answer(status, answer):
            return answer


@click.command(epilog=examples(f"understudy logout --url {_EXAMPLE_URL}"))
@configured
@_url_option
@json_option
def logout(configuration: Configuration, url: str | None, as_json: bool) -> None:
    """Remove the stored login of a cluster, and have the issuer revoke it."""
    from actors.errors import AuthenticationError
    from runtime.cluster.discovery import endpoints_of
    from runtime.cluster.documents import ChangedIdentity
    from runtime.cluster.logins import login_file
    from runtime.users.oidc import IssuerAnswerError

    configuration, urls = _at(configuration, url)
    with _login_errors():
        file = login_file(configuration, endpoints_of(urls))
        with file.locked():
            existed = file.path.exists()
            try:
                found = file.read()
            except AuthenticationError as error:  # it is removed all the same
                found = None
                say(f"warning: the issuer does not revoke the login: {error}")
            file.remove()
        if found is not None and found.refresh_token and (found.revocation_url or found.through_cluster):
            try:
                status, _ = _line(configuration, urls).revoke(found)
                if status != 200:
                    raise IssuerAnswerError(f"HTTP {status}")
            except IssuerAnswerError as error:
                say(f"warning: {found.issuer} has not revoked the login, which stays valid there: {error}")
    text = f"logged out at {file.cluster}" if existed else f"there was no login at {file.cluster}"
    print_answer(ChangedIdentity(file.cluster, existed), text, as_json)


@click.command(epilog=examples("understudy whoami", f"understudy whoami --url {_EXAMPLE_URL}"))
@configured
@_url_option
@json_option
def whoami(configuration: Configuration, url: str | None, as_json: bool) -> None:
    """Show the user and the role that commands have at the cluster."""
    import json

    from runtime.cluster.discovery import urls_of, web_client
    from runtime.cluster.documents import Identity
    from runtime.http_client import HttpError

    if url is not None:
        configuration = configuration.set(ClientOptions.URL, url)
    urls = urls_of(configuration)
    if urls is None:
        identity = Identity("", "admin", "", "", None)
        print_answer(identity, "the holder of the cluster's secret, with the role admin", as_json)
        return
    with readable_errors():
        web = web_client(configuration, urls)
        try:
            raw = json.loads(web.request_from_any("GET", "/v1/whoami"))
            identity = Identity(raw["user"], raw["role"], raw["token"], raw["issuer"], raw["expires"])
        except (ValueError, LookupError, TypeError) as error:
            raise HttpError(f"{web.endpoint} does not say who you are", "check the address") from error
        finally:
            web.close()
    who = f"user {identity.user}" if identity.user else "the holder of the cluster's own token"
    whence = f" of {identity.issuer}" if identity.issuer else ""
    until = "" if identity.expires_ms is None else f", until {format_moment(identity.expires_ms)}"
    print_answer(identity, f"{who}{whence}, with the role {identity.role}{until}", as_json)
