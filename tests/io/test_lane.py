from __future__ import annotations

import time

import pytest

from helpers.interrupts import interrupted_at
from helpers.lacking import needs_epoll
from helpers.lanes import LONG, Background, is_waited_for, msg, soon, until
from jetsync._io.mailbox import Mailbox
from jetsync._io.outbox import (
    OUT_LIMIT,
    PING,
    LaneState,
)
from jetsync._io.replies import ReplyRouter, Waiter
from jetsync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
)


class TestReconnect:
    def test_half_a_block(self, idle):
        """The rest of a half-written block is not continued on the next connection."""
        idle.connect(buffer=8192)
        idle.lane.write(b"1" * 1_000_000, soon())
        assert idle.lane.outbox.size > 0
        descriptor = idle.lane.outbox.sock.fileno()
        idle.do(idle.lane.detach)
        # The next socket may get the same number.
        assert not idle.do(idle.loop.remove_writer, descriptor)
        assert 0 < len(idle.receive_all()) < 1_000_000
        idle.connect()
        assert idle.lane.write(b"whole", soon()) == 2
        assert idle.receive(5) == b"whole"
        idle.settle()
        assert idle.nothing_more()

    def test_subscriptions_come_first(self, idle):
        """After a reconnect all subscriptions are written again, in order, before other blocks."""
        lane = idle.lane
        lines = [
            lane.subscriptions.listen(lane.subscriptions.new_sid(), Mailbox(b"a.%d" % n))
            for n in range(3)
        ]
        lines.append(
            lane.subscriptions.listen(lane.subscriptions.new_sid(), Mailbox(b"q"), b"group")
        )
        assert lines[0] == b"SUB a.0  1000000\r\n"
        assert lines[3] == b"SUB q group 1000003\r\n"
        for epoch in (1, 2):
            waiting = Background(lane.write, b"block", soon())
            until(lambda: is_waited_for(lane), "the wait for a connection")
            idle.connect()
            assert waiting.get() == epoch
            expected = b"".join(lines) + b"block"
            assert idle.receive(len(expected)) == expected
            idle.server.close()
            until(lambda: lane.state is LaneState.DOWN, "the loss")

    def test_writes_wait_for_the_connection_after_a_given_up_one(self, rig):
        """After a connection is dropped, writes wait for the next one, though the loop is late."""
        box = Mailbox()
        rig.listen(box)
        rig.lane.write(b"old", soon())
        release = rig.stall()
        rig.lane.outbox.drop_connection(1)
        for call in (
            lambda: rig.lane.write(b"x", soon(0.01)),
            lambda: rig.lane.write(b"x", soon(0.01), may_delegate=True),
            lambda: rig.lane.post(b"x", 0.01),
        ):
            with pytest.raises(DisconnectedError, match="no connection to a server within"):
                call()
        with pytest.raises(ConnectionLostError, match="before the request was sent"):
            rig.lane.write(b"x", soon(), 1)
        assert rig.lane.outbox._delegate(b"x", None) == 0
        release.set()
        assert rig.receive_all() == b"old"
        assert rig.lane.wait(box, soon())
        assert (box.take_lost(), rig.lane.lost_epoch) == (1, 1)
        waiting = Background(rig.lane.write, b"new", soon())
        until(lambda: is_waited_for(rig.lane), "the wait for a connection")
        rig.connect()
        assert waiting.get() == 2
        assert rig.receive(19) == b"SUB s  1000000\r\nnew"

    def test_collected_blocks_of_a_connection_that_is_given_up(self, rig):
        """Posted blocks and acks are sent before the connection ends."""
        release = rig.stall()
        rig.lane.post(b"posted", LONG)
        rig.lane.ack(b"r", LONG)
        rig.lane.outbox.drop_connection(1)
        release.set()
        assert rig.receive_all() == b"postedPUB r  4\r\n+ACK\r\n"

    def test_an_earlier_connection_is_given_up(self, rig):
        """Giving up a connection that is gone does not affect the next one."""
        rig.do(rig.lane.detach)
        rig.connect()
        rig.lane.outbox.drop_connection(1)
        rig.settle()
        assert rig.lane.write(b"new", soon()) == 2
        assert rig.receive(3) == b"new"

    def test_interrupted_while_a_connection_is_dropped(self, rig):
        """After Ctrl-C at any step the connection is used or ends. No write waits for ever."""
        step, ended = 0, False
        while not ended:
            step += 1
            epoch = rig.lane.epoch
            ended = interrupted_at(step, lambda: rig.lane.outbox.drop_connection(epoch))  # noqa: B023
            rig.settle()
            if rig.lane.state is LaneState.DOWN:
                until(lambda: rig.lane.lost_epoch == epoch, "the loss")  # noqa: B023
                rig.connect()
            rig.lane.write(b"x", soon())
        assert step > 2

    def test_ended_subscriptions_are_not_restored(self, rig):
        """A subscription that has ended is not written again."""
        sid = rig.listen(Mailbox())
        rig.lane.subscriptions.unsubscribe(sid)
        rig.lane.subscriptions.unsubscribe(sid)
        assert rig.receive(15) == b"UNSUB 1000000\r\n"
        assert rig.lane.subscriptions.receivers() == []
        rig.do(rig.lane.detach)
        rig.connect()
        rig.lane.write(b"x", soon())
        assert rig.receive(1) == b"x"

    def test_unsubscribe_during_a_write(self, rig):
        """If another thread has the lock, the UNSUB is sent as soon as it is free."""
        sid = rig.listen(Mailbox())
        with rig.lane.outbox.write_lock:
            Background(rig.lane.subscriptions.unsubscribe, sid).get()
        assert rig.receive(15) == b"UNSUB 1000000\r\n"

    def test_interrupted_unsubscribe(self, rig):
        """After Ctrl-C in the middle, a repeated call unsubscribes and drops the mailbox."""
        sid = rig.listen(Mailbox())
        del rig.lane.subscriptions._lines[sid]
        rig.lane.subscriptions.unsubscribe(sid)
        assert rig.receive(15) == b"UNSUB 1000000\r\n"
        assert rig.lane.subscriptions.receivers() == []

    @needs_epoll
    def test_receivers_learn_of_a_loss(self, rig):
        """Every receiver learns of the loss, and waiting threads wake up."""
        boxes = [Mailbox() for _ in range(3)]
        for box in boxes:
            rig.listen(box)
        router = ReplyRouter(b"i")
        rig.listen(router)
        waiter = Waiter(b"x")
        router.register(waiter)
        waiter.epoch = 1
        waiting = [Background(rig.lane.wait, one, soon()) for one in (*boxes, waiter)]
        until(lambda: rig.is_led, "the leader")
        rig.server.close()
        assert [one.get() for one in waiting] == [True] * 4
        assert [box.take_lost() for box in boxes] == [1, 1, 1]
        assert waiter.is_lost

    def test_unsent_requests_continue(self, rig):
        """A request that was not written yet survives the loss of the connection."""
        router = ReplyRouter(b"i")
        rig.listen(router)
        waiter = Waiter(b"x")
        router.register(waiter)
        rig.do(rig.lane.detach)
        assert (waiter.is_lost, waiter.ready) == (False, False)

    def test_announced_once(self, rig):
        """Closing twice announces one loss, and a failed handshake announces none."""
        box = Mailbox()
        rig.listen(box)
        rig.do(rig.lane.detach)
        assert box.take_lost() == 1
        rig.do(rig.lane.detach)
        rig.connect(opened=False)
        rig.do(rig.lane.detach)
        assert (box.take_lost(), rig.lane.epoch, rig.lane.lost_epoch) == (0, 1, 1)

    def test_no_loss_is_announced_at_the_end_of_the_process(self, rig):
        """After the writes were frozen, the end of the connection fails no wait."""
        box = Mailbox()
        rig.listen(box)
        rig.lane.outbox.freeze()
        rig.do(rig.lane.detach)
        assert (box.take_lost(), rig.lane.lost_epoch) == (0, 0)

    def test_half_a_frame(self, rig):
        """The next connection's bytes do not continue half a frame of the previous one."""
        box = Mailbox()
        sid = rig.listen(box)
        rig.server.sendall(msg(sid, b"whole") + msg(sid, b"half")[:-4])
        assert rig.lane.wait(box, soon())
        rig.server.close()
        until(lambda: rig.lane.state is LaneState.DOWN, "the loss")
        server = rig.connect()
        server.sendall(msg(sid, b"new"))
        until(lambda: len(box.frames) == 2, "the frame")
        assert [frame[3] for frame in box.drain()] == [b"whole", b"new"]

    def test_no_thread_spins_at_the_end(self, rig):
        """Waiting costs no CPU time between the end of a connection and nats-py's close of it."""
        rig.auto_detach = False
        waiting = rig.leader(Mailbox())
        rig.server.close()
        until(lambda: rig.foreign, "the end")
        rig.settle()
        before = time.process_time()
        assert not rig.lane.wait(Mailbox(), soon(0.1))
        assert time.process_time() - before < 0.05
        assert waiting.running
        rig.do(rig.lane.close, ConnectionClosedError())

    def test_the_loop_does_not_spin_at_the_end(self, idle, monkeypatch):
        """The loop reads the end of a connection once, though nats-py closes it later."""
        calls, read = [], idle.lane.reader._on_readable
        monkeypatch.setattr(idle.lane.reader, "_on_readable", lambda: calls.append(read()))
        idle.auto_detach = False
        idle.connect()
        idle.server.close()
        until(lambda: idle.foreign, "the end")
        idle.settle()
        before = len(calls)
        idle.settle()
        assert (len(calls), bool(before)) == (before, True)

    def test_readable_after_the_end(self, rig):
        """The loop may be notified of a socket that was closed in the same round."""
        rig.do(rig.lane.detach)
        rig.do(rig.lane.reader._on_readable)
        assert rig.lane.state is LaneState.DOWN


class TestPing:
    def test_a_pong_answers_the_oldest_ping(self, rig):
        """A PONG answers the oldest PING. One without a PING goes to nats-py."""
        first, later = Waiter(b"PING"), Waiter(b"PING")
        rig.lane.write(PING, soon(), pong=first)
        rig.lane.write(PING, soon(), pong=later)
        assert rig.receive(12) == b"PING\r\n" * 2
        rig.server.sendall(b"PONG\r\n")
        assert rig.lane.wait(first, soon())
        rig.settle()
        assert not later.ready
        rig.server.sendall(b"PONG\r\n" * 2)
        assert rig.lane.wait(later, soon())
        until(lambda: rig.foreign, "a PONG without a PING")
        rig.settle()
        assert [data for _, data in rig.foreign] == [b"PONG\r\n"]

    def test_a_ping_whose_connection_ends_is_lost(self, rig):
        """If the connection ends before the PONG, the PING is lost."""
        pong = Waiter(b"PING")
        rig.lane.write(PING, soon(), pong=pong)
        rig.server.close()
        assert rig.lane.wait(pong, soon())
        assert pong.is_lost

    def test_a_ping_waits_for_a_connection_like_a_write(self, idle):
        """A PING waits for a connection, like a write."""
        with pytest.raises(DisconnectedError):
            idle.lane.write(PING, soon(0.02), pong=Waiter(b"PING"))


class TestClose:
    def test_wakes_everybody(self, idle):
        """Closing ends every wait and every write, present and later, with the reason."""
        idle.connect(buffer=8192)
        lane = idle.lane
        boxes = [Mailbox() for _ in range(3)]
        for box in boxes:
            idle.listen(box)
        lane.write(b"1" * (OUT_LIMIT + (1 << 20)), soon())
        writing = Background(lane.write, b"2", soon())
        until(lambda: is_waited_for(lane), "the wait for room")
        waiting = [idle.leader(boxes[0])]
        waiting += [Background(lane.wait, box, soon()) for box in boxes[1:]]
        reason = ConnectionClosedError("enough")
        lane.close(reason)
        lane.close(ConnectionClosedError("again"))
        assert [one.get() for one in waiting] == [True] * 3
        assert [box.failure for box in boxes] == [reason] * 3
        for call in (writing.get, lambda: lane.write(b"3", soon()), lambda: lane.post(b"4", 1.0)):
            with pytest.raises(ConnectionClosedError, match="enough"):
                call()
        late = Mailbox()
        idle.listen(late)
        assert late.failure is reason
        assert lane.wait(late, soon()) is True

    def test_publishers_may_finish(self, rig):
        """While the client closes, only acks and marked mailboxes and writes work."""
        lane = rig.lane
        box, marked, router = Mailbox(), Mailbox(b"m", while_closing=True), ReplyRouter(b"inbox")
        rig.listen(box)
        sid = rig.listen(marked)
        rig.listen(router)
        waiter, ping = Waiter(b"a"), Waiter(b"PING")
        router.register(waiter)
        lane.write(PING, soon(), pong=ping)
        release = rig.stall()
        lane.ack(b"r", LONG)
        waiting = rig.leader(box), Background(lane.wait, marked, soon())
        reason = ConnectionClosedError("enough")
        lane.begin_close(reason)
        lane.begin_close(ConnectionClosedError("again"))
        assert waiting[0].get() is True
        assert (box.failure, waiter.failure, ping.failure) == (reason,) * 3
        for call in (
            lambda: lane.write(b"x", soon()),
            lambda: lane.write(b"x", soon(), 1, may_delegate=True),
            lambda: lane.post(b"x", 1.0),
            lane.check,
        ):
            with pytest.raises(ConnectionClosedError, match="enough"):
                call()
        release.set()
        lane.check(while_closing=True)
        lane.ack(b"s", 1.0)
        assert lane.write(b"last", soon(), 1, while_closing=True) == 1
        lane.post_nowait(b"posted")
        expected = PING + b"PUB r  4\r\n+ACK\r\nPUB s  4\r\n+ACK\r\nlast" + b"posted"
        assert rig.receive(len(expected)) == expected
        rig.server.sendall(msg(sid, subject=b"m"))
        assert waiting[1].get() is True
        assert [frame[0] for frame in marked.drain()] == [b"m"]
        assert lane.state is LaneState.CLOSING
        lane.close(ConnectionClosedError("closed"))
        assert str(marked.failure) == "closed"
        with pytest.raises(ConnectionClosedError, match="closed"):
            lane.write(b"x", soon(), while_closing=True)

    @pytest.mark.parametrize("lost", ["before", "after"])
    def test_publishers_may_finish_on_the_next_connection(self, rig, lost):
        """A connection that is lost before or while the client closes does not end that."""
        lane = rig.lane
        if lost == "before":
            rig.do(lane.detach)
            waiting = Background(lane.write, b"x", soon())
            until(lambda: is_waited_for(lane), "the wait for a connection")
            lane.begin_close(ConnectionClosedError("enough"))
            with pytest.raises(ConnectionClosedError, match="enough"):
                waiting.get()
        else:
            lane.begin_close(ConnectionClosedError("enough"))
            rig.do(lane.detach)
        with pytest.raises(ConnectionLostError):
            lane.write(b"last", soon(), 1, while_closing=True)
        with pytest.raises(DisconnectedError):
            lane.write(b"last", soon(0.0), while_closing=True)
        last = Background(lambda: lane.write(b"last", soon(), while_closing=True))
        until(lambda: is_waited_for(lane), "the wait for a connection")
        rig.connect()
        assert last.get() == 2
        assert rig.receive(4) == b"last"
        assert lane.lost_epoch == 1
        assert lane.state is LaneState.CLOSING
        with pytest.raises(ConnectionClosedError, match="enough"):
            lane.write(b"x", soon())

    def test_stays_closed(self, rig):
        """A connection that is made during a close does not reopen the lane."""
        rig.do(rig.lane.detach)
        rig.lane.close(ConnectionClosedError())
        rig.connect()
        assert rig.lane.state is LaneState.CLOSED
        assert rig.nothing_more()

    def test_each_write_raises_its_own(self, rig):
        """
        Each write to a closed lane raises its own error, because a shared traceback would grow.
        """
        reason = ConnectionClosedError()
        rig.lane.close(reason)
        for call in (rig.lane.write, lambda block, _: rig.lane.post(block, 0.0)):
            with pytest.raises(ConnectionClosedError) as caught:
                call(b"x", soon(0.0))
            assert caught.value is not reason
        assert reason.__traceback__ is None

    def test_the_repr_shows_the_state_of_the_lane(self, rig):
        """The repr shows the state of the lane."""
        rig.listen(Mailbox())
        assert repr(rig.lane) == "<Lane open epoch=1 subscriptions=1 out=0>"
