"""
Parse the options of Spark into frozen objects.

Spark lower-cases option names and passes all values as text. A settings class declares for each
field the name of its option and how to parse it (:func:`option`). :func:`read_settings` creates the
object, and :func:`check_names` rejects unknown options. No option takes a secret, because Spark
shows options in plans and event logs. Secrets are read from files, or from environment variables
whose *names* are given, when the connection is made.
"""

from __future__ import annotations

import contextlib
import difflib
import os
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

import attrs

import jetsync
from jetsync.errors.texts import redact_url
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, renamed

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "OF_CLIENT",
    "ConnectSettings",
    "Option",
    "check_names",
    "choice",
    "count",
    "duration",
    "errors_for_programs",
    "flag",
    "given_options",
    "milliseconds",
    "names",
    "option",
    "option_names",
    "path",
    "read_settings",
    "size",
    "text",
    "variable",
]

_SettingsT = TypeVar("_SettingsT")

_SPARKS_OWN: Final = frozenset(
    {"path", "checkpointlocation", "owner", "provider", "location", "comment", "external"}
    | {"is_managed_location", "collation", "queryname"}
)
"""Options that Spark itself adds to streaming sinks and tables."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
"""Seconds of each unit."""

_MOST_MS: Final = 10**12 - 1
"""The most milliseconds that jetsync does not take for another unit."""

_DURATION: Final = re.compile(r"(\d{1,9})\s*(ms|s|m|min|h|d)?")
_SIZE: Final = re.compile(r"(\d{1,15})\s*([kmgt]?)(?:i?b)?")
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_SEED: Final = re.compile(r"S[A-Z2-7]{40,}")
"""The pattern of an NKey seed."""

_SECRETS: Final = {
    "password": "passwordEnv, the name of an environment variable",
    "token": "tokenEnv, the name of an environment variable",
    "nkeyseed": "nkeySeedFile or nkeySeedEnv",
    "nkey": "nkeySeedFile or nkeySeedEnv",
    "credentials": "credsFile, a path that is valid on every node",
    "creds": "credsFile, a path that is valid on every node",
    "jwt": "credsFile, a path that is valid on every node",
    "seed": "nkeySeedFile or nkeySeedEnv",
}

_OTHER_NAMES: Final = dict.fromkeys(("url", "urls", "server", "host", "nats.host"), "servers")
"""Names in other clients and connectors, which are not similar to the name here."""

_KAFKA: Final = {
    "kafka.bootstrap.servers": "servers",
    "subscribe": "stream, and subjectFilter for a part of a stream",
    "subscribepattern": "stream, with a pattern such as ORDERS_*",
    "assign": "stream, and subjectFilter for a part of a stream",
    "topic": "stream and subject",
    "startingoffsetsbytimestamp": "startingTimestamp",
    "endingoffsetsbytimestamp": "endingTimestamp",
}
"""Options of Spark's source and sink for Kafka, and what replaces them."""


OF_CLIENT: Final = {
    "tls_ca": "tlsCaFile",
    "tls_cert": "tlsCertFile",
    "tls_key": "tlsKeyFile",
    "tls_hostname": "tlsHostname",
    "tls_first": "tlsFirst",
    "inbox_prefix": "inboxPrefix",
    "jetstream_domain": "jetstreamDomain",
    "jetstream_prefix": "jetstreamPrefix",
    "nkey_seed": "nkeySeedFile or nkeySeedEnv",
    "connect_timeout": "connectTimeoutMs",
    "request_timeout": "requestTimeoutMs",
}
"""Names that texts of jetsync contain, and the options of Spark that set them."""

_OF_PROGRAMS: Final = {
    "credsFile": "credentials",
    "userEnv": "user",
    "passwordEnv": "password",
    "tokenEnv": "token",
    "nkeySeedFile": "nkey_seed",
    "jetstreamDomain": "jetstream_domain",
    "jetstreamPrefix": "jetstream_prefix",
    "requestTimeoutMs": "request_timeout",
    "retryTimeoutMs": "retry_timeout",
    "ackTimeoutMs": "ack_timeout",
    "fastIngest": "fast_ingest",
    "maxInFlight": "max_in_flight",
    "chunkSize": "chunk_size",
    "onInvalidRow": "on_invalid_row",
    "deadLetterSubject": "dead_letter_subject",
    "ledgerSubject": "ledger_subject",
    "writeId": "write_id",
    "batchId": "batch_id",
}
"""Options of Spark in texts of this package, and the arguments of a program that set the same."""


@contextlib.contextmanager
def errors_for_programs() -> Iterator[None]:
    """
    Name arguments instead of options of Spark in the errors of a block or a function.
    """
    try:
        yield
    except JetStreamSparkError as error:
        error.rename(_OF_PROGRAMS)
        raise


@attrs.frozen
class Option:
    """
    The option that sets a field.
    """

    name: str
    """The option's name as documented. Users may write it in any case."""

    parse: Callable[[str, str], Any]
    """Converts the option's name and text to a value, or raises OptionError."""


def option(name: str, parse: Callable[[str, str], Any], default: Any = None, **field: Any) -> Any:
    """
    Return an attrs field that an option can set. *field* is passed to ``attrs.field``.
    """
    return attrs.field(default=default, metadata={"option": Option(name, parse)}, **field)


def option_names(*classes: type) -> list[str]:
    """
    Return the names of all options of some settings classes.
    """
    return [
        field.metadata["option"].name
        for each in classes
        for field in attrs.fields(each)
        if "option" in field.metadata
    ]


def given_options(settings: Any, *fields: str) -> Iterator[tuple[str, Any]]:
    """
    Yield the option and the value of each of these fields that does not have its default.
    """
    by_name = attrs.fields_dict(type(settings))
    for name in fields:
        value = getattr(settings, name)
        if value != by_name[name].default:
            yield by_name[name].metadata["option"].name, value


def read_settings(cls: type[_SettingsT], options: Mapping[str, str], **fields: Any) -> _SettingsT:
    """
    Create a settings object from the options that belong to it.

    Args:
        cls: An attrs class with fields made by :func:`option`.
        options: The options from Spark, with names in any case.
        fields: Values of fields that are not options.

    Raises:
        OptionError: A value is invalid.
    """
    given = {name.lower(): value for name, value in options.items()}
    for field in attrs.fields(cls):  # type: ignore[arg-type]
        known: Option | None = field.metadata.get("option")
        if known is not None and known.name.lower() in given:
            fields[field.name] = known.parse(known.name, given[known.name.lower()])
    return cls(**fields)


def check_names(options: Mapping[str, str], *classes: type) -> None:
    """
    Reject unknown options. The error never shows a value.

    Raises:
        OptionError: An option is unknown. The message suggests similar names.
    """
    known = {name.lower(): name for name in option_names(*classes)}
    for given in options:
        low = given.lower()
        if low in known or low in _SPARKS_OWN or low.startswith("option."):
            continue
        if low in _SECRETS:
            raise OptionError(
                f"option {given} would expose a secret in plans and logs",
                option=given,
                cure=f"give {_SECRETS[low]}",
            )
        if low in _KAFKA or low.startswith("kafka."):
            cure = (
                f"instead of Kafka's option, give {_KAFKA[low]}"
                if low in _KAFKA
                else (
                    "leave it out, or give the option that the page 'From Kafka' of the docs names"
                )
            )
            raise OptionError(f"there is no option {given}", option=given, cure=cure)
        near = [known[name] for name in difflib.get_close_matches(low, known, 3, 0.6)]
        near = [_OTHER_NAMES[low]] if low in _OTHER_NAMES else near
        cure = f"did you mean {' or '.join(near)}?" if near else f"known are {_listed(known)}"
        raise OptionError(f"there is no option {given}", option=given, cure=cure)


def _listed(known: Mapping[str, str]) -> str:
    return ", ".join(sorted(known.values(), key=str.lower))


# Parsers. Each receives the name of the option for its error message.


def text(name: str, value: str) -> str:
    """Parse text that is not empty."""
    if not value.strip():
        raise OptionError(f"option {name} is empty", option=name, cure="give it, or leave it out")
    return value.strip()


def names(name: str, value: str) -> tuple[str, ...]:
    """Parse names separated by commas."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        raise OptionError(f"option {name} is empty", option=name, cure="give it, or leave it out")
    return found


def flag(name: str, value: str) -> bool:
    """Parse true or false."""
    low = value.strip().lower()
    if low not in {"true", "false"}:
        raise OptionError(f"option {name} is {value!r}", option=name, cure="give true or false")
    return low == "true"


def count(least: int = 1, most: int | None = None) -> Callable[[str, str], int]:
    """Return a parser for whole numbers within limits."""

    def read(name: str, value: str) -> int:
        try:
            number = int(value)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            limits = f"from {least} up" if most is None else f"from {least} to {most}"
            raise OptionError(
                f"option {name} is {value!r}", option=name, cure=f"give a whole number {limits}"
            )
        return number

    return read


def milliseconds(name: str, value: str) -> float:
    """Parse milliseconds, and return seconds."""
    try:
        return count(1, _MOST_MS)(name, value) / 1000
    except OptionError as error:
        raise OptionError(
            error.what, option=name, cure=f"give milliseconds, from 1 to {_MOST_MS}, such as 30000"
        ) from None


def duration(name: str, value: str) -> float:
    """Parse a time with a unit, as Spark's own options have it, and return seconds."""
    found = _DURATION.fullmatch(value.strip().lower())
    if found is None:
        raise OptionError(
            f"option {name} is {value!r}", option=name, cure="give a time such as 500ms, 10s or 15m"
        )
    return int(found[1]) * _UNITS[found[2] or "ms"]


def size(name: str, value: str) -> int:
    """Parse a number of bytes, with units of 1,024 as in Spark: ``1048576``, ``512k``, ``1g``."""
    found = _SIZE.fullmatch(value.strip().lower())
    number = 0 if found is None else int(found[1]) << 10 * " kmgt".index(found[2] or " ")
    if not 1 <= number < 1 << 63:
        raise OptionError(
            f"option {name} is {value!r}",
            option=name,
            cure="give a number of bytes, such as 1048576, 512k, 64m or 1g",
        )
    return number


def choice(*values: str) -> Callable[[str, str], str]:
    """Return a parser for one of several words in any case, which it returns in lower case."""
    known = [each.lower() for each in values]

    def read(name: str, value: str) -> str:
        low = value.strip().lower()
        if low not in known:
            raise OptionError(
                f"option {name} is {value!r}", option=name, cure=f"give {' or '.join(values)}"
            )
        return low

    return read


def variable(name: str, value: str) -> str:
    """Parse the name of an environment variable. The error never shows a value."""
    found = text(name, value)
    if not _VARIABLE.fullmatch(found) or _SEED.fullmatch(found):
        raise OptionError(
            f"option {name} is not the name of an environment variable",
            option=name,
            cure="give the name of the variable with the secret, such as NATS_SECRET, rather than "
            "the secret, which Spark shows in plans and logs",
        )
    return found


def path(name: str, value: str) -> str:
    """Parse the path of a file. The error never shows a value."""
    found = text(name, value)
    if _SEED.fullmatch(found) or found.startswith("eyJ") or "\n" in found or "-----" in found:
        raise OptionError(
            f"option {name} is not a path",
            option=name,
            cure="give the path of a file rather than its contents, which Spark shows in plans and "
            "logs",
        )
    return found


def _servers(name: str, value: str) -> str:
    servers = text(name, value)
    if redact_url(servers) != servers:
        # Spark would show the password with the option.
        raise OptionError(
            f"option {name} holds a user or a token before the @",
            option=name,
            cure="give userEnv and passwordEnv, tokenEnv or credsFile",
        )
    if any(mark in servers for mark in "?#;"):
        raise OptionError(
            f"option {name} has more than a host and a port",
            option=name,
            cure="leave out what begins with ?, # or ;, and give userEnv and passwordEnv, tokenEnv "
            "or credsFile",
        )
    return servers


_SUBJECTS: Final = {
    "subject": "inboxPrefix",
    "domain": "jetstreamDomain",
    "prefix": "jetstreamPrefix",
}
"""Options whose errors name only the kind of the value."""


@attrs.frozen(kw_only=True)
class ConnectSettings:
    """
    How to connect, without secrets. It may be shown, pickled and sent to every executor.
    """

    servers: str = option("servers", _servers, "")
    """One URL, or several separated by commas."""

    user_env: str | None = option("userEnv", variable)
    """Name of the environment variable with the user's name."""

    password_env: str | None = option("passwordEnv", variable)
    """Name of the environment variable with the password."""

    token_env: str | None = option("tokenEnv", variable)
    """Name of the environment variable with the token."""

    creds_file: str | None = option("credsFile", path)
    """Path of a credentials file, valid on every node."""

    nkey_seed_file: str | None = option("nkeySeedFile", path)
    """Path of a file with the seed of an NKey, valid on every node."""

    nkey_seed_env: str | None = option("nkeySeedEnv", variable)
    """Name of the environment variable with the seed of an NKey."""

    tls_ca_file: str | None = option("tlsCaFile", path)
    """Path of the trusted CA certificates (PEM)."""

    tls_cert_file: str | None = option("tlsCertFile", path)
    """Path of the client certificate (PEM)."""

    tls_key_file: str | None = option("tlsKeyFile", path)
    """Path of the client certificate's key."""

    tls_hostname: str | None = option("tlsHostname", text)
    """Name to check the server's certificate against."""

    tls_first: bool = option("tlsFirst", flag, default=False)
    """Whether to start TLS before the server sends INFO."""

    inbox_prefix: str = option("inboxPrefix", text, "_INBOX")
    """Prefix of reply subjects, if permissions require one."""

    domain: str | None = option("jetstreamDomain", text)
    """JetStream domain."""

    api_prefix: str | None = option("jetstreamPrefix", text)
    """JetStream API prefix, for streams that another account exports."""

    connect_timeout: float = option("connectTimeoutMs", milliseconds, 5.0)
    """Seconds to wait for a connection."""

    request_timeout: float = option("requestTimeoutMs", milliseconds, 5.0)
    """Seconds to wait for a reply."""

    plugins: tuple[str, ...] = option("plugins", names, ())
    """Names of jetsync plugins, which are loaded on the driver and the executors."""

    def __attrs_post_init__(self) -> None:
        if not self.servers:
            raise OptionError(
                "option servers is missing",
                option="servers",
                cure='give it, such as .option("servers", "nats://host:4222"); in SQL, Spark '
                "ignores the OPTIONS of a table: give them with each statement, such as FROM t "
                "WITH ('servers' = 'nats://host:4222'), or in a temporary view, which keeps them. "
                "CREATE TABLE needs a list of columns",
            )
        if self.password_env is not None and self.user_env is None:
            raise OptionError(
                "option passwordEnv needs userEnv", option="passwordEnv", cure="give both"
            )
        if self.domain is not None and self.api_prefix is not None:
            raise OptionError(
                "both jetstreamDomain and jetstreamPrefix are given",
                option="jetstreamPrefix",
                cure="give one of them",
            )
        try:
            self._make(None, {})
        except jetsync.JetSyncError as error:
            argument = getattr(error, "argument", None)
            if argument != "servers":
                wrong = _SUBJECTS.get(str(argument))
                what = renamed(str(error), OF_CLIENT)
                raise OptionError(
                    f"option {wrong}: {what}" if wrong else f"option {what}",
                    option=wrong,
                    cure="correct it",
                ) from error
        else:
            return
        # jetsync's error shows the value, which may contain a secret.
        raise OptionError(
            "option servers has no URLs of servers",
            option="servers",
            cure="give one, or several with commas between them, such as nats://host:4222, with "
            "the scheme nats, tls, ws or wss, ws and wss not beside others, and no secret",
        )

    def connect_options(self, name: str | None = None) -> jetsync.ConnectOptions:
        """
        Return the arguments of ``jetsync.connect``, with the secrets that this machine has.

        Args:
            name: The connection's name on the server.

        Raises:
            OptionError: A file or an environment variable is missing on this machine.
        """
        files = ("creds_file", "nkey_seed_file", "tls_ca_file", "tls_cert_file", "tls_key_file")
        for option_name, given in given_options(self, *files):
            if not _is_file(given):
                # The message omits the path, because the value may be a secret by mistake.
                raise OptionError(
                    f"option {option_name}: there is no file of that path on "
                    f"{socket.gethostname()}",
                    option=option_name,
                    cure="put it there on the driver and on every executor",
                )
        secrets: dict[str, Any] = {
            "user": _secret("userEnv", self.user_env),
            "password": _secret("passwordEnv", self.password_env),
            "token": _secret("tokenEnv", self.token_env),
            "nkey_seed": _secret("nkeySeedEnv", self.nkey_seed_env) or self.nkey_seed_file,
        }
        return self._make(name, secrets)

    def _make(self, name: str | None, secrets: Mapping[str, Any]) -> jetsync.ConnectOptions:
        return jetsync.ConnectOptions(
            servers=self.servers,
            name=name,
            credentials=self.creds_file,
            tls_ca=self.tls_ca_file,
            tls_cert=self.tls_cert_file,
            tls_key=self.tls_key_file,
            tls_hostname=self.tls_hostname,
            tls_first=self.tls_first,
            inbox_prefix=self.inbox_prefix,
            jetstream_domain=self.domain,
            jetstream_prefix=self.api_prefix,
            connect_timeout=self.connect_timeout,
            request_timeout=self.request_timeout,
            plugins=self.plugins,
            **secrets,
        )


def _is_file(given: str) -> bool:
    try:
        return Path(given).expanduser().is_file()
    except (OSError, RuntimeError, ValueError):
        # The path is too long, has an unknown home directory, or contains NUL.
        return False


def _secret(option_name: str, variable_name: str | None) -> str | None:
    if variable_name is None:
        return None
    value = os.environ.get(variable_name)
    if not value:
        # The message omits the name, because the value may be a secret by mistake.
        raise OptionError(
            f"option {option_name}: the environment variable that it names is not set on "
            f"{socket.gethostname()}",
            option=option_name,
            cure="set it for the driver and for the executors before the Spark session starts, as "
            "the page 'On a cluster' of the docs says, but not by a command line, which ps shows",
        )
    return value
