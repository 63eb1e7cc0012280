"""
Errors of contracts: a document that violates its contract, or an invalid contract.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import attrs

import jetsync

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["DefinitionError", "MismatchError", "Violation", "ViolationError"]

LONGEST_REASON: Final = 300
"""Maximum characters of a reason, which is written to logs and advisories."""

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def path_of(steps: Iterable[str | int]) -> str:
    """
    Return the path of a value in a document, such as ``$.items[3].price``.

    Names that are not identifiers are quoted in brackets: ``$['unit price']``.
    """
    found = ["$"]
    for step in steps:
        if isinstance(step, int):
            found.append(f"[{step}]")
        elif _PLAIN.fullmatch(step):
            found.append(f".{step}")
        else:
            found.append(f"[{step!a}]")
    return "".join(found)


def one_line(text: str) -> str:
    """
    Return a text on one line, shortened to LONGEST_REASON.
    """
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


@attrs.frozen
class Violation:
    """
    One error in a document.
    """

    path: str
    """The path of the value, such as ``$.items[3].price``. ``$`` is the whole document."""

    reason: str = attrs.field(converter=one_line)
    """What is wrong, on one line. It omits the value, which may be secret."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class MismatchError(jetsync.JetSyncError, ValueError):
    """
    A document does not match a contract. Contracts raise this error.

    `Schemas` converts it to a `ViolationError` with the subject and the name of the contract.
    """

    def __init__(self, *violations: Violation) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations: tuple[Violation, ...] = violations


class ViolationError(jetsync.JetSyncError, ValueError):
    """
    A document violates the contract of its subject.

    If this happens on publish, the message was not sent. Calls of a client raise
    `jetsync.PluginError` with this error as its ``__cause__``. `Schemas.check`, `Schemas.encode`
    and `Schemas.decode` raise it directly.
    """

    def __init__(self, subject: str, contract: str | None, violations: Sequence[Violation]) -> None:
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        # A violation without a contract has no path.
        said = f"breaks contract {contract!r}: {first}" if contract else first.reason
        super().__init__(f"subject {subject!r} {said}{more}")
        self.subject = subject
        self.contract = contract
        """The name of the contract. None if the subject has none but needs one."""
        self.violations = tuple(violations)
        """The errors, at most ten."""

    @property
    def path(self) -> str:
        """
        The path of the first error.
        """
        return self.violations[0].path

    @property
    def reason(self) -> str:
        """
        The reason of the first error.
        """
        return self.violations[0].reason


class DefinitionError(jetsync.ConfigurationError):
    """
    A contract is invalid: its schema is invalid, or it has no subjects.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {one_line(reason)}")
        self.source = source
        """What is invalid: a kind of schema, a file, or a key of a bucket."""
        self.reason = one_line(reason)


def missing(extra: str, module: str, error: ImportError) -> jetsync.ConfigurationError:
    """
    Return the error for a format whose library is not installed.
    """
    # The library may be installed, but lack a dependency of its own.
    found = error.name == module or (error.name or "").startswith(f"{module}.")
    what = f"needs {module}, which is not installed" if found else f"needs {module}: {error}"
    return jetsync.ConfigurationError(
        f"this kind of contract {what}; install jetsync-schema[{extra}]"
    )


def reason_of(error: BaseException) -> str:
    """
    Return the text of a library's error on one line, or its class if it has no text.
    """
    return one_line(str(error)) or type(error).__name__


def state_of(**fields: Any) -> dict[str, Any]:
    """
    Return the fields that are set.
    """
    return {name: value for name, value in fields.items() if value not in {None, False}}
