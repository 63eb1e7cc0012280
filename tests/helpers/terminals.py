"""
Processes in a pseudo-terminal.
"""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time


class Terminal:
    """
    A process whose input and outputs are a pseudo-terminal.
    """

    def __init__(self, *command: str, env: dict[str, str], size: tuple[int, int] = (80, 24)):
        self.text = ""
        self.control, inside = pty.openpty()
        self.resize(*size)
        # What the process may change: echo, lines, keys that send signals.
        self.modes_before = self.modes()
        self.process = subprocess.Popen(
            command, stdin=inside, stdout=inside, stderr=inside, env=env, start_new_session=True
        )
        os.close(inside)

    def resize(self, columns, lines):
        """
        Change the size of the terminal.
        """
        size = struct.pack("HHHH", lines, columns, 0, 0)
        fcntl.ioctl(self.control, termios.TIOCSWINSZ, size)

    def modes(self):
        """
        Return the modes of the terminal.
        """
        return termios.tcgetattr(self.control)

    def read(self):
        """
        Read what is printed; False at the end.
        """
        try:
            found = os.read(self.control, 4096)
        except OSError:
            # Linux reports the end of a terminal as an error.
            found = b""
        self.text += found.decode("utf-8", "replace")
        return bool(found)

    def read_all(self):
        """
        Wait for the end and return everything that was printed.
        """
        while self.read():
            pass
        self.process.wait(60)
        return self.text

    def read_until(self, wanted, timeout=60):
        """
        Read until a text is there.
        """
        limit = time.monotonic() + timeout
        while wanted not in self.text:
            ready, _, _ = select.select([self.control], [], [], max(0, limit - time.monotonic()))
            assert ready, self.text
            assert self.read(), self.text

    def type(self, text):
        """
        Type a text.
        """
        os.write(self.control, text.encode())

    def close(self):
        """
        End the process.
        """
        self.process.kill()
        self.process.wait(60)
        os.close(self.control)
