"""
Change a configuration: show what differs, ask, and apply it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import attrs
import click

from jetsync.cli._output import (
    GOOD,
    Styled,
    confirm,
    dry_run_option,
    duration,
    force_option,
    limit,
    print_json,
    print_table,
    say,
    size,
    warn,
)
from jetsync.cli._units import combined
from jetsync.values.codec import WireModel, to_wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from jetsync.values.codec import ConfigModel

C = TypeVar("C", bound="ConfigModel")

SECONDS: Final = (
    *("max_age", "duplicate_window", "subject_delete_marker_ttl", "ack_wait", "max_expires"),
    *("inactive_threshold", "idle_heartbeat", "priority_timeout"),
)
UNITS: Final[Mapping[str, Callable[[Any], str]]] = {
    **dict.fromkeys(SECONDS, lambda value: duration(value) if value else "none"),
    **dict.fromkeys(("max_bytes", "max_msg_size"), size),
    "backoff": lambda value: ", ".join(map(duration, value)),
}
"""How the fields are shown that have a unit."""

OF_SERVERS: Final = "_nats."
"""The start of the metadata that servers set themselves."""


@attrs.frozen
class Change(Generic[C]):
    """
    The change of one configuration.
    """

    what: str
    """What it belongs to, such as `the consumer worker of ORDERS`."""

    now: C
    fields: Mapping[str, Any]
    """The fields to set, and their values."""

    warnings: tuple[str, ...] = ()
    """What the change does besides."""

    @property
    def wanted(self) -> C:
        """
        The configuration after the change.
        """
        return attrs.evolve(self.now, **self.fields)

    def differences(self) -> Iterator[tuple[str, Any, Any]]:
        """
        Yield the fields that change, with their values before and after.
        """
        wanted = self.wanted
        for field in attrs.fields(type(self.now)):
            before, after = (getattr(each, field.name) for each in (self.now, wanted))
            if field.eq and before != after:
                yield field.name, before, after

    def as_json(self, *, applied: bool) -> dict[str, Any]:
        """
        Return it as `--json` prints it, in the server's format.
        """
        before, after = to_wire(self.now), to_wire(self.wanted)
        return {
            "applied": applied,
            "warnings": list(self.warnings),
            "changes": {
                name: {"now": before.get(name), "new": after.get(name)}
                for name, _, _ in self.differences()
            },
        }

    def run(
        self,
        apply: Callable[[Mapping[str, Any]], object],
        *,
        force: bool,
        dry_run: bool,
        as_json: bool,
    ) -> None:
        """
        Show the differences, ask, and apply them.

        Args:
            apply: Sets the fields.
            force: Whether not to ask.
            dry_run: Whether only to show the differences.
            as_json: Whether to print JSON. There is no question then.
        """
        if as_json and not (force or dry_run):
            raise click.UsageError("With --json there is no question: add --yes or --dry-run.")
        found = list(self.differences())
        if not as_json:
            self._show(found)
        applied = bool(found) and not dry_run
        if applied:
            confirm(f"Change {self.what}?", force=force)
            apply(self.fields)
        if as_json:
            print_json(self.as_json(applied=applied))
        elif applied:
            say(f"changed {self.what}", style=GOOD)

    def _show(self, found: list[tuple[str, Any, Any]]) -> None:
        if not found:
            say(f"Nothing changes: {self.what} is configured like this already.")
            return
        print_table(
            ("field", "now", "new"),
            (
                (name.replace("_", " "), shown(name, before), Styled(shown(name, after), GOOD))
                for name, before, after in found
            ),
        )
        for text in self.warnings:
            warn(text)


edit_options: Final = combined(dry_run_option, force_option)
"""The options of :meth:`Change.run`, apart from --json."""


def changed_fields(now: Any, file: ConfigModel, given: dict[str, Any]) -> dict[str, Any]:
    """
    Return the fields to set: those of a file, and those of options, which take precedence.

    Other keys of the metadata stay as they are.

    Raises:
        UsageError: There are none.
    """
    fields = {
        field.name: value
        for field in attrs.fields(type(file))
        if field.eq and (value := getattr(file, field.name)) not in (None, {})
    }
    fields |= given
    # Names cannot be changed. A file that names another one is refused.
    fields = {
        name: value
        for name, value in fields.items()
        if name not in {"name", "durable_name"} or value != getattr(now, name)
    }
    if not fields:
        raise click.UsageError("Give an option or a file with what to change.")
    if "metadata" in fields:
        own = {key: it for key, it in fields["metadata"].items() if not key.startswith(OF_SERVERS)}
        fields["metadata"] = {**(now.metadata or {}), **own}
    if "extra" in fields:
        fields["extra"] = {**now.extra, **fields["extra"]}
    return fields


def shown(name: str, value: Any) -> str:
    """
    Return the value of a field for people.
    """
    if value is None:
        return "not set"
    if name in UNITS:
        return UNITS[name](value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return limit(value)
    if isinstance(value, list):
        return ", ".join(shown("", each) for each in value)
    if isinstance(value, WireModel):
        return json.dumps(to_wire(value), ensure_ascii=False)
    if isinstance(value, dict):
        own = {key: each for key, each in value.items() if not key.startswith(OF_SERVERS)}
        return ", ".join(f"{key}={each}" for key, each in own.items()) or "none"
    return str(value)
