"""
Members that consume: what they get, and how they follow changes of their group.
"""

from __future__ import annotations

import os
import threading

import pytest
from conftest import until

import jetsync
from jetsync.devserver import DevServer
from jetsync.testing import CutProxy
from jetsync_groups import (
    GroupChangedError,
    GroupDocumentError,
    create_elastic_group,
    elastic_group,
    origin_of,
    partition,
)

pytestmark = pytest.mark.live

ACK_WAIT = 2


def key_of(number):
    """
    Return a key of a partition of four.
    """
    return next(f"k{n}" for n in range(1000) if partition(f"k{n}", 4) == number)


def join(group, member, handler, *, ack_wait=ACK_WAIT, **options):
    """
    Consume as a member, in order.
    """
    return group.join(member, ack_wait=ack_wait, max_ack_pending=1).consume(handler, **options)


@pytest.fixture
def publish(js, orders):
    """
    Publish a message with a key of a partition.
    """

    def one(number, data="x"):
        js.publish(f"{orders.name}.{key_of(number)}", data)

    return one


def test_each_member_gets_the_keys_of_its_partitions(group, publish, handler, another):
    """
    Two members share four partitions, and each key has one member.
    """
    group.add_members("a", "b")
    with join(group, "a", handler) as first, join(group, "b", another) as second:
        for number in range(4):
            publish(number, str(number))
        assert sorted(handler.wait_count(2)) == ["0", "1"]
        assert sorted(another.wait_count(2)) == ["2", "3"]
        assert (first.partitions, second.partitions) == ((0, 1), (2, 3))
        assert group.active_members() == ("a", "b")


def test_messages_have_the_subject_that_was_published(group, orders, publish, handler):
    """
    The partition is taken off. The metadata is about the group's stream, and `origin_of` about the
    original one.
    """
    publish(3)
    group.add_members("a")
    with join(group, "a", handler):
        handler.wait_count(1)
        (message,) = handler.messages
    assert message.subject == f"{orders.name}.{key_of(3)}"
    assert message.metadata.stream == group.buffer_name
    assert message.is_acked
    origin = origin_of(message, orders.name)
    assert (origin.stream, origin.sequence) == (orders.name, 1)


def test_a_member_waits_until_it_is_added(group, publish, handler):
    """
    A member that the group does not have yet consumes nothing, and begins when it is added.
    """
    publish(0)
    with join(group, "a", handler) as consumption:
        assert not consumption.is_active
        group.add_members("a")
        handler.wait_count(1)
        until(lambda: consumption.partitions == (0, 1, 2, 3))


def test_a_change_waits_for_the_running_handler(group, publish, handler, another):
    """
    While a handler has a message, no other member gets its key, even for longer than `ack_wait`,
    and the message is not delivered again.
    """
    group.add_members("a")
    handler.hold()
    with join(group, "a", handler) as first, join(group, "b", another) as second:
        publish(3, "1")
        publish(3, "2")
        assert handler.entered.wait(30)
        group.drop_members("a")
        group.add_members("b")
        assert not another.entered.wait(2 * ACK_WAIT + 1)
        assert second.partitions == ()
        handler.go_on.set()
        assert another.wait_count(1) == ["2"]
        assert handler.wait_count(1) == ["1"]
        assert first.partitions == ()
        assert second.statistics().longest_wait > 2 * ACK_WAIT
    assert len(handler.messages) == len(another.messages) == 1


def test_a_standby_leaves_the_consumer_to_the_process_that_works(
    nats_server, orders, group, publish, handler, another
):
    """
    If a member is dropped while one of its processes handles a message, the other process of it
    does not delete the consumer, so the next member waits for the handler.
    """
    group.add_members("a")
    handler.hold()
    with jetsync.connect(nats_server.url) as client:
        same = elastic_group(client.jetstream().stream(orders.name), "g")
        with join(group, "a", handler), join(group, "b", another):
            publish(3, "1")
            assert handler.entered.wait(30)
            with join(same, "a", another) as standby:
                until(lambda: standby.is_active)
                group.set_mappings({"b": range(4)})
                until(lambda: not standby.is_active)
                assert not another.entered.wait(ACK_WAIT + 1)
                handler.go_on.set()
                assert handler.wait_count(1) == ["1"]
                publish(3, "2")
                assert another.wait_count(1) == ["2"]


def test_a_member_with_the_same_partitions_goes_on(group, handler, another):
    """
    A change that leaves a member's partitions alone does not interrupt it.
    """
    group.add_members("a", "b")
    with join(group, "a", handler) as first, join(group, "b", another) as second:
        until(lambda: first.partitions and second.partitions)
        group.set_mappings({"a": [0], "b": [1, 2, 3]})
        until(lambda: second.partitions == (1, 2, 3))
        joins = first.statistics().joins
        group.set_mappings({"a": [0], "b": [1, 2], "c": [3]})
        until(lambda: second.partitions == (1, 2))
        assert first.statistics().joins == joins


def test_a_consumer_that_was_deleted_is_made_again(js, group, publish, handler):
    """
    A member whose consumer is deleted goes on, with and without a message in progress.
    """
    group.add_members("a")
    buffer = js.stream(group.buffer_name)
    with join(group, "a", handler) as consumption:
        until(lambda: consumption.is_active)
        buffer.delete_consumer("a")
        until(lambda: consumption.statistics().joins == 2)
        publish(0, "1")
        handler.wait_count(1)
        handler.hold()
        publish(0, "2")
        assert handler.entered.wait(30)
        buffer.delete_consumer("a")
        handler.go_on.set()
        # Its acknowledgement was lost, so it comes twice.
        assert handler.wait_count(3) == ["1", "2", "2"]
        # The counts go on.
        until(lambda: consumption.statistics().handled == 3)
        assert consumption.error is None


def test_a_consumer_that_another_program_changed_is_found(js, group, monkeypatch, handler):
    """
    If the consumer has other filters than the member's, the member waits and makes it again.
    """
    monkeypatch.setattr("jetsync_groups.consumption.CHECK", 0.1)
    group.add_members("a")
    with join(group, "a", handler) as consumption:
        until(lambda: consumption.is_active)
        consumer = js.stream(group.buffer_name).consumer("a")
        wanted = consumer.cached_info.config.filter_subjects
        js.stream(group.buffer_name).update_consumer("a", filter_subjects=["0.>"])
        until(lambda: consumption.statistics().joins == 2 and consumption.is_active)
        assert consumer.info().config.filter_subjects == wanted


def test_the_stream_of_the_group_may_come_back(js, orders, group, publish, handler):
    """
    If the group's stream is deleted, members wait until it is created again.
    """
    group.add_members("a")
    with join(group, "a", handler) as consumption:
        until(lambda: consumption.is_active)
        config = js.stream(group.buffer_name).config
        js.delete_stream(group.buffer_name)
        until(lambda: not consumption.is_active)
        js.create_stream(config)
        publish(0)
        handler.wait_count(1)
        assert consumption.error is None


@pytest.mark.parametrize("way", ["delete", "purge", "group"])
def test_deletion_of_the_group_ends_members(js, orders, group, handler, way):
    """
    A deletion and a purge of the document end members without an error.
    """
    group.add_members("a")
    with join(group, "a", handler) as consumption:
        until(lambda: consumption.is_active)
        if way == "group":
            group.delete()
        else:
            getattr(js.key_value("elastic-consumer-groups"), way)(f"{orders.name}.g")
        assert consumption.wait(timeout=30)
        assert consumption.error is None
        assert consumption.partitions == ()


@pytest.mark.parametrize(
    ("document", "error"),
    [
        (b"{", GroupDocumentError),
        (b'{"max_members":5,"partitioning_filters":null}', GroupChangedError),
    ],
)
def test_other_changes_end_members_with_an_error(js, orders, group, handler, document, error):
    """
    Only members and mappings may change.
    """
    group.add_members("a")
    with join(group, "a", handler) as consumption:
        until(lambda: consumption.is_active)
        js.key_value("elastic-consumer-groups").put(f"{orders.name}.g", document)
        assert consumption.wait(timeout=30)
        assert isinstance(consumption.error, error)


def test_two_processes_of_one_member(nats_server, orders, group, publish, handler, another):
    """
    One of them gets the messages. When it closes, the other one takes over at once.
    """
    group.add_members("a")
    with jetsync.connect(nats_server.url) as client:
        same = elastic_group(client.jetstream().stream(orders.name), "g")
        # The server would wait longer for a process that is silent than this test does.
        with join(group, "a", handler, ack_wait=60) as first:
            publish(0, "1")
            handler.wait_count(1)
            with join(same, "a", another, ack_wait=60):
                publish(0, "2")
                handler.wait_count(2)
                first.close()
                assert first.wait(timeout=30)
                publish(0, "3")
                assert another.wait_count(1) == ["3"]
    assert len(handler.messages) == 2


def test_step_down_moves_messages_to_another_process(group, publish, handler, another):
    """
    After a step down, another consumption of the member gets the messages.
    """
    group.add_members("a")
    with join(group, "a", handler):
        publish(0, "1")
        handler.wait_count(1)
        with join(group, "a", another) as second:
            until(lambda: second.is_active)
            group.step_down("a")
            for number in range(2, 30):
                publish(0, str(number))
            until(lambda: len(handler.messages) + len(another.messages) >= 29)
            # Whoever pulls first is pinned.
            assert len(handler.messages) + len(another.messages) == 29


def test_after_a_step_down_a_key_waits_for_the_running_handler(group, publish, handler, another):
    """
    With `max_ack_pending=1`, no process of the member gets a message while another one has one.
    """
    group.add_members("a")
    handler.hold()
    with join(group, "a", handler):
        publish(0, "1")
        assert handler.entered.wait(30)
        with join(group, "a", another) as second:
            until(lambda: second.is_active)
            group.step_down("a")
            publish(0, "2")
            assert not another.entered.wait(ACK_WAIT + 0.5)
            handler.go_on.set()
            until(lambda: len(handler.messages) + len(another.messages) == 2)
            assert handler.wait_count(1)[0] == "1"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_the_order_of_a_key_survives_failures(group, publish, handler):
    """
    With `max_ack_pending=1`, messages wait for one that failed.
    """
    group.add_members("a")
    handler.error = ValueError("not now")
    for number in range(3):
        publish(1, str(number))
    with join(group, "a", handler) as consumption:
        handler.wait_count(1)
        handler.error = None
        assert handler.wait_count(4) == ["0", "0", "1", "2"]
        group.set_mappings({"a": range(3), "b": [3]})
        until(lambda: consumption.partitions == (0, 1, 2))
    assert consumption.statistics().failures == 1
    assert consumption.statistics().handled == 3


def test_close_waits_for_no_handler_and_wait_does(group, publish, handler):
    """
    `close` returns while the handler runs, whose message is acknowledged.
    """
    group.add_members("a")
    handler.hold()
    consumption = join(group, "a", handler)
    publish(0)
    assert handler.entered.wait(30)
    consumption.close()
    assert not consumption.wait(timeout=0.3)
    assert not consumption.closed
    handler.go_on.set()
    assert consumption.wait(timeout=30)
    assert consumption.closed
    assert consumption.error is None
    assert handler.messages[0].is_acked
    assert "closed" in repr(consumption)


def test_no_thread_is_left(group, handler):
    """
    Neither `close` nor the end of the client leaves a thread of the member.
    """

    def threads():
        return [each.name for each in threading.enumerate() if "groups" in each.name]

    group.add_members("a")
    with join(group, "a", handler) as consumption:
        until(lambda: consumption.is_active)
        assert threads() == ["jetsync-groups-a"]
    until(lambda: threads() == [])


def test_a_closed_client_ends_the_member(nats_server, orders, group, handler):
    """
    The consumption ends without an error when its client is closed.
    """
    group.add_members("a")
    with jetsync.connect(nats_server.url) as client:
        mine = elastic_group(client.jetstream().stream(orders.name), "g")
        consumption = join(mine, "a", handler)
        until(lambda: consumption.is_active)
    assert consumption.wait(timeout=30)
    assert consumption.error is None


def test_a_client_that_gives_up_ends_the_member_with_an_error(orders, group, handler):
    """
    If the client cannot connect again, the consumption ends with this error.
    """
    with (
        DevServer() as server,
        jetsync.connect(server.url, reconnect_wait=0.02, max_reconnects=1) as client,
    ):
        stream = client.jetstream().create_stream("S", subjects=["s.*"], storage="memory")
        mine = create_elastic_group(stream, "g", max_members=1)
        mine.add_members("a")
        consumption = join(mine, "a", handler)
        until(lambda: consumption.is_active)
        server.stop()
        assert consumption.wait(timeout=30)
        assert isinstance(consumption.error, jetsync.ConnectionClosedError)


def test_a_member_continues_after_lost_connections(nats_server, orders, group, publish, handler):
    """
    A member follows changes and handles messages of a time without a connection.
    """
    group.add_members("a", "b")
    with (
        CutProxy(nats_server.url) as proxy,
        jetsync.connect(proxy.url, reconnect_wait=0.02) as client,
    ):
        mine = elastic_group(client.jetstream().stream(orders.name), "g")
        with join(mine, "a", handler) as consumption:
            until(lambda: consumption.is_active)
            for number in range(3):
                proxy.cut()
                publish(0, str(number))
            group.set_mappings({"a": [0, 1, 2, 3]})
            proxy.cut()
            publish(3, "3")
            until(lambda: len({message.data for message in handler.messages}) == 4)
            assert consumption.partitions == (0, 1, 2, 3)
            assert consumption.statistics().handled >= 4


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_handler_that_wants_to_end_the_program(group, publish):
    """
    A SystemExit ends the consumption, which shows it.
    """

    def leave(message):
        raise SystemExit(3)

    group.add_members("a")
    publish(0)
    with join(group, "a", leave) as it:
        assert it.wait(timeout=30)
        assert isinstance(it.error, SystemExit)


@pytest.mark.parametrize("options", [{"ack_wait": 1}, {"ack_wait": 10**6}, {"max_ack_pending": 0}])
def test_options_of_a_member_are_checked(group, options):
    """
    A wrong value is refused when the member joins.
    """
    with pytest.raises(jetsync.InvalidArgumentError):
        group.join("a", **options)
    with pytest.raises(jetsync.InvalidTypeError):
        group.join("a", ack_wait="5")
    with pytest.raises(jetsync.InvalidTypeError):
        group.join("a").consume(None)
    with pytest.raises(jetsync.InvalidArgumentError):
        group.join("a").consume(print, max_messages=1)


def test_a_handler_whose_call_would_run_nothing_is_refused(group):
    """
    Its messages would be acknowledged.
    """

    async def later(message):
        """Is never awaited."""

    class Later:
        async def __call__(self, message):
            """Is never awaited."""

    def stepwise(message):
        yield message

    for handler in (later, Later(), stepwise):
        with pytest.raises(jetsync.InvalidTypeError, match="handler must be"):
            group.join("a").consume(handler)


def test_a_handler_may_close_but_not_wait(group, publish):
    """
    A handler that would wait for itself gets an error.
    """
    found, errors = [], []

    def handle(message):
        found[0].close()
        try:
            found[0].wait()
        except jetsync.ConflictingUseError as error:
            errors.append(error)

    group.add_members("a")
    with join(group, "a", handle) as consumption:
        found.append(consumption)
        publish(0)
        assert consumption.wait(timeout=30)
    assert len(errors) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_forked_child_cannot_use_the_consumption(group, handler):
    """
    In a child, `wait` raises an error instead of waiting for a thread that does not exist.
    """
    group.add_members("a")
    with join(group, "a", handler) as consumption:
        until(lambda: consumption.is_active)
        child = os.fork()
        if not child:
            code = 1
            try:
                consumption.close()
                consumption.wait()
            except jetsync.ForkedProcessError:
                code = 0
            finally:
                os._exit(code)
        assert os.waitpid(child, 0)[1] == 0
        assert not consumption.closed
