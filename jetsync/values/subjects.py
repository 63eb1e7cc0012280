"""
Validate subjects and names, and build API subjects.

Servers without pedantic mode accept invalid subjects: a publish to ``a..b`` is stored in no stream
and gets no answer. So subjects are checked before anything is sent.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Final

from jetsync import errors
from jetsync._base.fields import wrong_type

if TYPE_CHECKING:
    from collections.abc import Sequence

# Characters that no token may contain. Lone surrogates cannot be encoded as UTF-8.
_FORBIDDEN = r"\x00-\x20\x7f\ud800-\udfff"
_PLAIN_SUBJECT = re.compile(rf"[^{_FORBIDDEN}.*>]+(?:\.[^{_FORBIDDEN}.*>]+)*")
_FORBIDDEN_CHARACTER = re.compile(rf"[{_FORBIDDEN}]")
_FORBIDDEN_IN_QUEUE = re.compile(rf"[{_FORBIDDEN}\s]")
_FORBIDDEN_IN_NAME = re.compile(rf"[{_FORBIDDEN}.*>/\\]")

# The longest subject in bytes. A server closes the connection for good over a line of more than
# 4096 bytes, its default ``max_control_line``. The rest is for the reply subject and the sizes.
LONGEST_SUBJECT: Final = 4000

# The longest name of a stream or consumer in bytes.
LONGEST_NAME: Final = 255

# A subject with this many characters is never too long: a character has at most 4 bytes.
_CERTAINLY_SHORT: Final = LONGEST_SUBJECT // 4


def validate_subject(subject: str) -> str:
    """
    Return the subject if a message can be published to it.

    Raises:
        InvalidTypeError: It is not text.
        InvalidSubjectError: It is empty or too long, or has an empty token, a space, a control
            character, a lone surrogate or a wildcard.
    """
    # One match for the usual case, because every published message passes here.
    if (
        type(subject) is str
        and len(subject) <= _CERTAINLY_SHORT
        and _PLAIN_SUBJECT.fullmatch(subject)
    ):
        return subject
    for token in _tokens(subject):
        if token in {"*", ">"}:
            raise errors.InvalidSubjectError(subject, "a message cannot be published to a wildcard")
    return subject


def validate_filter(subject: str) -> str:
    """
    Return the subject if it is a valid subscription or filter; wildcards are allowed.

    Raises:
        InvalidTypeError: It is not text.
        InvalidSubjectError: It is empty or too long, or has an empty token, a space, a control
            character, or ``>`` before the end.
    """
    if (
        type(subject) is str
        and len(subject) <= _CERTAINLY_SHORT
        and _PLAIN_SUBJECT.fullmatch(subject)
    ):
        return subject
    if ">" in _tokens(subject)[:-1]:
        raise errors.InvalidSubjectError(subject, "'>' may only be the last token")
    return subject


def check_text(subject: object) -> str:
    """
    Return *subject* if it is text.

    Raises:
        InvalidTypeError: It is not.
    """
    if isinstance(subject, str):
        return subject
    raise wrong_type("a subject", "text", subject, "subject")


def _tokens(given: object) -> list[str]:
    subject = check_text(given)
    if not subject:
        raise errors.InvalidSubjectError(subject, "it is empty")
    found = _FORBIDDEN_CHARACTER.search(subject)
    if found:
        forbidden = "a lone surrogate" if found[0] >= "\ud800" else "a space or a control character"
        raise errors.InvalidSubjectError(subject, f"it contains {forbidden}")
    if len(subject) > _CERTAINLY_SHORT and len(subject.encode()) > LONGEST_SUBJECT:
        raise errors.InvalidSubjectError(
            f"{subject[:40]}...", f"it has more than {LONGEST_SUBJECT} bytes"
        )
    tokens = subject.split(".")
    if "" in tokens:
        raise errors.InvalidSubjectError(subject, "it has an empty token")
    return tokens


def has_wildcard(subject: str) -> bool:
    """
    Return whether the subject has a wildcard.
    """
    return not {"*", ">"}.isdisjoint(subject.split("."))


def overlap(one: str, other: str) -> bool:
    """
    Return whether some subject matches both.
    """
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if ">" in {mine, theirs}:
            return True
        if mine != theirs and "*" not in {mine, theirs}:
            return False
    return len(left) == len(right)


def common_wildcard(subjects: Sequence[str]) -> str:
    """
    Return a wildcard that matches all that these subjects and wildcards match.
    """
    levels = zip(*(subject.split(".")[:-1] for subject in subjects), strict=False)
    common = itertools.takewhile(lambda tokens: len({*tokens}) == 1, levels)
    return ".".join([*(tokens[0] for tokens in common), ">"])


def validate_name(kind: str, name: str) -> str:
    """
    Return the name if it is valid for a stream, consumer or domain.

    Args:
        kind: ``"stream"``, ``"consumer"`` or ``"domain"``, for the error.
        name: The name.

    Raises:
        InvalidTypeError: It is not text.
        InvalidNameError: It is empty or too long, or contains a space, a control character, a
            backslash or one of ``. * > /``.
    """
    if not isinstance(name, str):
        raise wrong_type(f"a {kind} name", "text", name, kind)
    if not name:
        raise errors.InvalidNameError(kind, name, "it is empty")
    found = _FORBIDDEN_IN_NAME.search(name)
    if found:
        raise errors.InvalidNameError(kind, name, f"it contains {found[0]!r}")
    if len(name.encode()) > LONGEST_NAME:
        raise errors.InvalidNameError(
            kind, f"{name[:40]}...", f"it has more than {LONGEST_NAME} bytes"
        )
    return name


def validate_queue(name: str) -> str:
    """
    Return the name if it is valid for a queue group.

    Servers give dots and wildcards in it no meaning.

    Raises:
        InvalidTypeError: It is not text.
        InvalidNameError: It is empty, or contains white space or a control character.
    """
    if not isinstance(name, str):
        raise wrong_type("a queue name", "text", name, "queue")
    if not name:
        raise errors.InvalidNameError("queue", name, "it is empty")
    found = _FORBIDDEN_IN_QUEUE.search(name)
    if found:
        raise errors.InvalidNameError("queue", name, f"it contains {found[0]!r}")
    return name


def api_prefix(domain: str | None = None, prefix: str | None = None) -> str:
    """
    Return the prefix of JetStream API subjects, without a dot at the end.

    Args:
        domain: A JetStream domain: ``$JS.<domain>.API``.
        prefix: A whole prefix, for example of an account import.

    Raises:
        InvalidArgumentError: Both are given, or one of them is invalid.
    """
    if domain is not None and prefix is not None:
        raise errors.InvalidArgumentError("give either a domain or a prefix", argument="prefix")
    if domain is not None:
        return f"$JS.{validate_name('domain', domain)}.API"
    if prefix is not None:
        return validate_subject(prefix)
    return "$JS.API"
