"""
A lane and a context without a connection, for tests of windows and publishers.
"""

from __future__ import annotations

import time
from types import SimpleNamespace

import jetsync
from jetsync._hooks.manager import Plugins
from jetsync._io.outbox import LaneState
from jetsync._io.refusals import Refusals
from jetsync.testing import ScriptedTransport

PLAIN = b'{"stream":"S","seq":%d}'


class ScriptedLane:
    """
    A lane without a connection. It records the writes, and tests decide the outcome.
    """

    def __init__(self):
        self.transport = ScriptedTransport()
        self.outbox = self.subscriptions = self.reader = self
        self.client_wide = {}
        self.forked = False
        self.state = LaneState.OPEN
        self.size = 0
        self.epoch = 1
        self.lost_epoch = 0
        self.unprocessed = b""
        self.why = None
        self.waits = 0
        """The number of waits for an answer."""

        self.writes = []
        """The number of messages in each write."""

        self.box = None
        self.on_write = lambda commands: None
        """Called with the messages of a write, before it returns."""

    @property
    def can_send(self):
        return self.state in {LaneState.OPEN, LaneState.CLOSING}

    def check(self):
        pass

    def why_lost(self, epoch):
        return self.why

    def new_sid(self):
        return b"1000"

    def listen(self, sid, box, queue, owner):
        self.box = box
        return b"SUB %b %b\r\n" % (box.interest, sid)

    def write(self, block, deadline, epoch=None, while_closing=False, request=b""):
        if self.state is LaneState.CLOSED:
            raise jetsync.ConnectionClosedError
        if epoch is not None and (self.state is not LaneState.OPEN or epoch != self.epoch):
            raise jetsync.ConnectionLostError
        if self.state is not LaneState.OPEN:
            time.sleep(deadline.remaining())
            raise jetsync.DisconnectedError(timeout=deadline.total)
        return self._take(block)

    def wait_open(self, deadline):
        return self.write(b"", deadline)

    def post(self, block, timeout, epoch=None):
        if epoch is not None and (self.state is not LaneState.OPEN or epoch != self.epoch):
            raise jetsync.ConnectionLostError
        if self.state is not LaneState.OPEN:
            raise jetsync.DisconnectedError(timeout=timeout)
        return self._take(block)

    def _take(self, block):
        # Only new bytes are parsed: there may be many writes.
        before = len(self.transport.commands)
        self.transport.write(block)
        commands = [each for each in self.transport.commands[before:] if each.verb == "PUB"]
        if commands:
            self.writes.append(len(commands))
            self.on_write(commands)
        return self.epoch

    def wait(self, receiver, deadline):
        self.waits += 1
        while not receiver.ready and deadline.remaining():
            receiver.signal.wait(deadline.remaining())
        return receiver.ready

    def wake_reader(self):
        pass

    def interrupt(self, box):
        box.interrupt()

    def unsubscribe(self, sid, grace, is_urgent):
        self.box = None

    # The server's side.

    @property
    def payloads(self):
        """
        Return the payloads that were written, in order.
        """
        return [command.data for command in self.transport.published()]

    def answer(self, command, data, header=None):
        """
        Answer one message.
        """
        self.box.push((command.reply.encode(), b"", header, data))
        self.box.wake()

    def ack(self, commands, first=1):
        """
        Acknowledge messages, with sequences from *first* on.
        """
        for sequence, command in enumerate(commands, first):
            self.answer(command, PLAIN % sequence)

    def lose(self):
        """
        Lose the connection.
        """
        self.state = LaneState.DOWN
        self.lost_epoch = self.epoch
        self.box.lost(self.epoch)

    def close(self):
        """
        End, as when the client is closed.
        """
        self.state = LaneState.CLOSED
        self.box.fail(jetsync.ConnectionClosedError())

    def reconnect(self):
        """
        Make a new connection.
        """
        self.epoch += 1
        self.state = LaneState.OPEN


class ScriptedContext(SimpleNamespace):
    """
    The parts of a context and its connection that a publisher needs.
    """

    def __init__(self, lane, plugins=()):
        super().__init__(
            lane=lane,
            plugins=Plugins.load(plugins, {}),
            server=SimpleNamespace(max_payload=1 << 20, version="2.15.1"),
            writers=set(),
        )
        self.connection = self
        self.inbox = "_INBOX"

    refusals = Refusals(5.0)

    def new_inbox(self):
        return "_INBOX.x"

    def start_threads(self, thread):
        thread.start()

    def probe(self):
        pass

    def check_size(self, size):
        raise jetsync.MaxPayloadError(size, 1 << 20)
