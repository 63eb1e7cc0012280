"""
How to connect: all options in one frozen object that can be sent to other processes.
"""

from __future__ import annotations

import functools
import os
import pickle
import re
import ssl
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, TypedDict
from urllib.parse import urlsplit

import attrs

from jetsync._base.deadline import as_seconds
from jetsync._base.fields import check_count, check_fields, checked, duration, instance_of
from jetsync.errors import ConfigurationError, InvalidArgumentError, InvalidTypeError
from jetsync.errors.texts import redact_url
from jetsync.values.saved_context import context_fields
from jetsync.values.server_info import PoolServer, ServerInfo
from jetsync.values.server_urls import read_servers
from jetsync.values.subjects import api_prefix, validate_subject

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from jetsync._base.deadline import Seconds

__all__ = ["DEFAULT_URL", "ConnectFields", "ConnectOptions", "OptionsFields"]

DEFAULT_URL: Final = "nats://127.0.0.1:4222"
"""The default server."""

_SEED = re.compile(r"S[A-Z2-7]{57}")
_PUBLIC_KEY = re.compile(r"U[A-Z2-7]{55}")
# File contents given instead of a path by mistake. They must not be shown.
_CONTENTS = re.compile(r"\n|eyJ[\w-]+\.|S[A-Z2-7]{57}")
_ENVIRONMENT: Final = {
    "NATS_URL": "servers",
    "NATS_USER": "user",
    "NATS_PASSWORD": "password",
    "NATS_TOKEN": "token",
    "NATS_CREDS": "credentials",
    "NATS_NKEY": "nkey_seed",
    "NATS_CA": "tls_ca",
    "NATS_CERT": "tls_cert",
    "NATS_KEY": "tls_key",
}
TLS_FIELDS: Final = ("tls", "tls_ca", "tls_cert", "tls_key", "tls_hostname", "tls_first")
# Options that have no effect without one of the others.
_ONLY_WITH: Final = {
    "password": ("user",),
    "nkey": ("nkey_signature",),
    "nkey_signature": ("nkey", "credentials"),
    "tls_key": ("tls_cert",),
}
_HINTS: Final = {"password": "; a login in a URL and one in the options are not combined"}
# Options of which only one can be used.
_EXCLUDES: Final = {
    "nkey": ("nkey_seed", "credentials"),
    "tls": ("tls_ca", "tls_cert"),
}
LOGIN_FIELDS: Final = (
    *("user", "password", "token", "credentials", "nkey_seed", "nkey", "nkey_signature"),
)
TOGETHER: Final = (
    LOGIN_FIELDS,
    ("tls_cert", "tls_key"),
    ("jetstream_domain", "jetstream_prefix"),
)
"""Groups of options from one source: if one is given, those of the environment are not used."""

_CALLABLE: Final = ("user", "password", "token", "credentials", "nkey_signature", "choose_server")


ChooseServer: TypeAlias = Callable[
    [tuple[PoolServer, ...], ServerInfo], PoolServer | tuple[PoolServer, "Seconds"] | None
]

# Converters and checks of the fields. `checked` adds the name of the field to their errors.


def _secret(value: object) -> str:
    return _shown(None if value is None else value if callable(value) else "***")


def _shown(value: object) -> str:
    # The repr of a callable may contain anything, such as the arguments of a partial.
    return "<callable>" if callable(value) else repr(value)


def _shown_servers(servers: object) -> str:
    if isinstance(servers, tuple):
        return repr([redact_url(one) for one in servers])
    return repr(redact_url(servers)) if isinstance(servers, str) else repr(servers)


def _servers(value: str | Sequence[str] | None) -> str | Sequence[str] | None:
    # Copied, because the caller could change the list later.
    return tuple(value) if isinstance(value, list) else value


def _plugins(value: Sequence[object | str]) -> tuple[object | str, ...]:
    given: object = value
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidTypeError("must be a list of objects or names")
    return tuple(given)


def _path(value: Any) -> Any:
    if not isinstance(value, (str, os.PathLike)):
        raise InvalidTypeError(f"must be a path, not {type(value).__name__}")
    if not value or _CONTENTS.search(str(value)):
        raise InvalidArgumentError("must be the path of a file")
    return str(Path(value).expanduser())


def seed_path(given: str) -> Path | None:
    """
    Return the path in an ``nkey_seed``; ``None`` if it is a seed.
    """
    given = given.strip()
    return None if _SEED.fullmatch(given) else Path(given).expanduser()


def _path_or_callable(value: Any) -> Any:
    return value if value is None or callable(value) else _path(value)


def _public_key(value: str | None) -> str | None:
    given: object = value
    if given is None or (isinstance(given, str) and _PUBLIC_KEY.fullmatch(given)):
        return value
    # Not shown: it may be the seed.
    raise InvalidArgumentError("must be the public key of a user, 56 characters that begin with U")


def _seconds(value: Seconds) -> float:
    return as_seconds(value, "")


def _positive(value: Seconds) -> float:
    if not as_seconds(value, ""):
        raise InvalidArgumentError("must be more than 0")
    return as_seconds(value, "")


def _at_least(least: int) -> Callable[[object, attrs.Attribute[int], int], None]:
    return lambda _, field, value: check_count(field.name, value, least)


_CHECKS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "str | os.PathLike[str]": _path,
    "str | Callable[[], str]": instance_of("text or a callable", str, Callable),
    "Callable[[bytes], bytes]": instance_of("a function", Callable),
    "ChooseServer": instance_of("a function", Callable),
}


def _over(fields: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """
    Return the fields with those that are given, which replace a group as a whole.
    """
    replaced = {name for group in TOGETHER if any(one in given for one in group) for name in group}
    if "tls" in given:
        replaced |= {"tls_ca", "tls_cert", "tls_key"}
    return {**{name: fields[name] for name in fields if name not in replaced}, **given}


def _environment_fields(env: Mapping[str, str]) -> dict[str, Any]:
    context = env.get("NATS_CONTEXT")
    given = {field: env[key] for key, field in _ENVIRONMENT.items() if env.get(key)}
    return _over(_context(context, env) if context else {}, given)


def _context(name: str | None, env: Mapping[str, str]) -> dict[str, Any]:
    # A context without a server means the default one, and not that of the environment, which
    # should not get the login of the context.
    return {"servers": DEFAULT_URL, **context_fields(name, env)}


class ConnectFields(TypedDict, total=False):
    """
    The keywords of :func:`jetsync.connect`, for type checkers.
    """

    name: str | None
    user: str | Callable[[], str] | None
    password: str | Callable[[], str] | None
    token: str | Callable[[], str] | None
    credentials: str | os.PathLike[str] | Callable[[], str | bytes | os.PathLike[str]] | None
    nkey_seed: str | None
    nkey: str | None
    nkey_signature: Callable[[bytes], bytes] | None
    retry_refused_logins: bool
    tls: ssl.SSLContext | None
    tls_ca: str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    tls_hostname: str | None
    tls_first: bool
    ignore_discovered_servers: bool
    inbox_prefix: str
    jetstream_domain: str | None
    jetstream_prefix: str | None
    connect_timeout: Seconds
    retry_on_failed_connect: bool
    max_reconnects: int
    reconnect_wait: Seconds
    max_reconnect_wait: Seconds
    reconnect_jitter: Seconds | None
    choose_server: ChooseServer | None
    ping_interval: Seconds
    max_outstanding_pings: int
    echo: bool
    request_timeout: Seconds
    drain_timeout: Seconds
    loop: Literal["auto", "asyncio", "uvloop"]
    after_fork: Literal["error", "reconnect"]


class OptionsFields(ConnectFields, total=False):
    """
    The fields of :class:`ConnectOptions` as keywords, for type checkers.
    """

    servers: str | Sequence[str] | None
    plugins: Sequence[object | str]


@attrs.frozen(
    slots=True, kw_only=True, field_transformer=functools.partial(checked, checks=_CHECKS)
)
class ConnectOptions:
    """
    All options of a connection.

    The object is immutable and comparable. It can be pickled unless it holds an ``SSLContext`` or a
    callable that cannot be pickled. Its ``repr`` shows no secrets. Durations accept seconds or a
    ``timedelta`` and hold float seconds. Each attempt to connect reads the files that the options
    name.

    Callables that return a login, and the callable that signs the nonce, run in a worker thread for
    each connection attempt. They must not call methods of the client. If such a callable raises an
    exception, the attempt fails with an ``AuthenticationError``.
    """

    servers: str | Sequence[str] | None = attrs.field(
        default=None, converter=_servers, repr=_shown_servers
    )
    """One URL, several separated by commas, or a list. ``None`` means the server, the login and
    the TLS files of the environment, as in :meth:`from_env`, or ``nats://127.0.0.1:4222`` if it
    names no server. Schemes: ``nats``, ``tls``, ``ws``, ``wss``. One ``tls`` URL turns TLS on for
    all servers. ``ws`` and ``wss`` cannot be mixed."""
    name: str | None = None
    """Name of the connection in the server's monitoring."""

    user: str | Callable[[], str] | None = attrs.field(default=None, repr=_shown)
    """User name, or a callable that returns it."""
    password: str | Callable[[], str] | None = attrs.field(default=None, repr=_secret)
    """Password of ``user``, or a callable that returns it."""
    token: str | Callable[[], str] | None = attrs.field(default=None, repr=_secret)
    """
    Token, or a callable that returns it. jetsync sends it together with an NKey or a JWT if you set
    both.
    """
    credentials: str | os.PathLike[str] | Callable[[], str | bytes | os.PathLike[str]] | None = (
        attrs.field(default=None, converter=_path_or_callable, repr=_shown)
    )
    """Path of a credentials file: a JWT and a seed. A callable returns either a path, as an
    ``os.PathLike``, or the contents of such a file, as text or bytes."""
    nkey_seed: str | None = attrs.field(default=None, repr=_secret)
    """Seed of an NKey, or the path of a file that contains one."""
    nkey: str | None = attrs.field(default=None, converter=_public_key)
    """Public key of an NKey, ``U...``, if ``nkey_signature`` signs for it."""
    nkey_signature: Callable[[bytes], bytes] | None = attrs.field(default=None, repr=_shown)
    """A callable that gets the server's nonce and returns the 64 bytes of its Ed25519 signature. It
    signs for ``nkey``, or for the JWT of ``credentials``, whose seed is then not used."""
    retry_refused_logins: bool = False
    """Keep reconnecting even if a server has refused the same login twice in a row."""

    tls: ssl.SSLContext | None = None
    """A TLS context, for settings that the fields below do not cover. It cannot be pickled, and
    jetsync does not read its files again."""
    tls_ca: str | os.PathLike[str] | None = None
    """Path of the trusted certificate authorities, PEM. ``None`` means those of the system."""
    tls_cert: str | os.PathLike[str] | None = None
    """Path of the client certificate, PEM, for servers that verify clients."""
    tls_key: str | os.PathLike[str] | None = None
    """Path of the private key of ``tls_cert``, without a password. ``None`` if the key is in the
    same file."""
    tls_hostname: str | None = None
    """Name that the server's certificate must contain. ``None`` means the host in the URL."""
    tls_first: bool = False
    """Start TLS before the server sends its INFO (``handshake_first``)."""
    ignore_discovered_servers: bool = False
    """
    Connect only to ``servers``, not to others that a server lists as members of its cluster. Set it
    if you cannot use TLS: any server that the client has connected to can list an address, which
    then gets the login.
    """

    inbox_prefix: str = "_INBOX"
    """Prefix of reply subjects, for users with restricted permissions."""
    jetstream_domain: str | None = None
    """Default JetStream domain of ``client.jetstream()``."""
    jetstream_prefix: str | None = None
    """Default API prefix of ``client.jetstream()``."""

    connect_timeout: float = attrs.field(default=5.0, converter=_positive)
    """Seconds for the first connection, over all servers and attempts."""
    retry_on_failed_connect: bool = False
    """If no server can be reached, keep trying until ``connect_timeout``."""
    max_reconnects: int = attrs.field(default=-1, validator=_at_least(-1))
    """Reconnect attempts per server. -1 means no limit, and 0 turns reconnecting off."""
    reconnect_wait: float = attrs.field(default=2.0, converter=_seconds)
    """Seconds between the first two attempts to reach the same server. After each further failure
    the wait doubles."""
    max_reconnect_wait: float = attrs.field(default=8.0, converter=_seconds)
    """The longest of these waits, in seconds, and the longest jitter."""
    reconnect_jitter: float | None = attrs.field(default=None, converter=duration)
    """Random seconds, up to this number, before the first attempt after a loss, and in addition to
    each wait, with which they double. They spread the attempts of many clients. ``None`` means as
    many as ``reconnect_wait``."""
    choose_server: ChooseServer | None = attrs.field(default=None, repr=_shown)
    """
    A callable that chooses the server for each attempt to reconnect. It gets the servers that may
    be tried, as a tuple of :class:`PoolServer`, and the last :class:`ServerInfo`. It returns one of
    these servers, or one and the seconds to wait, or ``None`` for the choice of jetsync. It runs in
    a worker thread and must not call methods of the client.
    """
    ping_interval: float = attrs.field(default=30.0, converter=_positive)
    """Seconds between two checks whether the server still answers a ping."""
    max_outstanding_pings: int = attrs.field(default=2, validator=_at_least(1))
    """Unanswered pings after which the connection counts as lost. After an unanswered one, the next
    follows in a second, or in ``ping_interval`` if that is shorter."""
    echo: bool = True
    """Whether subscriptions receive messages that this client publishes."""
    request_timeout: float = attrs.field(default=5.0, converter=_positive)
    """Default timeout of calls, in seconds."""
    drain_timeout: float = attrs.field(default=30.0, converter=_positive)
    """Default timeout of ``drain``, in seconds."""

    loop: Literal["auto", "asyncio", "uvloop"] = "auto"
    """
    Event loop of the background thread. ``auto`` uses uvloop if it is installed, and asyncio's loop
    under gevent or eventlet, which uvloop would block.
    """

    after_fork: Literal["error", "reconnect"] = "error"
    """
    What happens when a forked child uses the client of its parent. ``error`` raises
    ForkedProcessError. With ``reconnect``, the first call in the child opens a connection for the
    child, within ``connect_timeout``. Subscriptions, consumptions, fetches, publishers and batches
    that the parent has opened still raise ForkedProcessError in the child.
    """

    plugins: Sequence[object | str] = attrs.field(default=(), converter=_plugins)
    """Plugins: objects, or names of entry points in the group ``jetsync``."""

    def __attrs_post_init__(self) -> None:
        for field in attrs.fields(ConnectOptions):
            if getattr(self, field.name) == "" and field.name not in {
                "servers",
                "password",
                "name",
            }:
                raise InvalidArgumentError(f"{field.name} is empty", argument=field.name)
        if self.servers is not None:
            self.server_list()
        for name, other in _ONLY_WITH.items():
            if getattr(self, name) is not None and all(getattr(self, one) is None for one in other):
                hint = _HINTS.get(name, "")
                raise InvalidArgumentError(
                    f"{name} needs {' or '.join(other)}{hint}", argument=name
                )
        for name, others in _EXCLUDES.items():
            if getattr(self, name) is not None and any(getattr(self, one) for one in others):
                raise InvalidArgumentError(f"{name} excludes {' and '.join(others)}", argument=name)
        validate_subject(self.inbox_prefix)
        api_prefix(self.jetstream_domain, self.jetstream_prefix)

    @classmethod
    def from_env(cls, environ: Mapping[str, str] | None = None) -> ConnectOptions:
        """
        Read the options from the environment.

        The variables are those of the ``nats`` command line: ``$NATS_URL``, ``$NATS_USER``,
        ``$NATS_PASSWORD``, ``$NATS_TOKEN``, ``$NATS_CREDS``, ``$NATS_NKEY``, ``$NATS_CA``,
        ``$NATS_CERT`` and ``$NATS_KEY``. Empty ones count as not set. ``$NATS_CONTEXT`` names a
        saved context, and the other variables override its fields. If one that is set is part of a
        login, jetsync ignores all login fields of the context. The same is true for the certificate
        and its key.

        `connect` does the same if neither its arguments nor its options name a server.

        Args:
            environ: The environment to read. The default is that of the process.

        Raises:
            ConfigurationError: The context cannot be used, or a variable needs another one.
        """
        env = os.environ if environ is None else environ
        return _configured(_environment_fields(env), "the environment")

    @classmethod
    def from_context(
        cls, name: str | None = None, environ: Mapping[str, str] | None = None
    ) -> ConnectOptions:
        """
        Read the options from a context saved by the ``nats`` command line.

        A login may be written in the context, or be a reference to where it is: ``file://``,
        ``env://`` with the name of a variable, or ``data:`` with Base64. jetsync refuses ``op://``
        and ``nsc://``, for which the command line runs another program.

        Args:
            name: Name of the context. The default is the one chosen by ``nats context select``.
            environ: The environment to read ``$XDG_CONFIG_HOME`` and the variables of the context
                from. The default is that of the process.

        Raises:
            ConfigurationError: The context does not exist or uses unsupported settings.
        """
        env = os.environ if environ is None else environ
        return _configured(_context(name, env), f"context {name or 'selected'!r}")

    def evolve(self, **changes: Unpack[OptionsFields]) -> ConnectOptions:
        """
        Return a copy with some fields changed.

        Raises:
            InvalidTypeError: A field does not exist, or a value has a wrong type.
            InvalidArgumentError: A value cannot be used.
        """
        check_fields(ConnectOptions, changes, "ConnectOptions.evolve()")
        return attrs.evolve(self, **changes)

    def server_list(self) -> list[str]:
        """
        Return the servers as URLs with scheme and port.

        Raises:
            ConfigurationError: ``servers`` is not set, and ``$NATS_URL`` is invalid or contradicts
                these options.
        """
        servers = self.servers
        try:
            if servers is None:
                servers = os.environ.get("NATS_URL") or DEFAULT_URL
            urls = read_servers(servers)
            self._check_websockets({urlsplit(url).scheme for url in urls})
        except InvalidArgumentError as error:
            if self.servers is not None:
                raise
            raise ConfigurationError(f"$NATS_URL: {error}") from error
        return urls

    def _check_websockets(self, schemes: set[str]) -> None:
        """Raise if anything asks for TLS, and a server has ws://, which cannot use it."""
        if "ws" not in schemes:
            return
        asked = [name for name in TLS_FIELDS if getattr(self, name)]
        if asked:
            raise InvalidArgumentError(
                f"{asked[0]} has no effect with ws://: use wss://", argument=asked[0]
            )
        if "wss" in schemes:
            raise InvalidArgumentError(
                "wss:// and ws:// cannot be mixed, because a login would be sent without TLS:"
                " use wss:// for all servers",
                argument="servers",
            )

    def nkey_text(self) -> str | None:
        """
        Return the seed of the NKey, read from its file if ``nkey_seed`` is a path.

        Raises:
            ConfigurationError: ``nkey_seed`` is neither a seed nor the path of a file with one.
        """
        if self.nkey_seed is None:
            return None
        path = seed_path(self.nkey_seed)
        if path is None:
            return self.nkey_seed.strip()
        try:
            found = _SEED.search(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # The error shows no value and no cause: a mistyped seed is close to the real one.
            found = None
        if found is None:
            raise ConfigurationError("nkey_seed is neither a seed nor a file with one")
        return found[0]

    def __reduce__(self) -> tuple[Any, ...]:
        if self.tls is not None:
            raise ConfigurationError(
                "options with an SSLContext cannot be pickled: "
                "use tls_ca, tls_cert and tls_key instead of tls"
            )
        for name in _CALLABLE:
            value = getattr(self, name)
            if callable(value):
                try:
                    pickle.dumps(value)
                except Exception as error:
                    raise ConfigurationError(
                        f"options cannot be pickled, because the callable in {name} cannot:"
                        " use a function of a module"
                    ) from error
        fields = {field.name: getattr(self, field.name) for field in attrs.fields(ConnectOptions)}
        return functools.partial(ConnectOptions, **fields), ()

    # The object is immutable, so a copy is the object itself. copy would pickle, which may fail.
    def __copy__(self) -> ConnectOptions:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> ConnectOptions:
        return self


def _configured(fields: Mapping[str, Any], source: str) -> ConnectOptions:
    try:
        return ConnectOptions(**fields)
    except (InvalidArgumentError, InvalidTypeError) as error:
        raise ConfigurationError(f"{source}: {error}") from error


def completed(options: ConnectOptions) -> ConnectOptions:
    """
    Return options with those of the environment, unless they name a server.

    Options that are given replace those of the environment: a login as a whole, and a certificate
    with its key.

    Raises:
        ConfigurationError: As for `ConnectOptions.from_env`.
    """
    if options.servers is not None:
        return options
    given = {
        field.name: getattr(options, field.name)
        for field in attrs.fields(ConnectOptions)
        if getattr(options, field.name) != field.default
    }
    found = {"servers": DEFAULT_URL, **_environment_fields(os.environ)}
    return _configured(_over(found, given), "the environment")
