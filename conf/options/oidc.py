"""Options of users whom an OpenID Connect provider identifies."""

from __future__ import annotations

from enum import Enum

from conf.option import option
from conf.values import Choice, FilePath, Text, TextList


class DefaultRole(Enum):
    """Role of a user of the issuer who is in no group that has one."""

    NONE = "none"
    VIEWER = "viewer"


class OidcOptions:
    """Users whom an OpenID Connect provider, the issuer, identifies (`docs/security.md`).

    The web endpoints of all masters need the same values.
    """

    ISSUER = option(
        "security.oidc.issuer",
        Text("https://id.example.org/realms/data", r"https?://[!-~]+", "a URL that starts with https://"),
        None,
        "URL of the OpenID Connect provider, exactly as its tokens have it in `iss`. Web endpoints accept its tokens "
        "as those of users; `understudy login` and the web page log in there. It must be `https://`, except on "
        "loopback. It needs the extra `oidc`. Unset: only the cluster's own tokens are accepted.",
    )
    CLIENT_ID = option(
        "security.oidc.client-id",
        Text("understudy", r"[!-~]+", "a text without blanks"),
        None,
        "Id of the client that stands for the cluster at the issuer. The web page needs its authorization code flow, "
        "with the page's address as a redirect URI. `understudy login` needs its device flow, unless "
        "`security.oidc.device-client-id` is set. Required with `security.oidc.issuer`. A token whose `azp` names "
        "another client is refused.",
    )
    DEVICE_CLIENT_ID = option(
        "security.oidc.device-client-id",
        Text("understudy-cli", r"[!-~]+", "a text without blanks"),
        None,
        "Id of a second client at the issuer, by which `understudy login` logs in, with the device flow. Tokens for it "
        "are accepted as those of `security.oidc.client-id`. Set it if that client may not use the device flow. "
        "Unset: `understudy login` uses that client, too.",
    )
    DEVICE_CLIENT_SECRET_FILE = option(
        "security.oidc.device-client-secret-file",
        FilePath("/etc/understudy/issuer-device-secret"),
        None,
        "The file with the secret of the client by which `understudy login` logs in, for an issuer that gives no "
        "device flow without one. It has mode 0600, belongs to the user of the masters, and is read at their start. "
        "Command lines do not get it: they send their requests to the web endpoint, which sends them to the issuer. "
        "Unset: that client is public.",
    )
    CLIENT_SECRET_FILE = option(
        "security.oidc.client-secret-file",
        FilePath("/etc/understudy/issuer-secret"),
        None,
        "The file with the secret of this client, for an issuer that redeems a server's codes only with one, as "
        'that of a "web application". It has mode 0600, belongs to the user of the masters, read at their start. '
        "Only the web page's log-in uses it; see `security.oidc.device-client-secret-file` for `understudy login`. "
        "Unset: the client is public.",
    )
    AUDIENCE = option(
        "security.oidc.audience",
        Text("understudy-api", r"[!-~]+", "a text without blanks"),
        None,
        "The audience that `aud` of a token must contain. Unset: the id of the client, as ID tokens have it. "
        "If it is set, `understudy login` and the web page use the access token, which must be a JWT then.",
    )
    SCOPES = option(
        "security.oidc.scopes",
        TextList("openid; profile; groups; offline_access"),
        "openid; profile; email",
        "Scopes that `understudy login` and the web page ask for. The page needs `openid`. Some issuers send groups "
        "only with a scope such as `groups`, and a refresh token only with `offline_access`.",
    )
    USER_CLAIM = option(
        "security.oidc.user-claim",
        Text("email", r"[!-~]+", "a text without blanks"),
        "preferred_username",
        "The claim that has the user's name. Choose one that is unique at the issuer and that users cannot change. "
        "The name must have the form of a user's name: a lower-case letter, then at most 63 lower-case letters, digits "
        "and `._@-`. It must not be that of one of the cluster's own users. With `email`, a token whose "
        "`email_verified` is present and not true is refused.",
    )
    GROUPS_CLAIM = option(
        "security.oidc.groups-claim",
        Text("realm_access.roles", r"[!-~]+", "a text without blanks"),
        "groups",
        "The claim that lists the user's groups. Points lead into objects, unless a claim has the whole name.",
    )
    METRICS = option(
        "security.oidc.roles.metrics",
        TextList("monitoring"),
        "",
        "Groups of the issuer whose members have the role `metrics`. The highest role of a user's groups counts.",
    )
    VIEWER = option(
        "security.oidc.roles.viewer",
        TextList("staff"),
        "",
        "Groups of the issuer whose members have the role `viewer`.",
    )
    USER = option(
        "security.oidc.roles.user",
        TextList("data-engineers; data-scientists"),
        "",
        "Groups of the issuer whose members have the role `user`.",
    )
    OPERATOR = option(
        "security.oidc.roles.operator",
        TextList("/platform/on-call"),
        "",
        "Groups of the issuer whose members have the role `operator`.",
    )
    ADMIN = option(
        "security.oidc.roles.admin",
        TextList("platform-admins"),
        "",
        "Groups of the issuer whose members have the role `admin`.",
    )
    DEFAULT_ROLE = option(
        "security.oidc.default-role",
        Choice(DefaultRole),
        "none",
        "Role of a user of the issuer who is in none of these groups. `none` refuses them. `viewer` lets everyone see "
        "all jobs to whom the issuer gives a token for this cluster.",
    )
    CA_FILE = option(
        "security.oidc.ca-file",
        FilePath("/etc/understudy/issuer-ca.pem"),
        None,
        "The PEM file with the authorities that may sign the issuer's certificate, for web endpoints and for "
        "`understudy login`. Unset: those of the system.",
    )
