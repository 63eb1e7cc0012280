"""
`jetsync completion`: install the completion of a shell.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from jetsync._base.files import replaceable
from jetsync.cli._output import GOOD, say

SHELLS: Final = ("bash", "zsh", "fish")

# Completion functions of zsh need compinit, which not every .zshrc calls.
_ZSH_START: Final = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit }\n"


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), required=False, metavar="[SHELL]")
@click.option("--show", is_flag=True, help="Print the script and install nothing.")
@click.pass_context
def completion(ctx: click.Context, *, shell: str | None, show: bool) -> None:
    """
    Install completion for SHELL: bash, zsh or fish. The default is the shell named in $SHELL.

    The command writes a script. For bash and zsh it also adds a line to ~/.bashrc or ~/.zshrc,
    once. Commands, options and the names of streams, consumers and buckets are completed. The names
    come from the server that --server, --context or the environment name. A server that does not
    answer within JETSYNC_COMPLETION_TIMEOUT seconds, 1 by default, is left out.
    """
    if shell is None:
        shell = Path(os.environ.get("SHELL", "")).name
        if shell not in SHELLS:
            raise click.UsageError("Name the shell: bash, zsh or fish.")
    script = script_of(ctx.find_root().command, shell)
    if show:
        say(script, lines=True)
        return
    try:
        install(shell, script)
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"completion is not installed: {error}") from error
    say(f"start a new {shell} to use it")


def install(shell: str, script: str) -> None:
    """
    Write the script and, unless the shell finds it by itself, the line that reads it.
    """
    path = place_of(shell)
    startup = None if shell == "fish" else startup_file(shell)
    for each in filter(None, (path, startup)):
        # A pipe would make the command wait, and a device would keep nothing.
        replaceable(each)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script, encoding="utf-8")
    say(f"wrote {path}", style=GOOD)
    if startup is not None:
        added = add_line(startup, f". {shlex.quote(str(path))}  # completion of jetsync")
        say(f"{'added a line to' if added else 'found its line in'} {startup}", style=GOOD)


def script_of(command: click.Command, shell: str) -> str:
    """
    Return the completion script of a shell.
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(command, {}, "jetsync", "_JETSYNC_COMPLETE").source()
    return _ZSH_START + script if shell == "zsh" else script


def place_of(shell: str) -> Path:
    """
    Return where the script belongs. fish reads all files of its folder.
    """
    if shell == "fish":
        return _folder("XDG_CONFIG_HOME", ".config") / "fish" / "completions" / "jetsync.fish"
    return _folder("XDG_DATA_HOME", ".local/share") / "jetsync" / f"completion.{shell}"


def startup_file(shell: str) -> Path:
    """
    Return the file that an interactive shell reads when it starts.
    """
    return Path.home() / ".bashrc" if shell == "bash" else _folder("ZDOTDIR", ".") / ".zshrc"


def add_line(path: Path, line: str) -> bool:
    """
    Append a line to a file, unless the file has it. Return whether it was added.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if line in text.splitlines():
        return False
    with path.open("a", encoding="utf-8") as file:
        file.write(("\n" if text and not text.endswith("\n") else "") + line + "\n")
    return True


def _folder(variable: str, usual: str) -> Path:
    return Path(os.environ.get(variable) or Path.home() / usual)
