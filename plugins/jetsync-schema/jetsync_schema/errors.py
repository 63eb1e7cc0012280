"""
What goes wrong with contracts: a document that breaks one, or a contract that is none.
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
"""Characters of a reason at most: it goes into log lines and advisories."""

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def path_of(steps: Iterable[str | int]) -> str:
    """
    Return the place that a way through a document leads to, such as ``$.items[3].price``.

    Names that are no plain words stand in brackets and quotes: ``$['unit price']``.
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
    Return a text without line ends, cut where it is longer than anybody reads.
    """
    line = " ".join(text.split())
    return line if len(line) <= LONGEST_REASON else line[: LONGEST_REASON - 3] + "..."


@attrs.frozen
class Violation:
    """
    One thing in a document that breaks its contract.
    """

    path: str
    """Where in the document, from ``$``, the document as a whole: ``$.items[3].price``."""

    reason: str = attrs.field(converter=one_line)
    """What is wrong there, on one line. The value itself is not in it: it may be secret."""

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


class MismatchError(jetsync.JetSyncError, ValueError):
    """
    A document does not fit, as a contract says that knows neither its subject nor its own name.

    `Schemas` makes a `ViolationError` of it.
    """

    def __init__(self, *violations: Violation) -> None:
        super().__init__("; ".join(map(str, violations)))
        self.violations: tuple[Violation, ...] = violations


class ViolationError(jetsync.JetSyncError, ValueError):
    """
    A document breaks the contract of its subject; in a publish, not a byte of it was sent.

    Where a client raises `jetsync.PluginError`, this is its ``__cause__``.
    """

    def __init__(self, subject: str, contract: str | None, violations: Sequence[Violation]) -> None:
        first = violations[0]
        more = f" (and {len(violations) - 1} more)" if len(violations) > 1 else ""
        # Without a contract there is no document that a place could be in.
        said = f"breaks contract {contract!r}: {first}" if contract else first.reason
        super().__init__(f"subject {subject!r} {said}{more}")
        self.subject = subject
        self.contract = contract
        """Name of the contract; None where there is none, and there has to be one."""
        self.violations = tuple(violations)
        """All that was found, at least one and not more than ten."""

    @property
    def path(self) -> str:
        """
        Where the first thing is that is wrong.
        """
        return self.violations[0].path

    @property
    def reason(self) -> str:
        """
        What is wrong there.
        """
        return self.violations[0].reason


class DefinitionError(jetsync.ConfigurationError):
    """
    A contract can not be used: its schema is broken, or does not say which subjects it is for.
    """

    def __init__(self, source: str, reason: str) -> None:
        super().__init__(f"{source}: {one_line(reason)}")
        self.source = source
        """What is broken: a kind of schema, a file, or a key of a bucket."""
        self.reason = one_line(reason)


def missing(extra: str, module: str, error: ImportError) -> jetsync.ConfigurationError:
    """
    Make the error for a kind of contract whose library is not installed.
    """
    # An installed library that lacks something of its own would otherwise look like a missing one.
    found = error.name == module or (error.name or "").startswith(f"{module}.")
    what = f"needs {module}, which is not installed" if found else f"needs {module}: {error}"
    return jetsync.ConfigurationError(
        f"this kind of contract {what}; install jetsync-schema[{extra}]"
    )


def reason_of(error: BaseException) -> str:
    """
    Return what an error of a library says, on one line, and its kind where it says nothing.
    """
    return one_line(str(error)) or type(error).__name__


def state_of(**fields: Any) -> dict[str, Any]:
    """
    Return the fields that were set: what a definition has to say and what it may leave out.
    """
    return {name: value for name, value in fields.items() if value not in {None, False}}
