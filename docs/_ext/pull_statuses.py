"""
The table of statuses that answer a pull, made from the table in the code.

What a row says is derived from the rule and from what ends a consumption. `docs/write_code.py`
writes the table into the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jetsync import errors
from jetsync._proto.status import STATUS_RULES, Effect

if TYPE_CHECKING:
    from jetsync._proto.status import StatusRule

COLUMNS = ("status", "what it means", "ends the pull", "`fetch` and `next`", "`consume`")

LEARNED = (errors.MaxRequestBatchError, errors.MaxRequestMaxBytesError)
"""Limits that a consumption learns from the status and keeps to."""


def table() -> str:
    """
    Return the whole table as Markdown, in the order in which the rules are tried.
    """
    lines = [_line(COLUMNS), _line("---" for _ in COLUMNS)]
    lines += [_line(row(rule)) for rule in STATUS_RULES]
    lines += [
        _line(("any other from 400 on", "unknown to this version", "yes", *fault(None))),
        _line(("any other below 400", "unknown to this version", "no", "continues", "continues")),
    ]
    return "\n".join(lines)


def row(rule: StatusRule) -> tuple[str, ...]:
    """
    Return the row of one rule.
    """
    text = f"{rule.code} {rule.text}".strip()
    status = f"`{text}`" if rule.text else f"`{rule.code}`, any other text"
    if not any(other.code == rule.code and other.text for other in STATUS_RULES):
        status = f"`{rule.code}`"
    return (status, rule.meaning, "no" if rule.effect is Effect.ALIVE else "yes", *answers(rule))


def answers(rule: StatusRule) -> tuple[str, str]:
    """
    Return the effects on a fetch and on a consumption.
    """
    name = "" if rule.error is None else f"`{rule.error.__name__}`"
    if rule.effect is Effect.ALIVE:
        return ("continues", "continues")
    if rule.error is errors.MessageSizeExceedsMaxBytesError:
        return (
            "ends, and `batch.status` tells why",
            f"pulls again; {name} if the message is larger than the whole buffer",
        )
    if rule.effect is Effect.ENDED:
        return ("ends", "pulls again")
    if rule.effect is Effect.ABSENT:
        return (
            f"asks again, within `expires`; then {name}, or at once `ConsumerNotFoundError`",
            "asks whether it exists: pulls again after a pause, or ends: `ConsumerNotFoundError`",
        )
    if rule.effect is Effect.TRANSIENT:
        return (
            "asks again within `expires`, sometimes after a pause that grows",
            "pulls again, sometimes after a pause that grows",
        )
    return fault(rule.error, final=rule.final)


def fault(error: type[errors.StatusError] | None, *, final: bool = False) -> tuple[str, str]:
    """
    Return what becomes of a fetch and of a consumption that meet a fault.
    """
    error = error or errors.UnknownStatusError
    raises = f"raises `{error.__name__}` after the messages that arrived"
    if final:
        return raises, f"ends with `{error.__name__}`"
    if error in LEARNED:
        return raises, "pulls again, with no more than that"
    return raises, "pulls again, after a growing pause"


def _line(cells: Any) -> str:
    return "| " + " | ".join(cells) + " |"
