"""
Counters on real servers.
"""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

import jetsync
from helpers.traffic import sent_nothing
from helpers.waiting import eventually

VERSIONS = ["2.12.8", "2.14.6", None]
"""Servers that have counters; None is the newest."""


@pytest.fixture
def counting(js, unique):
    """
    A stream with counters.
    """
    yield js.create_stream(
        unique,
        subjects=[f"{unique}.>"],
        allow_msg_counter=True,
        allow_direct=True,
        storage="memory",
    )
    js.delete_stream(unique)


class TestAdd:
    @pytest.mark.versions
    @pytest.mark.parametrize("version", VERSIONS)
    def test_increments_are_summed_exactly_on_every_server(
        self, server_for, nats_server, unique, version
    ):
        """
        Increments are summed exactly, and 0 is a valid increment.
        """
        server = nats_server if version is None else server_for(version)
        with jetsync.connect(server.url) as client:
            js = client.jetstream()
            stream = js.create_stream(
                unique, subjects=[f"{unique}.>"], allow_msg_counter=True, storage="memory"
            )
            counter = stream.counter(f"{unique}.hits")
            assert [counter.add(), counter.add(5), counter.add(-2), counter.add(0)] == [1, 6, 4, 4]
            assert counter.load() == 4
            big = 12_345_678_901_234_567_890_123_456
            assert counter.add(big) == big + 4
            assert counter.add(-2 * big) == 4 - big
            assert counter.load() == 4 - big
            assert stream.counter(f"{unique}.other").add(0) == 0
            js.delete_stream(unique)

    def test_increments_may_have_any_length(self, counting):
        """
        Numbers with more digits than Python converts by default are counted, too.
        """
        counter = counting.counter(f"{counting.name}.big")
        assert counter.add(10**5000) == 10**5000
        assert counter.add(1) == counter.load() == 10**5000 + 1

    def test_many_clients(self, nats_server, counting):
        """
        The server adds, so concurrent increments are not lost.
        """
        with jetsync.connect(nats_server.url) as other:
            abroad = other.jetstream().stream(counting.name)
            counters = [each.counter(f"{counting.name}.n") for each in (counting, abroad)] * 4
            with ThreadPoolExecutor(8) as pool:
                found = list(pool.map(lambda counter: [counter.add() for _ in range(25)], counters))
        assert sorted(value for values in found for value in values) == list(range(1, 201))

    def test_a_repeated_call(self, counting):
        """
        With a message id the increment counts once, and a repeated call returns the first result.
        """
        counter = counting.counter(f"{counting.name}.n")
        assert counter.add(3, msg_id="a") == 3
        assert counter.add(4) == 7
        assert counter.add(3, msg_id="a") == 3
        assert counter.load() == 7

    def test_a_repeated_call_of_a_short_memory(self, js, unique):
        """
        If the stream does not keep the first change, the repeated call returns the current value.
        """
        stream = js.create_stream(
            unique, subjects=[unique], allow_msg_counter=True, max_msgs_per_subject=1
        )
        counter = stream.counter(unique)
        counter.add(3, msg_id="a")
        counter.add(4)
        assert counter.add(3, msg_id="a") == 7
        js.delete_stream(unique)

    @pytest.mark.parametrize("value", [1.0, "1", None, True, 1.5])
    def test_an_increment_that_is_no_integer_sends_nothing(self, client, counting, value):
        """
        A value that is not an integer is refused before anything is sent.
        """
        before = client.statistics().bytes_out
        with pytest.raises(jetsync.InvalidTypeError):
            counting.counter(f"{counting.name}.n").add(value)
        assert sent_nothing(client, before)

    def test_wrong_subjects(self, counting):
        """
        Invalid subjects are refused, and so are subjects that the stream does not have.
        """
        for subject in ("", "a b", f"{counting.name}.*", f"{counting.name}.>"):
            with pytest.raises(jetsync.InvalidSubjectError):
                counting.counter(subject)
        with pytest.raises(jetsync.InvalidArgumentError, match="does not store subject"):
            counting.counter("elsewhere").add()

    def test_a_stream_without_counters_refuses_an_increment(self, js, stream):
        """
        A stream without counters refuses an increment, and nothing is stored.
        """
        counter = stream.counter(f"{stream.name}.n")
        for call in (counter.add, counter.load):
            js.publish(f"{stream.name}.n", b"4")
            with pytest.raises(jetsync.CounterDisabledError) as caught:
                call()
            assert (caught.value.err_code, caught.value.stream) == (10168, stream.name)
        assert stream.info().state.messages == 2

    @pytest.mark.parametrize("version", ["2.10.26", "2.11.11"])
    def test_nothing_is_sent_to_servers_without_counters(self, server_for, unique, version):
        """
        Older servers would store an increment like any other message, so nothing is sent.
        """
        with jetsync.connect(server_for(version).url) as client:
            js = client.jetstream()
            with pytest.raises(jetsync.NotSupportedError, match="allow_msg_counter"):
                js.create_stream(unique, subjects=[unique], allow_msg_counter=True)
            stream = js.stream(unique)
            with pytest.raises(jetsync.NotSupportedError, match=r"server 2\.12 or later"):
                stream.counter(unique).add()
            assert stream.info().state.messages == 0
            js.delete_stream(unique)

    def test_errors_of_the_server(self, js, counting):
        """
        Errors of increments that are published as plain messages have their own classes.
        """
        subject = f"{counting.name}.n"
        for data, headers, error, code in (
            (b"", {}, jetsync.CounterIncrementMissingError, 10169),
            (b"1", {"Nats-Incr": "+1"}, jetsync.CounterPayloadError, 10170),
            (b"", {"Nats-Incr": "1.5"}, jetsync.CounterIncrementInvalidError, 10171),
        ):
            with pytest.raises(error) as caught:
                js.publish(subject, data, headers=headers)
            assert caught.value.err_code == code
        assert js.publish(subject, headers={"Nats-Incr": "+7"}).value == 7


class TestLoad:
    @pytest.mark.parametrize("direct", [True, False])
    def test_a_missing_counter(self, js, counting, direct):
        """
        A missing counter is not found, which differs from 0.
        """
        counting.update(allow_direct=direct)
        counter = counting.counter(f"{counting.name}.n")
        for call in (counter.load, counter.entry):
            with pytest.raises(jetsync.MessageNotFoundError):
                call()

    def test_an_entry(self, counting):
        """
        An entry has the last change, its sequence and its time.
        """
        counter = counting.counter(f"{counting.name}.n")
        counter.add(5)
        counter.add(-7)
        entry = counter.entry()
        assert (entry.stream, entry.subject) == (counting.name, f"{counting.name}.n")
        assert (entry.value, entry.increment, entry.sequence, entry.sources) == (-2, -7, 2, {})
        assert entry.timestamp == counting.get_message(2).timestamp
        assert pickle.loads(pickle.dumps(entry)) == entry
        assert hash(entry) == hash(counter.entry())

    def test_reading_several_counters_returns_all_that_match(self, counting):
        """
        Reading several counters returns all that match the subjects, by subject.
        """
        for number in range(5):
            counting.counter(f"{counting.name}.{number % 2}.{number}").add(number)
        values = {subject: entry.value for subject, entry in counting.counters().items()}
        assert values == {f"{counting.name}.{n % 2}.{n}": n for n in range(5)}
        assert set(counting.counters(f"{counting.name}.1.*")) == {
            f"{counting.name}.1.1",
            f"{counting.name}.1.3",
        }
        assert counting.counters(f"{counting.name}.none") == {}

    def test_a_sum(self, js, counting, unique):
        """
        In a stream that sums others, an entry lists the sources of its value.
        """
        name = f"{unique}-sum"
        total = js.create_stream(
            name,
            subjects=[f"{name}.own"],
            allow_msg_counter=True,
            allow_direct=True,
            sources=[
                jetsync.StreamSource(
                    name=unique,
                    subject_transforms=[
                        jetsync.SubjectTransform(src=f"{unique}.*", dest=f"{name}.all")
                    ],
                )
            ],
        )
        counting.counter(f"{unique}.a").add(3)
        counting.counter(f"{unique}.b").add(10**20)
        counter = total.counter(f"{name}.all")

        def arrived():
            try:
                return counter.load() == 10**20 + 3
            except jetsync.MessageNotFoundError:
                return False

        eventually(arrived, 30)
        assert counter.entry().sources == {unique: {f"{unique}.a": 3, f"{unique}.b": 10**20}}
        with pytest.raises(jetsync.InvalidArgumentError):
            counter.add()
        assert total.counter(f"{name}.own").add(2) == 2
        js.delete_stream(name)

    def test_a_message_that_is_no_counter(self, js, stream):
        """
        A stream in which counters were allowed later may have other messages.
        """
        js.publish(f"{stream.name}.n", b"4")
        stream.cached_info.config.allow_msg_counter = True
        with pytest.raises(jetsync.ProtocolError, match=r"message 1 of .* is not a counter"):
            stream.counter(f"{stream.name}.n").load()

    def test_the_repr_names_the_counter(self, counting):
        """
        The repr names the counter.
        """
        counter = counting.counter(f"{counting.name}.n")
        assert repr(counter) == f"<Counter '{counting.name}.n' of stream '{counting.name}'>"
        assert (counter.subject, counter.stream_name) == (f"{counting.name}.n", counting.name)
