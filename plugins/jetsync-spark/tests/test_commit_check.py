"""
The check before a write is committed, without Spark.
"""

import attrs
import pytest
from requests_to_server import asked
from writing import plan_for, rows_of, run

import jetsync
from jetsync.devserver import DevServer
from jetsync_spark.common.task import Task
from jetsync_spark.write import commit_check
from jetsync_spark.write.columns import Columns
from jetsync_spark.write.commit_check import check_layout
from jetsync_spark.write.ledger import LayoutError
from jetsync_spark.write.options import EXACTLY_ONCE, WriteOptions
from jetsync_spark.write.plan import make_plan

pytestmark = pytest.mark.live

WIDE = 30
"""Partitions of the widest micro-batch."""


@pytest.fixture(
    params=[(True, False), (True, True), (False, False), (False, True)],
    ids=["direct", "direct-rollup", "leader", "leader-rollup"],
)
def stream(request, target):
    """
    A stream with and without direct gets and rollups.
    """
    direct, rollup = request.param
    target.update(allow_direct=direct, allow_rollup_hdrs=rollup)
    return target


@pytest.fixture
def plan(nats_server, stream):
    """
    A write with chunks of 10 rows.
    """
    return plan_for(nats_server, stream.name, mode=EXACTLY_ONCE, chunk_size=11)


def write(plan, batch, partitions, rows=10):
    """
    Write a micro-batch with some rows in each of these partitions.
    """
    for partition in partitions:
        run(
            plan,
            rows_of(plan.options.stream, rows, partition * 1000),
            partition=partition,
            batch=batch,
        )


def commit(plan, batch, partitions, *, has_rows=True):
    """
    Check a micro-batch with that many partitions, as the driver does.
    """
    check_layout(plan, Task(query="q", batch=batch), partitions, has_rows=has_rows)


def restarted(plan):
    """
    Return the plan of the same write in another process, which remembers nothing.
    """
    settings = attrs.evolve(plan.settings, connect_timeout=plan.settings.connect_timeout + 1)
    return attrs.evolve(plan, settings=settings)


def test_a_commit_after_a_wide_one_costs_as_many_requests_as_the_next(plan, client):
    """After a micro-batch with many partitions, each commit sends the same few requests."""
    write(plan, 0, range(WIDE))
    commit(plan, 0, WIDE)
    write(plan, 1, [0])
    commit(plan, 1, 1)
    found = []
    for batch in range(2, 6):
        write(plan, batch, [0], rows=1)
        found.append(asked(client, lambda batch=batch: commit(plan, batch, 1)))
    assert len({*map(len, found)}) == 1
    assert len(found[0]) <= 3


def test_the_first_commit_of_a_process_reads_the_ledger_at_once(plan, client):
    """A restarted driver needs few requests for the ledger of a wide micro-batch."""
    write(plan, 0, range(WIDE))
    write(plan, 1, [0])
    other = restarted(plan)
    found = asked(client, lambda: commit(other, 1, 1))
    if client.jetstream().stream(plan.options.stream).config.allow_direct:
        assert len(found) <= 8
    else:
        # Without direct gets, the leader is asked for each entry, but only once.
        assert len(found) <= WIDE + 8
    write(plan, 2, [0])
    assert len(asked(client, lambda: commit(other, 2, 1))) <= 3


def test_rows_of_an_earlier_run_are_found_after_other_commits(plan):
    """If an earlier run of a micro-batch had more partitions, its commit fails."""
    write(plan, 0, range(5))
    commit(plan, 0, 5)
    for batch in (1, 2):
        write(plan, batch, [0])
        commit(plan, batch, 1)
    write(plan, 3, [3])
    write(plan, 3, [0], rows=25)
    for _ in range(2):
        with pytest.raises(LayoutError, match=r"had stored 10 rows as partition 3.*twice"):
            commit(plan, 3, 1)


def test_a_repeated_micro_batch_is_checked_from_the_beginning(plan):
    """A micro-batch that is repeated with fewer partitions fails, though its first run passed."""
    write(plan, 0, range(5))
    commit(plan, 0, 5)
    write(plan, 1, range(2))
    commit(plan, 1, 2)
    with pytest.raises(LayoutError, match="rows as partition 1"):
        commit(plan, 1, 1)
    # An older checkpoint was restored.
    with pytest.raises(LayoutError, match="rows as partition 4"):
        commit(plan, 0, 4)


def test_an_older_checkpoint_was_restored(plan):
    """Entries of a later micro-batch than the one that commits are not forgotten."""
    write(plan, 0, range(5))
    commit(plan, 0, 5)
    write(plan, 3, [4])
    commit(plan, 1, 2, has_rows=False)
    commit(plan, 2, 2, has_rows=False)
    with pytest.raises(LayoutError, match="rows as partition 4"):
        commit(plan, 3, 2)


@pytest.mark.parametrize("remembers", [True, False])
def test_an_older_checkpoint_was_restored_and_has_rows(plan, remembers):
    """Rows of the micro-batches in between do not hide entries of a later one."""
    write(plan, 0, range(5))
    commit(plan, 0, 5)
    if remembers:
        write(plan, 1, [0])
        commit(plan, 1, 1)
    write(plan, 3, [4])
    write(plan, 2, [0])
    commit(plan, 2, 1)
    write(plan, 3, [0])
    with pytest.raises(LayoutError, match="rows as partition 4"):
        commit(plan, 3, 1)


def test_an_entry_is_replaced_during_the_check(nats_server, target, monkeypatch):
    """If a rollup has removed the entry that the check would read, it reads the new one."""
    target.update(allow_direct=True, allow_rollup_hdrs=True)
    plan = plan_for(nats_server, target.name, mode=EXACTLY_ONCE, chunk_size=11)
    write(plan, 0, range(5))
    subjects = commit_check.ledger_subjects

    def then_replaced(*arguments):
        found = subjects(*arguments)
        write(plan, 1, [3])
        return found

    monkeypatch.setattr(commit_check, "ledger_subjects", then_replaced)
    with pytest.raises(LayoutError, match="rows as partition 3"):
        commit(plan, 1, 1)


def test_a_process_that_did_not_commit_the_last_micro_batches(plan):
    """A process that commits again after others did finds the rows of an earlier run."""
    other = restarted(plan)
    write(plan, 0, range(5))
    commit(plan, 0, 5)
    write(plan, 1, [0])
    commit(plan, 1, 1)
    for batch in (2, 3):
        write(plan, batch, range(2))
        commit(other, batch, 2)
    write(plan, 4, [0, 2])
    with pytest.raises(LayoutError, match="rows as partition 2"):
        commit(plan, 4, 1)


def test_a_commit_without_rows(plan, client):
    """A micro-batch without rows has no entries, and the next one is checked as before."""
    write(plan, 0, range(5))
    commit(plan, 1, 1, has_rows=False)
    assert len(asked(client, lambda: commit(plan, 2, 1, has_rows=False))) <= 2
    write(plan, 3, [4])
    with pytest.raises(LayoutError, match="rows as partition 4"):
        commit(plan, 3, 1, has_rows=False)


def test_another_stream_of_the_name(js, plan, stream):
    """What was remembered does not count for another stream with the same name."""
    write(plan, 0, range(5), rows=40)
    commit(plan, 1, 1, has_rows=False)
    config = stream.info().config
    stream.delete()
    js.create_stream(config)
    write(plan, 2, [0, 3])
    with pytest.raises(LayoutError, match="rows as partition 3"):
        commit(plan, 2, 1)


def test_without_permission_for_direct_gets(unique):
    """A user who may only ask the leader commits, too."""
    config = (
        "authorization { users = [{user: admin, password: x}, {user: writer, password: x, "
        'permissions: {publish: {deny: "$JS.API.DIRECT.>"}}}] }'
    )
    with (
        DevServer(config=config) as server,
        jetsync.connect(server.url, user="admin", password="x") as admin,
    ):
        admin.jetstream().create_stream(
            unique,
            subjects=[f"{unique}.>", "ledger.>"],
            allow_atomic=True,
            allow_direct=True,
        )
        settings = jetsync.ConnectOptions(servers=server.url, user="writer", password="x")
        plan = make_plan(settings, WriteOptions(stream=unique, mode=EXACTLY_ONCE), Columns())
        write(plan, 0, range(5))
        for batch in (1, 2):
            write(plan, batch, [0])
            commit(plan, batch, 1)
        write(plan, 3, [0, 2])
        with pytest.raises(LayoutError, match="rows as partition 2"):
            commit(plan, 3, 1)
