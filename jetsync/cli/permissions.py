"""
`jetsync permissions`: the permissions that a program needs, for the configuration of a server.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import click

from jetsync._proto.keys import DEFAULT_API, check_bucket
from jetsync.cli._output import print_json, say
from jetsync.cli._roles import ROLES, permissions_of
from jetsync.cli._suggestions import SuggestingGroup
from jetsync.values.subjects import api_prefix, validate_filter, validate_name, validate_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from jetsync.cli._roles import Line, Role

_CHECKS: Final[dict[str, Callable[[str], str]]] = {
    "stream": lambda name: validate_name("stream", name),
    "consumer": lambda name: validate_name("consumer", name),
    "bucket": check_bucket,
}
"""How arguments are checked that are not subjects."""

_COMMON: Final = (
    click.Option(
        ["--domain"],
        metavar="NAME",
        help="The JetStream domain, if the user connects to a server outside of it, such as a leaf "
        "node.",
    ),
    click.Option(["--prefix"], metavar="SUBJECT", help="The API prefix, of an account import."),
    click.Option(
        ["--inbox"],
        metavar="SUBJECT",
        default="_INBOX",
        show_default=True,
        help="The inbox prefix of the program.",
    ),
    click.Option(
        ["--json", "as_json"], is_flag=True, help="Print JSON, which a configuration may contain."
    ),
)
"""The options of all roles."""


@click.group(cls=SuggestingGroup)
def permissions() -> None:
    """
    Print the permissions that a program needs.

    Each role has a command, which prints a block for a user in the configuration of a server. It
    has what a program in that role needs, and nothing else. Options add what a program needs for
    more features. No command connects to a server. A user with several roles needs the subjects of
    all of them, in one block.
    """


def _command_of(role: Role) -> click.Command:
    arguments = [
        click.Argument(
            [name.removesuffix("...")], nargs=-1 if name.endswith("...") else 1, required=True
        )
        for name in role.arguments
    ]
    options = [
        click.Option(
            [f"--{option.name}", option.name.replace("-", "_")],
            metavar=option.value,
            is_flag=option.value is None,
            multiple=option.value is not None,
            help=option.help,
        )
        for option in role.options
    ]

    def show(as_json: bool, **given: Any) -> None:  # noqa: FBT001 - click passes it by name.
        print_block(role, _checked(given), as_json=as_json)

    return click.Command(
        role.name,
        callback=show,
        params=[*arguments, *options, *_COMMON],
        help=role.about,
    )


def _checked(given: dict[str, Any]) -> dict[str, Any]:
    """
    Return the values of lines.

    Raises:
        InvalidArgumentError: One of them is not valid.
    """
    domain, prefix = given.pop("domain"), given.pop("prefix")
    api = api_prefix(domain, prefix)
    values: dict[str, Any] = {
        "api": api,
        "domain": domain or "*",
        "inbox": validate_subject(given.pop("inbox")),
        # As clients do, which leave out the default prefix.
        "write": "" if api == DEFAULT_API else f"{api}.",
    }
    for name, value in given.items():
        values[name.replace("_", "-")] = _checked_value(_CHECKS.get(name, validate_filter), value)
    return values


def _checked_value(check: Callable[[str], str], value: Any) -> Any:
    if isinstance(value, str):
        return check(value)
    return tuple(map(check, value)) if isinstance(value, tuple) else value


def print_block(role: Role, values: dict[str, Any], *, as_json: bool) -> None:
    """
    Print the permissions of a user.
    """
    found = permissions_of(role, values)
    if as_json:
        print_json({"permissions": block_of(found)})
        return
    say("permissions {")
    for operation in ("publish", "subscribe"):
        lines = [each for each in found if each.operation == operation]
        say(f"  {operation} {{")
        say("    allow: [")
        for line in _aligned(lines):
            say(f"      {line}")
        say("    ]")
        say("  }")
    say("}")


def _aligned(lines: Sequence[Line]) -> list[str]:
    """
    Return the subjects in quotes, with a comment that says what each is for.
    """
    quoted = [json.dumps(each.subject, ensure_ascii=False) for each in lines]
    width = max(map(len, quoted))
    return [f"{text:<{width}}  # {line.why}" for text, line in zip(quoted, lines, strict=True)]


def block_of(found: Sequence[Line]) -> dict[str, Any]:
    """
    Return permissions as the value of `permissions` in the configuration of a user.
    """
    return {
        operation: {"allow": [each.subject for each in found if each.operation == operation]}
        for operation in ("publish", "subscribe")
    }


for _role in ROLES.values():
    permissions.add_command(_command_of(_role))
