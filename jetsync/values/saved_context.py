"""
Contexts that the ``nats`` command line has saved, as options of a client.

Each context is a file ``$XDG_CONFIG_HOME/nats/context/<name>.json``. The name of the selected one
is in ``$XDG_CONFIG_HOME/nats/context.txt``. ``$XDG_CONFIG_HOME`` defaults to ``~/.config``.

A login is written in the file, or is a reference to where it is: ``file://``, ``env://``,
``data:``, ``op://`` or ``nsc://``. For the last two, the command line runs another program.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import attrs

from jetsync.errors import ConfigurationError

_COPIED: Final = {
    "url": "servers",
    "inbox_prefix": "inbox_prefix",
    "jetstream_domain": "jetstream_domain",
    "jetstream_api_prefix": "jetstream_prefix",
}
_FILES: Final = {"ca": "tls_ca", "cert": "tls_cert", "key": "tls_key"}
_LOGINS: Final = ("user", "password", "creds", "nkey", "user_jwt", "user_seed", "token")
# jetsync would connect differently from what the context describes.
_UNSUPPORTED: Final = ("nsc", "socks_proxy", "windows_cert_store")

# A scheme has two letters or more, because `C:` is a drive of Windows.
_REFERENCE: Final = re.compile(r"data(?=:)|[a-z][a-z0-9+.-]+(?=://)", re.IGNORECASE)
_NAME: Final = re.compile(r"(?!.*\.\.)[^/\\]+", re.DOTALL)
_READ: Final = frozenset({"file", "env", "data"})
_UNREAD: Final = frozenset({"op", "nsc"})
_VARIABLE: Final = re.compile(r"\$(?:\{(\w+)\}|(\w+))", re.ASCII)
_SEED: Final = re.compile(r"\bS[A-Z2-7]{57}\b")


@attrs.frozen
class CredentialsText:
    """
    The contents of a credentials file, as the callable that ``ConnectOptions.credentials`` accepts.
    """

    _text: str = attrs.field(repr=False)

    def __call__(self) -> str:
        """Return the contents."""
        return self._text


def context_fields(name: str | None, environ: Mapping[str, str]) -> dict[str, Any]:
    """
    Return the fields of ``ConnectOptions`` that a saved context sets.

    Args:
        name: The name of the context, ``None`` for the selected one.
        environ: The environment variables that say where the contexts are.

    Raises:
        ConfigurationError: The context does not exist, cannot be read, or uses an option that
            jetsync does not support.
    """
    folder = Path(environ.get("XDG_CONFIG_HOME") or Path.home() / ".config") / "nats"
    if name is None:
        name = _selected(folder)
    if not _NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} is not the name of a context: it is empty, or contains a slash or '..'"
        )
    saved = _load(folder / "context", name)
    for field in _UNSUPPORTED:
        if saved.get(field):
            raise ConfigurationError(
                f"context {name!r} uses {field!r}, which jetsync does not support"
            )
    texts = (*_COPIED, *_FILES, *_LOGINS)
    wrong = [field for field in texts if not isinstance(saved.get(field) or "", str)]
    if wrong:
        raise ConfigurationError(f"context {name!r}: {', '.join(wrong)} should be text")
    values = _Values(name, saved, environ)
    fields = values.copied() | values.files() | values.login()
    if saved.get("tls_first") is True:
        fields["tls_first"] = True
    return fields


@attrs.frozen
class _Values:
    """
    The fields of a context that may be references. No error shows a value.
    """

    _name: str
    _saved: Mapping[str, Any] = attrs.field(repr=False)
    _environ: Mapping[str, str] = attrs.field(repr=False)

    def copied(self) -> dict[str, Any]:
        """Return the options that have the same value here."""
        saved = self._saved
        fields = {ours: saved[theirs] for theirs, ours in _COPIED.items() if saved.get(theirs)}
        # The prefix is more exact than the domain.
        if "jetstream_prefix" in fields:
            fields.pop("jetstream_domain", None)
        return fields

    def files(self) -> dict[str, str]:
        """Return the options that name files."""
        return {
            ours: self.path(theirs) for theirs, ours in _FILES.items() if self._saved.get(theirs)
        }

    def login(self) -> dict[str, Any]:
        """Return the options of the login that the command line uses, if there are several."""
        saved, fields = self._saved, {}
        if saved.get("user"):
            fields["user"] = saved["user"]
            if saved.get("password"):
                fields["password"] = self.text("password")
        elif saved.get("creds"):
            fields["credentials"] = self._file_or("creds", CredentialsText)
        elif saved.get("nkey"):
            fields["nkey_seed"] = self._file_or("nkey", self._seed)
        elif saved.get("user_jwt"):
            if not saved.get("user_seed"):
                raise self._error("user_jwt", "needs user_seed: without it, jetsync cannot sign")
            pair = f"{self.text('user_jwt')}\n{self.text('user_seed')}"
            fields["credentials"] = CredentialsText(pair)
        if saved.get("token"):
            fields["token"] = self.text("token")
        return fields

    def path(self, field: str) -> str:
        """Return the path of a file, with variables expanded as the command line does."""
        value = self._expand(self._saved[field])
        if self._scheme(field) is None:
            return value
        if self._scheme(field) != "file":
            raise self._error(field, f"refers to {self._scheme(field)}:, but must be a file")
        return value[len("file://") :]

    def text(self, field: str) -> str:
        """Return a value, or the text that it refers to."""
        scheme, value = self._scheme(field), self._saved[field]
        if scheme in _UNREAD:
            raise self._error(
                field, f"refers to {scheme}://, which jetsync does not read: use file:// or env://"
            )
        if scheme not in _READ:  # A password may look like a URL.
            return value  # type: ignore[no-any-return]
        rest = value.partition(":")[2].removeprefix("//")
        try:
            if scheme == "file":
                found = Path(self.path(field)).expanduser().read_text(encoding="utf-8")
            elif scheme == "env":
                found = self._environ.get(rest, "")
            else:
                found = _decoded(rest)
        except OSError as error:
            raise self._error(field, f"cannot be read: {error.strerror}") from error
        except ValueError:
            # The cause would contain the value.
            raise self._error(field, f"refers to {scheme}: with a text that is not valid") from None
        if not found.strip():
            named = f"${rest}, which is not set" if scheme == "env" else "an empty text"
            raise self._error(field, f"refers to {named}")
        return found.rstrip("\r\n")

    def _file_or(self, field: str, kind: Callable[[str], Any]) -> Any:
        """Return the path of a file, which each login reads, or what *kind* makes of a text."""
        has_text = (self._scheme(field) or "file") in (_READ | _UNREAD) - {"file"}
        return kind(self.text(field)) if has_text else self.path(field)

    def _seed(self, text: str) -> str:
        found = _SEED.search(text)
        if found is None:
            raise self._error("nkey", "refers to a text without a seed")
        return found[0]

    def _expand(self, value: str) -> str:
        return _VARIABLE.sub(lambda found: self._environ.get(found[1] or found[2], ""), value)

    def _scheme(self, field: str) -> str | None:
        found = _REFERENCE.match(self._saved[field])
        return None if found is None else found[0].lower()

    def _error(self, field: str, what: str) -> ConfigurationError:
        return ConfigurationError(f"context {self._name!r}: {field} {what}")


def _selected(folder: Path) -> str:
    try:
        return (folder / "context.txt").read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise ConfigurationError(
            f"no context is selected: {folder / 'context.txt'} cannot be read"
        ) from error


def _load(folder: Path, name: str) -> Mapping[str, Any]:
    path = folder / f"{name}.json"
    try:
        saved = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        known = ", ".join(sorted(one.stem for one in folder.glob("*.json"))) or "none"
        raise ConfigurationError(f"no context {name!r} in {folder}; known: {known}") from None
    except OSError as error:
        raise ConfigurationError(f"context {name!r} cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        # The cause would contain the whole text with its passwords.
        raise ConfigurationError(f"context {name!r} is not JSON: {type(error).__name__}") from None
    if not isinstance(saved, dict):
        raise ConfigurationError(f"context {name!r} is not a JSON object")
    return saved


def _decoded(rest: str) -> str:
    """
    Return the text of a ``data:`` URI without its scheme.

    Raises:
        ValueError: It is not Base64, or not UTF-8.
    """
    kind, comma, payload = rest.partition(",")
    if not comma or "base64" not in map(str.strip, kind.split(";")):
        raise ValueError("no ;base64")
    return base64.b64decode("".join(payload.split()), validate=True).decode()
