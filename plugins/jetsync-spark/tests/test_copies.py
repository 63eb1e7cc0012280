"""
Copies: messages of one stream, with their headers, written to another one.
"""

import pytest
from streams_to_read import asked, numbered, part_of
from writing import in_task, payloads, plan_for, rows_of, run

import jetsync
from jetsync_spark.common.errors import RowError
from jetsync_spark.read.range_reader import RangeReader
from jetsync_spark.read.tables import STREAM_COLUMNS, Table
from jetsync_spark.write import partition
from jetsync_spark.write.columns import Columns

types = pytest.importorskip("pyspark.sql.types")

HEADERS = types.MapType(types.StringType(), types.ArrayType(types.StringType()))


def read(js, stream, *, ledger):
    """
    Return the record batches of a stream, with headers.
    """
    schema = (
        types.StructType()
        .add("subject", types.StringType())
        .add("data", types.BinaryType())
        .add("headers", HEADERS)
    )
    table = Table(schema, STREAM_COLUMNS)
    pages = RangeReader(stream, part_of(js, stream), asked(stream)).pages()
    return [table.of_page(page, stream.name, ledger=ledger) for page in pages]


def copy(server, js, source, target, *, ledger=False, **options):
    """
    Write the messages of a stream to another one, under one subject.
    """
    batches = [batch.select(["data", "headers"]) for batch in read(js, source, ledger=ledger)]
    columns = Columns(subject=None, constant=f"{target.name}.x")
    plan = plan_for(server, target.name, columns=columns, **options)
    with in_task(query="copy", batch=0):
        return partition.write_batches(plan, batches)


def with_commands(name):
    """
    Return messages with headers that a server obeys.
    """
    message = jetsync.OutboundMessage
    return [
        message(f"{name}.a", b"id", {"k": "v"}, msg_id="one"),
        message(f"{name}.b", b"ttl", ttl=3600),
        message(f"{name}.c", b"expect", expect=jetsync.Expect(last_subject_sequence=0)),
        message(f"{name}.d", b"rollup", {"Nats-Rollup": "sub"}),
    ]


@pytest.fixture
def copied(js):
    """
    A stream for copies that would obey such headers.
    """
    settings = {"allow_atomic": True, "allow_msg_ttl": True, "allow_rollup_hdrs": True}
    with numbered(js, 0, **settings) as stream:
        js.update_stream(
            stream.name,
            subjects=[f"{stream.name}.>", f"ledger.{stream.name}.>"],
            storage="memory",
            allow_direct=True,
            **settings,
        )
        yield stream


@pytest.mark.parametrize("to", ["atleastonce", "atomic", "exactlyonce"])
@pytest.mark.parametrize("written", ["atleastonce", "atomic", "exactlyonce"])
def test_messages_of_a_writer(nats_server, js, target, copied, written, to):
    """
    In each mode, the copy has neither the headers of atomic batches nor messages of the ledger.
    """
    rows = rows_of(target.name, 25)
    run(plan_for(nats_server, target.name, mode=written), rows)

    done = copy(nats_server, js, target, copied, mode=to)

    assert (done.rows, done.stored) == (25, 25)
    assert payloads(copied) == [data for _, data in rows]


@pytest.mark.parametrize("to", ["atleastonce", "atomic", "exactlyonce"])
def test_commands_to_the_server(nats_server, js, copied, to):
    """
    A copy repeats none of the commands in the original headers, and can be made twice.
    """
    with numbered(js, 0, allow_msg_ttl=True, allow_rollup_hdrs=True) as source:
        js.publish_many(with_commands(source.name))
        for count in (4, 8):
            copy(nats_server, js, source, copied, mode=to, **_named(to, count))
            assert len(payloads(copied)) == count

    found = list(copied.scan(subject=f"{copied.name}.x"))
    assert dict(found[0].headers)["k"] == "v"
    assert all("ttl" not in name.lower() for message in found for name in message.headers)


def _named(mode, count):
    return {"write_id": f"copy-{count}"} if mode == "exactlyonce" else {}


def test_a_bucket_with_purged_keys(nats_server, js, copied, unique):
    """
    The marker of a purge removes nothing from the copy.
    """
    bucket = js.create_key_value(unique, history=5)
    try:
        bucket.put("a", b"1")
        bucket.put("b", b"2")
        bucket.purge("a")
        bucket.put("c", b"3")

        copy(nats_server, js, js.stream(f"KV_{unique}"), copied)
    finally:
        js.delete_key_value(unique)

    assert payloads(copied) == [b"2", b"", b"3"]


def test_messages_of_a_ledger_are_refused(nats_server, js, target, copied):
    """
    A reader that includes the ledger gets an error, because readers of the copy would skip these
    messages.
    """
    run(plan_for(nats_server, target.name, mode="exactlyonce"), rows_of(target.name, 5))

    with pytest.raises(RowError, match=r"row 5 .* header Jetsync-Ledger .* without includeLedger"):
        copy(nats_server, js, target, copied, ledger=True)
