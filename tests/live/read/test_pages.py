"""
Direct reads over many pages: while others write and delete, while servers stall and connections
are lost.
"""

from __future__ import annotations

import gc
import json
import random
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

import jetsync
from helpers.streams import change_creation
from helpers.waiting import CLUSTER_CLIENT, at_some_pace, blocked, eventually, timed
from jetsync._api.context import Context
from jetsync._io.mailbox import Mailbox
from jetsync.devserver import DevServer
from jetsync.read import pages
from jetsync.read.last import LastPlan
from jetsync.read.pages import PageReader, ReadPlan
from jetsync.testing import CutProxy
from jetsync.values.frame import FrameRun
from jetsync.values.stored import messages_of

PAGED = ["2.11.11", "2.12.8", "2.14.6"]


@pytest.fixture(params=[*PAGED, None])
def any_client(request, server_for, nats_server):
    """
    A client of each server version that supports pages.
    """
    server = nats_server if request.param is None else server_for(request.param)
    with jetsync.connect(server.url) as client:
        yield client


def make(client, name, count, *, size=16, subjects=1, **config):
    """
    Create a stream with *count* messages, whose payloads begin with their sequence.
    """
    stream = client.jetstream().create_stream(
        name,
        subjects=[f"{name}.>"],
        **{"storage": "memory", "allow_direct": True, **config},
    )
    write(client, name, range(1, count + 1), size=size, subjects=subjects)
    return stream


def write(client, name, numbers, *, size=16, subjects=1):
    """
    Publish messages with these numbers.
    """
    client.jetstream().publish_many(
        (f"{name}.{number % subjects:05d}", (b"%d " % number).ljust(size, b"."))
        for number in numbers
    )


def numbers(messages):
    """
    List the numbers of messages, which are their sequences too.
    """
    found = []
    for message in messages:
        assert int(message.data.split(b" ")[0]) == message.sequence
        found.append(message.sequence)
    return found


@contextmanager
def paused(server):
    """
    Keep a server from answering during the block.
    """
    server.pause()
    try:
        yield
    finally:
        server.resume()


def take_all(scan, came):
    """
    Append the sequences to a list, so that those before an error are seen.
    """
    for message in scan:
        came.append(message.sequence)


def subscriptions(client):
    """
    Count the client's subscriptions.
    """
    return client.statistics().subscriptions


@pytest.mark.versions
class TestScan:
    def test_many_pages(self, any_client, unique):
        """
        Pages of 1,000 messages and of 64 KiB yield 2,500 messages once and in order.
        """
        stream = make(any_client, unique, 2500, size=100)
        scan = stream.scan(page=1000, max_bytes=64 << 10)
        assert numbers(scan) == [*range(1, 2501)]
        assert scan.last_sequence == 2500
        assert numbers(stream.scan(start=700, end=1900, page=64)) == [*range(700, 1901)]
        assert numbers(stream.scan(start=2400, end=9999)) == [*range(2400, 2501)]
        assert numbers(stream.scan(start=2501)) == []
        assert numbers(stream.scan(end=0)) == []
        since = stream.get_message(2000).timestamp_ns
        assert numbers(stream.scan(start_time=since, page=100)) == [*range(2000, 2501)]
        stream.delete()

    @pytest.mark.parametrize(
        ("options", "batches"),
        [
            ({"subject": "*"}, [4000, 5500]),
            ({"subject": "00000"}, [4000, 4000, 1500]),
            ({}, [4000, 4000, 1500]),
            ({"subject": "*", "page": 3000}, [3000, 3000, 3000, 500]),
        ],
    )
    def test_pages_of_a_wildcard_grow(self, client, unique, options, batches):
        """
        For each page of a wildcard, the server looks at all subjects that match it. So the pages
        grow, unless the caller says how large they are.
        """
        stream = make(client, unique, 9500)
        if "subject" in options:
            options = {**options, "subject": f"{unique}.{options['subject']}"}
        with client.subscribe(f"$JS.API.DIRECT.GET.{unique}") as wire:
            client.flush()
            assert numbers(stream.scan(**options)) == [*range(1, 9501)]
            asked = [json.loads(wire.next(timeout=20).data)["batch"] for _ in batches]
            client.flush()
            assert wire.pending == 0
        assert asked == batches
        stream.delete()

    def test_deleted_messages_are_left_out_of_a_scan(self, any_client, unique):
        """
        Deleted messages are left out, wherever a page ends.
        """
        stream = make(any_client, unique, 12, subjects=2)
        for sequence in range(3, 9):
            stream.delete_message(sequence)
        assert numbers(stream.get_batch(5)) == [1, 2, 9, 10, 11]
        for page in range(1, 7):
            assert numbers(stream.scan(page=page)) == [1, 2, 9, 10, 11, 12]
            odd = numbers(stream.scan(page=page, subject=f"{unique}.00001"))
            assert odd == [1, 9, 11]
        stream.delete_message(12)
        stream.delete_message(11)
        assert numbers(stream.scan(page=2)) == [1, 2, 9, 10]
        stream.purge()
        assert numbers(stream.scan()) == []
        stream.delete()

    def test_others_write_and_delete_meanwhile(self, any_client, unique):
        """
        Messages published during a scan do not extend it. Messages deleted meanwhile are left out.
        """
        stream = make(any_client, unique, 300)
        scan = stream.scan(page=50)
        came = [next(scan).sequence for _ in range(60)]
        write(any_client, unique, range(301, 401))
        for sequence in (250, 270, 300):
            stream.delete_message(sequence)
        came += numbers(scan)
        assert came == [n for n in range(1, 301) if n not in {250, 270, 300}]
        assert scan.last_sequence == 299
        stream.delete()

    def test_all_is_purged_meanwhile(self, any_client, unique):
        """
        If the stream is purged, the scan ends after the page that was read ahead.
        """
        stream = make(any_client, unique, 300)
        scan = stream.scan(page=50)
        came = [next(scan).sequence]
        stream.purge()
        came += numbers(scan)
        assert came == [*range(1, len(came) + 1)]
        assert 50 <= len(came) <= 100
        stream.delete()

    def test_a_scan_of_an_empty_stream_requests_no_page(self, any_client, unique):
        """
        A scan of an empty stream requests no page and yields nothing.
        """
        stream = make(any_client, unique, 0)
        assert numbers(stream.scan()) == []
        assert numbers(stream.get_batch(5)) == []
        assert numbers(stream.get_last_for([">"])) == []
        stream.delete()


class Unchanged:
    """
    A plugin that returns each message as it is.
    """

    @jetsync.hookimpl
    def jetsync_message_received(self, message):
        return message


class TestPages:
    @pytest.mark.versions
    def test_each_page_is_one_answer(self, any_client, unique):
        """
        Each page has the messages of one request, and all pages together those of a scan.
        """
        stream = make(any_client, unique, 250, subjects=2)
        stream.delete_message(120)
        pages = list(stream.scan(page=100).pages())
        assert [len(page) for page in pages] == [100, 100, 49]
        messages = [message for page in pages for message in page]
        assert messages == list(stream.scan())
        (page,) = stream.scan(start=10, end=15, subject=f"{unique}.00001").pages()
        assert page.sequences == [11, 13, 15]
        assert page.subjects == [f"{unique}.00001"] * 3
        assert [data.split()[0] for data in page.data] == [b"11", b"13", b"15"]
        assert page.timestamps_ns == [stream.get_message(n).timestamp_ns for n in (11, 13, 15)]
        assert list(stream.scan(start=251).pages()) == []
        stream.delete()

    def test_the_end_of_a_page_comes_alone(self, client, unique, monkeypatch):
        """
        A page has no message of the next one, however the network splits the answers.
        """
        stream = make(client, unique, 25)

        def one_at_a_time(box):
            run = box.frames.popleft()
            if len(run) > 1:
                box.frames.appendleft(FrameRun(run.subject, run.data, run.bounds[3:]))
            return [FrameRun(run.subject, run.data, run.bounds[:3])]

        monkeypatch.setattr(Mailbox, "drain", one_at_a_time)
        assert [len(page) for page in stream.scan(page=10).pages()] == [10, 10, 5]

    @pytest.mark.parametrize("plugins", [[], [Unchanged()]], ids=["", "with a plugin"])
    def test_an_arrow_table_has_the_rest_of_a_scan(self, nats_server, unique, plugins):
        """
        A table has the rest of a scan, and a reader has one batch for each page.
        """
        pa = pytest.importorskip("pyarrow")
        with jetsync.connect(nats_server.url, plugins=plugins) as client:
            stream = make(client, unique, 25)
            scan = stream.scan(page=10)
            first = next(scan.pages())
            table = scan.to_arrow(["sequence", "subject", "data", "headers"])
            assert isinstance(table, pa.Table)
            assert table["sequence"].to_pylist() == [*range(11, 26)]
            assert first.to_arrow(["sequence"])["sequence"].to_pylist() == [*range(1, 11)]
            messages = list(stream.scan(start=11))
            assert table["data"].to_pylist() == [message.data for message in messages]
            assert table["subject"].to_pylist() == [message.subject for message in messages]
            batches = stream.scan(page=10).to_batches()
            assert batches.schema.names == ["subject", "data", "sequence", "timestamp"]
            assert [len(batch) for batch in batches] == [10, 10, 5]
            assert len(stream.scan(start=26).to_arrow()) == 0
            stream.delete()

    def test_a_reader_is_one_page_ahead(self, client, unique):
        """
        A reader requests the next page, and no more, so memory does not grow with the stream.
        """
        pytest.importorskip("pyarrow")
        stream = make(client, unique, 50)
        with client.subscribe(f"$JS.API.DIRECT.GET.{unique}") as requests:
            reader = stream.scan(page=10).to_reader(["subject", "sequence"])
            for batch, asked in ((1, 2), (2, 3)):
                assert reader.read_next_batch()["sequence"].to_pylist()[0] == 10 * batch - 9
                client.flush()
                assert requests.pending == asked
            assert [len(batch) for batch in reader] == [10, 10, 10]
        stream.delete()

    def test_the_headers_of_a_table(self, client, unique):
        """
        The tables of a scan and of a page have the headers that the messages were published with.
        """
        pytest.importorskip("pyarrow")
        stream = make(client, unique, 1)
        sent = [
            {"A": "1", "B": ["x", "y"], "Nats-Expected-Stream": unique},
            None,
            {"\u00fc": "\u20ac", "C": ""},
            {"Nats-Stream": "x", "Nats-Subject": "fake"},
        ]
        for number, headers in enumerate(sent):
            client.jetstream().publish(f"{unique}.h{number}", b"x", headers=headers)
        columns = ["subject", "headers"]
        (page,) = stream.scan(start=2).pages()
        for table in (stream.scan(start=2).to_arrow(columns), page.to_arrow(columns)):
            rows = dict(zip(*table.to_pydict().values(), strict=True))
            assert list(rows) == [f"{unique}.h{number}" for number in range(4)]
            for number, headers in enumerate(sent):
                expected = jetsync.Headers(headers).to_dict()
                assert dict(rows[f"{unique}.h{number}"]) == expected
        stream.delete()

    def test_an_error_of_a_reader(self, client, unique):
        """
        A reader of batches raises the error that ends the scan, after what has arrived.
        """
        pytest.importorskip("pyarrow")
        stream = make(client, unique, 1000)
        batches = stream.scan(page=100, timeout=5.0).to_batches()
        assert len(next(batches)) == 100
        stream.delete()
        with pytest.raises((jetsync.StreamNotFoundError, jetsync.NotSupportedError)):
            list(batches)

    def test_an_error_comes_last(self, client, unique):
        """
        Messages that arrived before an error are yielded before it is raised.
        """
        stream = make(client, unique, 1000)
        pages = stream.scan(page=100, timeout=5.0).pages()
        assert next(pages).sequences == [*range(1, 101)]
        stream.delete()
        rest = []
        with pytest.raises((jetsync.StreamNotFoundError, jetsync.NotSupportedError)):
            rest.extend(pages)
        # One or two pages may have been in flight.
        assert [len(page) for page in rest] in ([], [100], [100, 100])

    def test_one_way_at_a_time(self, client, unique):
        """
        A scan is read message by message or page by page, not both.
        """
        stream = make(client, unique, 5)
        before = subscriptions(client)
        scan = stream.scan(page=2)
        assert len(next(scan.pages())) == 2
        with pytest.raises(jetsync.ConflictingUseError):
            next(scan)
        assert [len(page) for page in scan.pages()] == [2, 1]
        scan = stream.scan(page=2)
        assert next(scan).sequence == 1
        with pytest.raises(jetsync.ConflictingUseError):
            scan.pages()
        scan.close()
        with stream.scan(page=2) as scan:
            pages = scan.pages()
            next(pages)
        assert list(pages) == []
        assert subscriptions(client) == before
        stream.delete()

    def test_plugins_see_each_message(self, nats_server, unique):
        """
        A page contains the messages that plugins returned.
        """

        class Shouting:
            @jetsync.hookimpl
            def jetsync_message_received(self, message):
                return jetsync.StoredMessage(
                    "X", message.subject, message.sequence, 0, data=message.data.upper()
                )

        with jetsync.connect(nats_server.url, plugins=[Shouting()]) as client:
            stream = make(client, unique, 3)
            client.jetstream().publish(f"{unique}.x", b"soft")
            (page,) = stream.scan(start=4).pages()
            assert (page.data, page.timestamps_ns, page.sequences) == ([b"SOFT"], [0], [4])
            stream.delete()


class TestBounds:
    def test_one_page_ahead_and_no_more(self, client, unique):
        """
        One page is read ahead, however slowly messages are taken.
        """
        stream = make(client, unique, 1000)
        with client.subscribe(f"$JS.API.DIRECT.GET.{unique}") as wire:
            client.flush()
            scan = stream.scan(page=100)
            for taken in range(1, 351):
                assert next(scan).sequence == taken
            client.flush()
            asked = 0
            while wire.next(timeout=0.1) is not None:
                asked += 1
            assert 4 <= asked <= 5
            scan.close()
        assert list(scan) == []
        stream.delete()

    def test_a_batch_may_be_more_than_a_page(self, client, unique):
        """
        A large batch takes several requests, each as large as a client can buffer.
        """
        stream = make(client, unique, 300, size=20_000)
        with client.subscribe(f"$JS.API.DIRECT.GET.{unique}") as wire:
            client.flush()
            batch = stream.get_batch(250)
            assert numbers(batch) == [*range(1, 251)]
            assert (batch.pending, batch.last_sequence) == (50, 250)
            client.flush()
            assert wire.next(timeout=5) is not None
            assert wire.next(timeout=5) is not None
        limit = 4_000_000
        batch = stream.get_batch(1000, max_bytes=limit)
        found = len(numbers(batch))
        size = 20_000 + len(f"{unique}.00000")
        assert found == -(-limit // size)
        assert batch.pending == 300 - found
        stream.delete()

    def test_a_slow_reader(self, client, unique):
        """
        Only waiting counts towards the timeout of a page, so a slow reader gets no error.
        """
        stream = make(client, unique, 200, size=15_000)

        def attempt(pace):
            came = []
            for message in stream.scan(page=100, timeout=1.5 * pace):
                came.append(message.sequence)
                if message.sequence % 100 == 1:
                    # Longer than the timeout of a page.
                    time.sleep(1.6 * pace)
            assert came == [*range(1, 201)]

        at_some_pace(attempt)
        assert client.statistics().reconnects == 0
        stream.delete()

    def test_every_way_of_leaving_a_read_ends_its_subscription(self, client, unique):
        """
        Every way of leaving a read ends its subscription.
        """
        stream = make(client, unique, 300)
        before = subscriptions(client)
        for read in (
            lambda: stream.scan(page=10),
            lambda: stream.get_batch(300, max_bytes=3000),
            lambda: stream.get_last_for([f"{unique}.>"], batch=1, up_to_sequence=9),
        ):
            # Taken to the end, and twice.
            whole = read()
            first = numbers(whole)
            assert first
            assert numbers(whole) == []
            assert subscriptions(client) == before
            # Not iterated at all.
            unused = read()
            del unused
            # Left by break, with and without a name.
            for _ in read():
                break
            with read() as named:
                for _ in named:
                    break
            gc.collect()
            assert subscriptions(client) == before
            # Closed before, in the middle, and twice.
            early = read()
            early.close()
            early.close()
            assert numbers(early) == []
            assert "ended" in repr(early)
            assert subscriptions(client) == before
        stream.delete()

    def test_other_threads_use_the_client_meanwhile(self, client, unique):
        """
        Eight threads scan and read many subjects on one client.
        """
        stream = make(client, unique, 2000, subjects=50)
        results = []

        def work(number):
            if number % 2:
                results.append(numbers(stream.scan(page=97)) == [*range(1, 2001)])
            else:
                found = numbers(stream.get_last_for([f"{unique}.>"], batch=7))
                results.append(found == [*range(1951, 2001)])

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert results == [True] * 8
        stream.delete()


@pytest.mark.versions
class TestManySubjects:
    def test_pages_of_one_snapshot(self, any_client, unique):
        """
        A read of 900 keys in 9 pages is a consistent snapshot while 20 keys change.
        """
        stream = make(any_client, unique, 900, subjects=900)
        batch = stream.get_last_for([f"{unique}.>"], batch=100)
        write(any_client, unique, range(1700, 1720), subjects=900)
        found = numbers(batch)
        assert found == [*range(1, 901)]
        assert (batch.up_to_sequence, batch.missing, batch.vanished) == (900, (), 0)
        stream.delete()

    @pytest.mark.parametrize("reread", [False, True])
    def test_a_stream_that_forgets(self, any_client, unique, reread):
        """
        If the stream keeps one message per subject, changed keys are listed or read again.
        """
        stream = make(any_client, unique, 900, subjects=900, max_msgs_per_subject=1)
        batch = stream.get_last_for([f"{unique}.>"], batch=100, reread=reread)
        names = tuple(f"{unique}.{number % 900:05d}" for number in range(1700, 1720))
        write(any_client, unique, range(1700, 1720), subjects=900)
        write(any_client, unique, [9000], subjects=9001)
        messages = list(batch)
        at_the_moment = [each for each in messages if each.sequence <= batch.up_to_sequence]
        assert len(at_the_moment) == 880
        assert not {message.subject for message in at_the_moment} & set(names)
        assert batch.vanished == 20
        if reread:
            assert (batch.later, batch.missing) == (names, ())
            assert [each.sequence for each in messages[880:]] == [*range(901, 921)]
        else:
            assert (batch.later, batch.missing) == ((), names)
            assert len(messages) == 880
        stream.delete()

    def test_a_subject_without_messages(self, any_client, unique):
        """
        A subject without any message left is listed as missing.
        """
        stream = make(any_client, unique, 30, subjects=30)
        batch = stream.get_last_for([f"{unique}.>"], batch=10)
        stream.delete_message(25)
        assert numbers(batch) == [n for n in range(1, 31) if n != 25]
        assert (batch.vanished, batch.missing) == (1, (f"{unique}.00025",))
        stream.delete()

    def test_a_long_list_of_subjects(self, client, unique, monkeypatch):
        """
        If a page of the list is not answered, only that page is requested again.
        """
        stream = make(client, unique, 1100, subjects=1100)
        api, offsets = Context.api, []

        def paged(context, endpoint, body, deadline, **names):
            answer = api(context, endpoint, body, deadline, **names)
            if "subjects_filter" in (body or ()):
                offset = body.get("offset", 0)
                offsets.append(offset)
                if offsets == [0, 400]:
                    raise jetsync.ConnectionLostError(sent=True)
                found = sorted(answer["state"]["subjects"])
                answer["state"]["subjects"] = dict.fromkeys(found[:400], 1)
            return answer

        monkeypatch.setattr(Context, "api", paged)
        assert sorted(numbers(stream.get_last_for(f"{unique}.>", timeout=60))) == [*range(1, 1101)]
        assert offsets == [0, 400, 400, 800]
        stream.delete()

    @pytest.mark.parametrize("patient", [True, False])
    def test_time_for_a_long_list(self, stream, patient):
        """
        Each page of the list has the default timeout, unless the caller gave one for all.
        """
        context = stream._context
        reader = PageReader(
            context, stream.name, ReadPlan(), name="test", seconds=60.0, patient=patient
        )
        reader.left = 50.0
        reader.info()
        assert reader.left < 50.0
        reader.info(">")
        assert (reader.left == 60.0) is patient

    def test_more_than_a_server_resolves(self, any_client, unique):
        """
        A wildcard with 1,100 keys is split into several requests, or rejected without *split*.
        """
        stream = make(any_client, unique, 1100, subjects=1100)
        for arguments in ({}, {"batch": 5}):
            with pytest.raises(jetsync.TooManySubjectsError):
                stream.get_last_for([f"{unique}.>"], split=False, **arguments)
        batch = stream.get_last_for([f"{unique}.>"])
        assert sorted(numbers(batch)) == [*range(1, 1101)]
        assert (batch.up_to_sequence, batch.missing) == (1100, ())
        batch = stream.get_last_for([f"{unique}.>"], batch=300, up_to_sequence=1050)
        assert sorted(numbers(batch)) == [*range(1, 1051)]
        time_ns = stream.get_message(1051).timestamp_ns
        batch = stream.get_last_for([f"{unique}.>"], up_to_time=time_ns)
        assert sorted(numbers(batch)) == [*range(1, 1051)]
        stream.delete()

    @pytest.mark.parametrize("keep", [-1, 5, 1])
    @pytest.mark.parametrize("by_name", [False, True])
    def test_subjects_created_after_the_snapshot(self, any_client, unique, keep, by_name):
        """
        A subject that is created during the read is not missing, if the stream's history shows
        that.
        """
        stream = make(any_client, unique, 1500, subjects=1500, max_msgs_per_subject=keep)
        subjects = [f"{unique}.>"]
        if by_name:
            subjects = [f"{unique}.{number:05d}" for number in range(1500)]
        batch = stream.get_last_for(subjects, batch=300, up_to_sequence=1100)
        # These were first written after sequence 1100, and are written again during the read.
        write(any_client, unique, range(2700, 2720), subjects=1500)
        assert sorted(numbers(batch)) == [*range(1, 1101)]
        if keep == 1:
            assert batch.missing == tuple(f"{unique}.{number:05d}" for number in range(1200, 1220))
        else:
            assert (batch.missing, batch.vanished) == ((), 0)
        stream.delete()

    @pytest.mark.parametrize("split", [False, True])
    @pytest.mark.parametrize(("count", "too_many"), [(1024, False), (1025, True), (2049, True)])
    def test_names_that_no_server_resolves_at_once(self, js, split, count, too_many):
        """
        A list that is too long for one request is split before the first request.
        """
        plan = LastPlan(
            context=js._context,
            stream="S",
            subjects=tuple(f"s.{number}" for number in range(count)),
            moment=None,
            up_to_time=None,
            finds_times=True,
            page=None,
            split=split,
            reread=False,
        )
        split_first = plan.engine.verdict == "too many"
        assert split_first is plan.engine.done is (split and too_many)

    def test_more_names_than_a_server_resolves(self, any_client, unique):
        """
        Names are split without listing the subjects. Those without a message are left out.
        """
        stream = make(any_client, unique, 1500, subjects=1500)
        names = [f"{unique}.{number:05d}" for number in range(1, 2600)]
        batch = stream.get_last_for(names)
        assert sorted(numbers(batch)) == [*range(1, 1500)]
        assert (batch.up_to_sequence, batch.missing, batch.vanished) == (1500, (), 0)
        batch = stream.get_last_for(names, up_to_sequence=1200)
        assert sorted(numbers(batch)) == [*range(1, 1201)]
        assert batch.missing == ()
        stream.delete()

    def test_values_that_fill_pages(self, any_client, unique):
        """
        Large values end pages by size, for which servers 2.11 report wrong counts.
        """
        stream = make(any_client, unique, 16, size=200_000, subjects=16)
        batch = stream.get_last_for([f"{unique}.>"])
        assert numbers(batch) == [*range(1, 17)]
        assert (batch.missing, batch.vanished, batch.pending) == ((), 0, 0)
        stream.delete()

    def test_a_future_sequence(self, any_client, unique):
        """
        A sequence in the future means the current one, for all pages of the read.
        """
        stream = make(any_client, unique, 20, subjects=20)
        batch = stream.get_last_for([f"{unique}.>"], batch=4, up_to_sequence=1000)
        write(any_client, unique, range(21, 41), subjects=20)
        assert numbers(batch) == [*range(1, 21)]
        assert batch.up_to_sequence == 20
        stream.delete()


class TestReplicas:
    """
    Servers that lag behind the leader, or have an older version.
    """

    @pytest.fixture
    def elsewhere(self, client):
        """
        A function that makes a context whose direct gets are answered by another stream, at random
        or always.
        """
        subscriptions, threads = [], []

        def elsewhere(real, other, *, always=True):
            wire = client.subscribe("ELSE.API.>")
            subscriptions.append(wire)
            chance = random.Random(1)

            def forward():
                for request in wire:
                    endpoint = request.subject.removeprefix("ELSE.API.")
                    if endpoint.startswith("DIRECT.GET") and (always or chance.random() < 0.5):
                        endpoint = f"DIRECT.GET.{other}"
                    if endpoint == f"STREAM.INFO.{other}":
                        answer = client.request(f"$JS.API.{endpoint}", timeout=20)
                        said = json.loads(answer.data)
                        # Servers offer no way to make a mirror lag.
                        said["config"] |= {"mirror": {"name": real}, "subjects": []}
                        client.publish(request.reply, json.dumps(said))
                        continue
                    client.publish(f"$JS.API.{endpoint}", request.data, reply=request.reply)

            threads.append(threading.Thread(target=forward, daemon=True))
            threads[-1].start()
            client.flush()
            return client.jetstream(prefix="ELSE.API").stream(real)

        yield elsewhere
        for wire in subscriptions:
            wire.close()
        for thread in threads:
            thread.join(20)

    @pytest.mark.parametrize("always", [True, False])
    def test_a_lagging_mirror(self, client, elsewhere, unique, always):
        """
        The leader is asked for messages that a lagging mirror does not have, so a scan is complete.
        """
        behind = make(client, f"{unique}-M", 45)
        real = make(client, unique, 60, subjects=2)
        stream = elsewhere(unique, behind.name, always=always)
        for page in (1, 10, 45, 100):
            assert numbers(stream.scan(page=page)) == [*range(1, 61)]
        assert numbers(stream.scan(start=50)) == [*range(50, 61)]
        assert numbers(stream.scan(end=52)) == [*range(1, 53)]
        since = real.get_message(47).timestamp_ns
        assert numbers(stream.scan(start_time=since)) == [*range(47, 61)]
        real.delete()
        behind.delete()

    @pytest.mark.clause("DG-39")
    @pytest.mark.versions
    def test_a_replica_is_too_old(self, client, unique):
        """
        The answer of a 2.10 server to a page request is recognised as none.
        """
        stream = make(client, unique, 3)
        found = []

        def old(request):
            # Server 2.10.26 answers any such request with the message at the sequence, and then
            # nothing.
            block = (
                f"NATS/1.0\r\nNats-Stream: {unique}\r\nNats-Subject: wrong\r\nNats-Sequence: 2"
                "\r\nNats-Time-Stamp: 2026-11-20T16:38:27Z\r\n\r\n"
            )
            headers = jetsync.Headers.parse(block.encode())[2]
            client.publish(request.reply, b"2 ", headers=headers)

        with client.subscribe("OLD.API.>") as wire:

            def serve():
                for request in wire:
                    endpoint = request.subject.removeprefix("OLD.API.")
                    if endpoint.startswith("DIRECT.GET"):
                        old(request)
                    else:
                        client.publish(f"$JS.API.{endpoint}", request.data, reply=request.reply)

            thread = threading.Thread(target=serve, daemon=True)
            thread.start()
            client.flush()
            there = client.jetstream(prefix="OLD.API").stream(unique)
            for read in (
                lambda: there.get_batch(3),
                lambda: there.get_last_for([f"{unique}.>"], batch=1, up_to_sequence=2),
                there.scan,
            ):
                with timed(0, 2), pytest.raises(jetsync.NotSupportedError):
                    found.extend(read())
        thread.join(20)
        assert found == []
        stream.delete()


class TestFaults:
    @pytest.fixture
    def proxied(self, nats_server, client, unique):
        """
        A stream of 2,000 messages of at least 100 bytes, read through a proxy.
        """
        made = make(client, unique, 2000, size=100, subjects=2000)
        with (
            CutProxy(nats_server.url) as proxy,
            jetsync.connect(proxy.url, reconnect_wait=0.01) as reader,
        ):
            yield proxy, reader, reader.jetstream().stream(unique)
        made.delete()

    @pytest.mark.parametrize("reset", [False, True])
    @pytest.mark.parametrize("read", ["scan", "get_batch", "get_last_for"])
    def test_the_connection_is_lost_in_the_middle(self, proxied, unique, read, reset):
        """
        The read continues after the last message, with the same snapshot.
        """
        proxy, reader, stream = proxied
        for after in (0, 1000, 60_000, 150_000):
            proxy.cut_after(to_client=after, reset=reset)
            if read == "scan":
                came = numbers(stream.scan(page=300))
            elif read == "get_batch":
                came = numbers(stream.get_batch(2000))
            else:
                batch = stream.get_last_for([f"{unique}.>"], batch=300)
                came = sorted(numbers(batch))
                assert (batch.up_to_sequence, batch.missing) == (2000, ())
            assert came == [*range(1, 2001)]
        eventually(lambda: reader.statistics().reconnects == 4)
        assert subscriptions(reader) == 1

    def test_the_connection_is_lost_and_does_not_come_back(self, proxied):
        """
        Messages that arrived are yielded, and then DisconnectedError is raised.
        """
        proxy, _, stream = proxied
        scan = stream.scan(page=300, timeout=5)
        next(scan)
        proxy.refuse()
        proxy.cut()
        came = []
        with timed(0.0, 8), pytest.raises(jetsync.DisconnectedError):
            take_all(scan, came)
        # How much of the page arrived before the cut depends on the proxy.
        assert came == [*range(2, len(came) + 2)]

    def test_a_read_without_a_connection_waits_for_its_whole_timeout(self, proxied):
        """
        The request before the first page waits for a connection as long as the read may take.
        """
        proxy, _, stream = proxied
        proxy.refuse()
        proxy.cut()
        with timed(2.4, 8), pytest.raises(jetsync.DisconnectedError) as caught:
            stream.scan(timeout=2.4)
        assert caught.value.timeout == 2.4

    def test_the_server_stalls(self, unique):
        """
        The read ends at its timeout, after all messages that arrived.
        """
        with DevServer() as server, jetsync.connect(server.url) as client:
            stream = make(client, unique, 1000)
            scan = stream.scan(page=100, timeout=2)
            came = [next(scan).sequence]
            # Not for 2 s after a timeout: the client would connect again.
            with paused(server):
                with timed(0.8, 5), pytest.raises(jetsync.RequestTimeoutError) as caught:
                    take_all(scan, came)
                assert caught.value.timeout == 2
                assert came == [*range(1, len(came) + 1)]
            # Otherwise, the client would still find the server silent, and connect again.
            client.flush()
            with paused(server), timed(0.8, 5), pytest.raises(jetsync.RequestTimeoutError):
                stream.get_batch(10, timeout=1)
            client.flush()
            with paused(server), timed(0.8, 5), pytest.raises(jetsync.RequestTimeoutError):
                stream.get_last_for([f"{unique}.>"], timeout=1)
            assert numbers(stream.scan()) == [*range(1, 1001)]
            assert subscriptions(client) == 1

    def test_ctrl_c_ends_a_read_that_can_be_repeated(self, unique):
        """
        Ctrl-C interrupts a waiting read, which releases its subscription and can be repeated.
        """

        def handler(*_):
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGALRM, handler)
        try:
            with DevServer() as server, jetsync.connect(server.url) as client:
                stream = make(client, unique, 300)
                scan = stream.scan(page=100)
                came = [next(scan).sequence]
                with paused(server):
                    signal.setitimer(signal.ITIMER_REAL, 0.3)
                    with timed(0, 4), pytest.raises(KeyboardInterrupt):
                        take_all(scan, came)
                with pytest.raises(jetsync.HandleClosedError, match="interrupted"):
                    next(iter(scan))
                assert subscriptions(client) == 1
                came += numbers(stream.scan(start=came[-1] + 1))
                assert came == [*range(1, 301)]
        finally:
            signal.signal(signal.SIGALRM, before)

    @pytest.mark.parametrize("read", ["scan", "pages", "get_last_for"])
    def test_closing_a_read_wakes_the_thread_that_waits_for_a_page(self, unique, read):
        """
        Closing a read ends the iteration of a thread that waits for its next page.
        """
        with DevServer() as server, jetsync.connect(server.url) as client:
            stream = make(client, unique, 300, subjects=300)
            made = stream.scan(page=100)
            if read == "get_last_for":
                made = stream.get_last_for(f"{unique}.>", batch=100)
            messages = made.pages() if read == "pages" else iter(made)
            next(messages)
            with paused(server), ThreadPoolExecutor(1) as pool:
                rest = pool.submit(list, messages)
                blocked(pool)
                with timed(0, 1):
                    made.close()
                    rest.result(20)
            assert list(messages) == []
            made.close()
            client.flush()
            assert subscriptions(client) == 1

    def test_closed_while_messages_are_made(self, client, unique, monkeypatch):
        """
        A signal handler that closes a scan ends it at once, also while a run is split.
        """
        stream = make(client, unique, 100)
        scan = stream.scan()

        def closed_meanwhile(run):
            scan.close()
            return messages_of(run)

        monkeypatch.setattr(pages, "messages_of", closed_meanwhile)
        assert list(scan) == []
        stream.delete()

    def test_closing_a_read_wakes_a_thread_without_a_connection(self, proxied):
        """
        Closing a read ends the iteration of a thread that waits for a connection.
        """
        proxy, reader, stream = proxied
        scan = stream.scan(page=100, timeout=20)
        next(scan)
        proxy.close()
        with ThreadPoolExecutor(1) as pool:
            rest = pool.submit(list, scan)
            eventually(lambda: not reader.is_connected)
            blocked(pool)
            with timed(0, 1):
                scan.close()
                rest.result(30)

    def test_a_second_thread_of_a_read_gets_an_error(self, unique):
        """
        A thread that iterates while another one waits for the next page gets an error.
        """
        with DevServer() as server, jetsync.connect(server.url) as client:
            stream = make(client, unique, 300)
            scan = stream.scan(page=100)
            came = [next(scan).sequence]
            with paused(server), ThreadPoolExecutor(1) as pool:
                rest = pool.submit(numbers, scan)
                blocked(pool)
                with pytest.raises(jetsync.ConflictingUseError, match="of this scan"):
                    next(scan)
                server.resume()
                came += rest.result(20)
            assert came == [*range(1, 301)]

    def test_the_stream_is_deleted_meanwhile(self, client, unique):
        """
        A scan of a deleted stream raises StreamNotFoundError at once.
        """
        stream = make(client, unique, 1000)
        scan = stream.scan(page=10)
        next(scan)
        stream.delete()
        with timed(0, 2), pytest.raises(jetsync.StreamNotFoundError):
            list(scan)
        assert subscriptions(client) == 1

    @pytest.mark.parametrize("by_pages", [False, True])
    @pytest.mark.parametrize("again", [0, 150, 300])
    def test_the_stream_is_recreated_meanwhile(self, client, unique, again, by_pages):
        """
        A scan ends with an error, and hands out no message of the new stream.
        """
        stream = make(client, unique, 300)
        scan = stream.scan(page=100)
        came = []

        def take_rest():
            if by_pages:
                for page in scan.pages():
                    came.extend(page)
            else:
                came.extend(scan)

        if not by_pages:
            came.append(next(scan))
        stream.delete()
        client.jetstream().create_stream(
            unique, subjects=[f"{unique}.>"], storage="memory", allow_direct=True
        )
        client.jetstream().publish_many((f"{unique}.new", b"new") for _ in range(again))
        with pytest.raises(jetsync.StreamNotFoundError, match="another one has its name"):
            take_rest()
        assert not [message for message in came if message.data == b"new"]
        assert subscriptions(client) == 1
        # A new scan reads the new stream.
        assert len(list(stream.scan())) == again
        stream.delete()

    def test_the_state_of_the_stream(self, js, unique):
        """
        The stream object has the state that the scan asked for.
        """
        stream = js.create_stream(unique, subjects=[unique], allow_direct=True)
        js.publish_many((unique, b"") for _ in range(3))
        assert stream.cached_info.state.last_seq == 0

        stream.scan().close()

        assert stream.cached_info.state.last_seq == 3
        stream.delete()

    def test_messages_after_the_scan_began(self, client, unique):
        """
        A scan up to a later sequence reads messages that are stored meanwhile.
        """
        stream = make(client, unique, 250)
        scan = stream.scan(page=100, end=400)
        came = [next(scan).sequence]
        write(client, unique, range(251, 351))
        assert [*came, *numbers(scan)] == [*range(1, 351)]
        stream.delete()

    def test_an_end_before_the_start(self, client, unique):
        """
        A scan whose end lies before its start is rejected. An empty range is allowed.
        """
        stream = make(client, unique, 9)
        with pytest.raises(jetsync.InvalidArgumentError, match="end 2 lies before start 5") as no:
            stream.scan(start=5, end=2)
        assert no.value.argument == "end"
        assert list(stream.scan(start=5, end=4)) == []
        assert list(stream.scan(end=0)) == []
        stream.delete()

    def test_closing_the_client_ends_a_waiting_read(self, nats_server, client, unique):
        """
        Closing the client ends a waiting read with an error.
        """
        stream = make(client, unique, 1000)
        with jetsync.connect(nats_server.url) as reader:
            scan = reader.jetstream().stream(unique).scan(page=10)
            next(scan)
            reader.close()
            with timed(0, 2), pytest.raises(jetsync.ConnectionClosedError):
                list(scan)
        stream.delete()

    def test_a_scan_continues_after_a_restart(self, unique, tmp_path):
        """
        A scan continues after a restart of the server.
        """
        with (
            DevServer(store=tmp_path) as server,
            jetsync.connect(server.url, reconnect_wait=0.05) as client,
        ):
            stream = make(client, unique, 1000, storage="file")
            scan = stream.scan(page=100, timeout=20)
            came = [next(scan).sequence for _ in range(150)]
            server.kill()
            server.start()
            came += numbers(scan)
            assert came == [*range(1, 1001)]
            assert subscriptions(client) == 1

    @pytest.mark.versions
    @pytest.mark.parametrize("removed", ["nothing", "the last", "all"])
    def test_a_scan_survives_another_time_of_creation(self, unique, removed):
        """
        A scan continues if a server before 2.14 reports another time of creation for the stream.
        """
        with (
            DevServer("2.12.8") as server,
            jetsync.connect(server.url, reconnect_wait=0.05) as client,
        ):
            stream = make(client, unique, 300, storage="file")
            scan = stream.scan(page=50, end=400, timeout=20)
            came = [next(scan).sequence]
            if removed == "the last":
                stream.delete_message(300)
            elif removed == "all":
                stream.purge()
            change_creation(server, client.jetstream(), unique)
            write(client, unique, range(301, 351))
            came += numbers(scan)
        assert came[-50:] == [*range(301, 351)]
        if removed == "nothing":
            assert came == [*range(1, 351)]


class TestCluster:
    def test_the_leader_is_killed_under_a_scan(self, unique):
        """
        A scan waits for a new leader, repeats a lost request, and continues.
        """
        with (
            DevServer(cluster=3) as server,
            jetsync.connect(server.url, **CLUSTER_CLIENT) as client,
        ):
            stream = make(client, unique, 3000, storage="file", num_replicas=3)
            scan = stream.scan(page=100, timeout=40)
            came = [next(scan).sequence for _ in range(150)]
            server.kill(int(stream.info().cluster.leader.rpartition("-")[2]))
            came += numbers(scan)
            assert came == [*range(1, 3001)]
