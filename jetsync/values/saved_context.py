"""
Contexts that the ``nats`` command line has saved, as options of a client.

Each context is a file ``$XDG_CONFIG_HOME/nats/context/<name>.json``. The name of the selected one
is in ``$XDG_CONFIG_HOME/nats/context.txt``. ``$XDG_CONFIG_HOME`` defaults to ``~/.config``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from jetsync.errors import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

_COPIED: Final = {
    "url": "servers",
    "ca": "tls_ca",
    "cert": "tls_cert",
    "key": "tls_key",
    "inbox_prefix": "inbox_prefix",
    "jetstream_domain": "jetstream_domain",
    "jetstream_api_prefix": "jetstream_prefix",
}
# The command line uses the first of these that is set, in this order.
_LOGINS: Final = (
    ("user", "user"),
    ("creds", "credentials"),
    ("nkey", "nkey_seed"),
    ("token", "token"),
)
# jetsync would connect differently from what the context describes.
_UNSUPPORTED: Final = ("nsc", "user_jwt", "socks_proxy", "windows_cert_store")


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
    if not name or "/" in name or "\\" in name or ".." in name:
        raise ConfigurationError(
            f"{name!r} is not the name of a context: it is empty, or contains a slash or '..'"
        )
    saved = _load(folder / "context", name)
    for field in _UNSUPPORTED:
        if saved.get(field):
            raise ConfigurationError(
                f"context {name!r} uses {field!r}, which jetsync does not support"
            )
    fields = {ours: saved[theirs] for theirs, ours in _COPIED.items() if saved.get(theirs)}
    # The prefix is more exact than the domain.
    if "jetstream_prefix" in fields:
        fields.pop("jetstream_domain", None)
    for theirs, ours in _LOGINS:
        if saved.get(theirs):
            fields[ours] = saved[theirs]
            if ours == "user" and saved.get("password"):
                fields["password"] = saved["password"]
            break
    if saved.get("tls_first") is True:
        fields["tls_first"] = True
    wrong = [ours for ours, value in fields.items() if not isinstance(value, (str, bool))]
    if wrong:
        raise ConfigurationError(f"context {name!r}: {', '.join(wrong)} should be text")
    return fields


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
