"""
A full screen on a terminal, with keys, which leaves the terminal as it was.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from typing import TYPE_CHECKING, Final

from jetsync.cli._signals import delayed_interrupts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console, RenderableType

KEY: Final = re.compile(r"\x1b\[[\d;]*[A-Za-z~]|.", re.DOTALL)
"""One key: the escape sequence of a cursor key, or a character."""

NAMES: Final = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
}
"""The names of cursor keys in :meth:`Screen.keys`. Other keys are characters."""

END: Final = ""
"""What :meth:`Screen.keys` returns as a key if the input has ended."""

_POLL: Final = 0.05
"""Seconds between two looks for a key on Windows, which cannot wait for one."""


class Screen:
    """
    The screen of a terminal while :func:`full_screen` is open.
    """

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self.console = console
        self.live = Live(console=console, screen=True, auto_refresh=False)

    def show(self, content: RenderableType) -> None:
        """
        Replace what the screen shows.
        """
        self.live.update(content, refresh=True)

    @property
    def size(self) -> tuple[int, int]:
        """
        Columns and lines. They change when the user resizes the window.
        """
        return self.console.size

    def keys(self, seconds: float) -> list[str]:
        """
        Wait for keys, and return them; none if there is none in time.
        """
        if not sys.stdin.isatty():
            time.sleep(seconds)
            return []
        text = _typed(seconds)
        if text is None:
            return [END]
        return [NAMES.get(key, key) for key in KEY.findall(text)]


@contextlib.contextmanager
def full_screen(console: Console) -> Iterator[Screen]:
    """
    Open a screen, and restore the terminal at the end, also after Ctrl-C and an error.
    """
    screen = Screen(console)
    restore = contextlib.ExitStack()
    try:
        # A signal between two steps would leave the terminal half changed.
        with delayed_interrupts():
            restore.enter_context(_single_keys())
            restore.callback(screen.live.stop)
            screen.live.start()
        yield screen
    finally:
        with delayed_interrupts():
            restore.close()


if sys.platform == "win32":
    import msvcrt

    def _single_keys() -> contextlib.AbstractContextManager[None]:
        """Return a context manager in which keys arrive without Enter. Windows needs none."""
        return contextlib.nullcontext()

    def _typed(seconds: float) -> str | None:
        """Wait for keys and return their characters; None at the end of the input."""
        limit = time.monotonic() + seconds
        while not msvcrt.kbhit():
            if time.monotonic() >= limit:
                return ""
            time.sleep(_POLL)
        return msvcrt.getwch()

else:
    import select
    import termios
    import tty

    @contextlib.contextmanager
    def _single_keys() -> Iterator[None]:
        """Let keys arrive without Enter, and without an echo."""
        if not sys.stdin.isatty():
            yield
            return
        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
        try:
            tty.setcbreak(number)
            changed = termios.tcgetattr(number)
            # Ctrl-Z would return to the shell in the middle of this screen.
            changed[6][termios.VSUSP] = bytes([os.fpathconf(number, "PC_VDISABLE")])
            termios.tcsetattr(number, termios.TCSANOW, changed)
            yield
        finally:
            # Without the keys that are typed and not read, which the shell would run.
            termios.tcsetattr(number, termios.TCSAFLUSH, before)

    def _typed(seconds: float) -> str | None:
        """Wait for keys and return their characters; None at the end of the input."""
        number = sys.stdin.fileno()
        ready, _, _ = select.select([number], [], [], seconds)
        if not ready:
            return ""
        return os.read(number, 256).decode("utf-8", "replace") or None
