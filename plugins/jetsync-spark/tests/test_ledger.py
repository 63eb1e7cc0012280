"""
The entries of a ledger: those of earlier versions, and the fingerprints of rows.
"""

import pytest
from writing import entries, payloads, plan_for, rows_of, run

import jetsync
from jetsync_spark.common.errors import JetStreamSparkError
from jetsync_spark.write import plan as planning
from jetsync_spark.write.ledger import (
    Fingerprint,
    LayoutError,
    LedgerEntry,
)
from jetsync_spark.write.options import EXACTLY_ONCE


class TestEarlierVersion:
    """
    The ledger of version 0.1.0 before it could be rolled up, as its exact bytes.
    """

    ENTRIES = (
        (
            b'{"v":1,"key":"q","batch":0,"partition":0,"rows":10,"done":false,'
            b'"order":"690e991eedc0dd30cabb931d","total":24396970098,'
            b'"by":"9516ade6dda14700b85e1adc9b1f6689-0"}'
        ),
        (
            b'{"v":1,"key":"q","batch":0,"partition":0,"rows":20,"done":false,'
            b'"order":"1eb79ff1c59d50ff8a692cc3","total":43559185990,'
            b'"by":"9516ade6dda14700b85e1adc9b1f6689-0"}'
        ),
    )
    ROWS = (
        ("EARLIER.a", b"row-0"),
        ("EARLIER.b", "r\u00f6w-1"),
        ("EARLIER.a", b"row-2", {"h": ["1", "2"]}),
        jetsync.OutboundMessage("EARLIER.c", b"row-3", {"h": ["3"], "n": []}, "m-3", 60),
        jetsync.OutboundMessage("EARLIER.c", b""),
        *(("EARLIER.d", b"row-%d" % row) for row in range(5, 25)),
    )

    @pytest.fixture
    def earlier(self, js):
        """
        A stream with two chunks of ten rows, each with its entry in the ledger; removed afterwards.
        """
        stream = js.create_stream(
            "EARLIER",
            subjects=["EARLIER.>", "ledger.EARLIER.>"],
            storage="memory",
            allow_atomic=True,
            allow_direct=True,
            allow_msg_ttl=True,
        )
        last = 0
        for number, entry in enumerate(self.ENTRIES):
            message = jetsync.OutboundMessage(
                "ledger.EARLIER.q.0",
                entry,
                {"Jetsync-Ledger": "spark"},
                expect=jetsync.Expect(last_subject_sequence=last),
            )
            rows = self.ROWS[10 * number : 10 * number + 10]
            last = js.publish_batch([*rows, message]).sequence
        yield stream
        js.delete_stream("EARLIER")
        planning._configurations.clear()

    @pytest.mark.parametrize("rollup", [False, True], ids=["kept", "rolled up"])
    def test_its_ledger_is_continued(self, nats_server, earlier, rollup):
        """
        A partition that the earlier version began is completed, whatever its rows are made of.

        If the stream allows rollups, one message of the ledger remains.
        """
        if rollup:
            earlier.update(allow_rollup_hdrs=True)
        plan = plan_for(nats_server, "EARLIER", mode=EXACTLY_ONCE, chunk_size=11)

        written = run(plan, self.ROWS)
        run(plan, self.ROWS[5:], batch=1)

        assert (written.skipped, written.stored) == (20, 5)
        assert len(payloads(earlier)) == 45
        counts = [entry.rows for entry in entries(earlier, "ledger.EARLIER.q.0")]
        assert counts == ([20] if rollup else [10, 20, 25, 10, 20])

    def test_its_ledger_refuses_other_rows(self, nats_server, earlier):
        """
        The fingerprints of the earlier version are compared.
        """
        plan = plan_for(nats_server, "EARLIER", mode=EXACTLY_ONCE, chunk_size=11)

        with pytest.raises(LayoutError, match="begins with other rows than the 20"):
            run(plan, self.ROWS[1:])

        assert len(payloads(earlier)) == 20


class TestFingerprint:
    def test_fingerprints_of_order_and_content(self):
        """
        One fingerprint depends on the order, and both depend on the content.
        """
        rows = rows_of("s", 20)
        one, two, three = Fingerprint(), Fingerprint(), Fingerprint()
        one.add(rows)
        two.add(list(reversed(rows)))
        three.add([*rows[:-1], ("s.a0", b"other")])

        assert one.total == two.total != three.total
        assert len({one.order, two.order, three.order}) == 3

    def test_chunks_make_no_difference(self):
        """
        A retry may divide the rows differently.
        """
        rows = rows_of("s", 20)
        one, two = Fingerprint(), Fingerprint()
        one.add(rows)
        two.add(rows[:7])
        two.add(rows[7:])

        assert (one.order, one.total, one.rows) == (two.order, two.total, two.rows)

    def test_rows_that_differ_only_in_headers_are_different(self):
        """
        Rows that differ only in their headers are different.
        """
        one, two = Fingerprint(), Fingerprint()
        one.add([jetsync.OutboundMessage("s", b"", {"a": "1"})])
        two.add([jetsync.OutboundMessage("s", b"", {"a": "2"})])

        assert one.total != two.total

    def test_an_entry_survives_the_wire(self):
        """
        A decoded entry equals the encoded one.
        """
        entry = LedgerEntry(
            key="q", batch=3, partition=1, rows=7, done=True, order="ab", total=2**60, by="x"
        )

        assert LedgerEntry.from_bytes(entry.to_bytes(), "s") == entry

    def test_an_entry_of_a_newer_version_is_refused(self):
        """
        An entry of a newer version may have another meaning.
        """
        with pytest.raises(JetStreamSparkError, match="version 9"):
            LedgerEntry.from_bytes(b'{"v":9}', "s")

    @pytest.mark.parametrize("data", [b"mine", b"5", b"{}", b"[" * 100_000])
    def test_a_foreign_message_is_refused(self, data):
        """
        A message that is not an entry is an error, also if its JSON is nested too deeply to parse.
        """
        with pytest.raises(JetStreamSparkError, match="not written by jetsync-spark"):
            LedgerEntry.from_bytes(data, "s")
