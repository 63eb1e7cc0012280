"""
What the error for an unknown command suggests: another name, or the `nats` command line.
"""

from __future__ import annotations

from typing import Final

import click

_OTHER_NAMES: Final = {
    "jetsync": {
        "publish": "pub",
        "str": "stream",
        "con": "consumer",
        "obj": "object",
        "backup": "stream backup",
        "restore": "stream restore",
    },
    "stream": {
        "new": "add",
        "list": "ls",
        "delete": "rm",
        "del": "rm",
        "update": "edit",
        "subj": "subjects",
    },
    "consumer": {
        "create": "add",
        "new": "add",
        "list": "ls",
        "delete": "rm",
        "del": "rm",
        "update": "edit",
    },
    "kv": {"new": "add", "list": "ls", "del": "delete", "info": "status", "view": "status"},
    "dead": {"list": "ls", "delete": "rm", "del": "rm", "get": "show", "retry": "replay"},
    "object": {"new": "add", "list": "ls", "delete": "rm", "del": "rm", "status": "info"},
}
"""For each group: names of the `nats` command line, and what the command is called here."""

_ELSEWHERE: Final = {
    "jetsync": """
        account audit auth cheat context counter ctx errors events governor latency micro
        reply req request rtt schema service sub subscribe trace traffic
    """,
    "stream": """
        cluster copy cp gaps get graph query rmm seal snapshot state view
    """,
    "consumer": """
        cluster copy cp find graph query state sub unpin
    """,
    "kv": "edit update",
    "object": "seal",
}
"""For each group: commands that only the `nats` command line has."""


_OF_PLUGINS: Final = {"queue": "jetsync-queue", "services": "jetsync-services"}
"""Commands of plugins that may not be installed."""


class SuggestingGroup(click.Group):
    """
    A group that suggests something for an unknown command.
    """

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """
        Return the command, and the arguments for it.
        """
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            # The attributes are declared as final. In newer versions, the second one has
            # suggestions of click, which know only some of the commands.
            vars(error)["message"] += self._suggestion(args[0], self.list_commands(ctx))
            vars(error)["possibilities"] = None
            raise

    def _suggestion(self, word: str, commands: list[str]) -> str:
        from difflib import get_close_matches

        group = self.name or ""
        if word in _ELSEWHERE.get(group, "").split():
            path = ("nats", *(() if group == "jetsync" else (group,)), word)
            return f" The nats command line has it: {' '.join(path)}"
        if group == "jetsync" and word in _OF_PLUGINS:
            return f" Install {_OF_PLUGINS[word]}, which has it."
        known = _OTHER_NAMES.get(group, {}).get(word)
        close = get_close_matches(word, commands, 1) if known is None else [known]
        return "".join(f" Did you mean {name!r}?" for name in close)
