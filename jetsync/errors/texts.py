"""
Hide secrets in texts, and read limits from texts that servers send.
"""

from __future__ import annotations

import re

_SCHEME = re.compile(r"\s*[A-Za-z][A-Za-z0-9+.-]*://")
_NEXT_URL = re.compile(r",(?=\s*[A-Za-z][A-Za-z0-9+.-]*://)")
_QUERY = re.compile("[?#]")
_HOST = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[\w.-]*)(?::\d{0,5})?/?")
_HOST_AND_PATH = re.compile(rf"{_HOST.pattern}(?:(?<=/)[^:]*)?")
_LIKE_URL = re.compile(
    # A URL without the punctuation after it, or a word with an "@".
    r"[A-Za-z][A-Za-z0-9+.-]*://\S*?(?=[)'\",;:.]*(?:\s|$))|(?:(?!://)\S)*@\S*"
)


def shown_seconds(seconds: float) -> str:
    """
    Return a duration for the text of an error, such as ``10 s`` for what is left of 10 seconds.
    """
    return f"{seconds:.3g} s" if seconds < 100 else f"{seconds:.0f} s"


def redact_url(url: str) -> str:
    """
    Return a URL, or comma-separated URLs, with all secrets replaced by ``***``.

    The result can be shown and logged. It keeps the scheme, the hosts, the ports and the path of a
    WebSocket URL. The user name, password, token, query and fragment are replaced. If the parts
    cannot be told apart for certain, only the scheme is kept.
    """
    return ",".join(_redact_one(one) for one in _NEXT_URL.split(url))


def _redact_one(url: str) -> str:
    found = _SCHEME.match(url)
    scheme = "" if found is None else found[0]
    login, at, rest = url[len(scheme) :].rpartition("@")
    found = _QUERY.search(rest)
    hosts, mark = (rest, "") if found is None else (rest[: found.start()], found[0])
    # Other schemes have no path, so a "/" is part of a token.
    shape = _HOST_AND_PATH if scheme.strip().lower() in {"ws://", "wss://"} else _HOST
    # If a "?" precedes the "@", the "@" may be part of the query and the host part of a secret.
    if _QUERY.search(login) or not all(shape.fullmatch(host.strip()) for host in hosts.split(",")):
        return f"{scheme}***"
    shown = f"{scheme}***@{hosts}" if at else f"{scheme}{hosts}"
    return f"{shown}{mark}***" if mark else shown


def redact_text(text: str) -> str:
    """
    Apply :func:`redact_url` to each word of the text that may be a URL.
    """
    return _LIKE_URL.sub(lambda found: redact_url(found[0]), text)


def trailing_number(text: str) -> int | None:
    """
    Return the number at the end of a text that a server sent, such as a limit.
    """
    found = re.search(r"(?<![0-9])([0-9]{1,20})\s*$", text)
    return int(found[1]) if found else None
