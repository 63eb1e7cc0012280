"""
`jetsync query` with DuckDB and real servers.
"""

from __future__ import annotations

import csv
import io
import json
import pathlib
import signal
import threading
from concurrent import futures
from importlib.metadata import version

import pytest
from click.testing import CliRunner

import jetsync
from helpers.commands import running
from jetsync.cli._app import jetsync as app
from jetsync.cli.query import Messages, interruptible
from jetsync.devserver import DevServer

pytest.importorskip("duckdb")
pyarrow = pytest.importorskip("pyarrow")
parquet = pytest.importorskip("pyarrow.parquet")

BASE = ["subject", "data", "sequence", "timestamp", "headers", "json"]


@pytest.fixture(scope="module")
def server():
    """
    A server with the streams of these tests only.
    """
    with DevServer() as server:
        yield server


@pytest.fixture
def js(server):
    """
    JetStream without streams.
    """
    with jetsync.connect(server.url) as client:
        js = client.jetstream()
        yield js
        for name in list(js.stream_names()):
            js.delete_stream(name)


@pytest.fixture
def orders(js):
    """
    A stream with three orders in two regions.
    """
    stream = js.create_stream("ORDERS", subjects=["orders.>"], allow_direct=True, storage="memory")
    js.publish("orders.eu", '{"article": "chair", "total": 20.5, "count": 2}')
    js.publish("orders.us", '{"article": "lamp", "total": 10, "count": 1}', headers={"Kind": "a"})
    js.publish("orders.eu", '{"article": "table", "total": 70, "count": 1}')
    return stream


@pytest.fixture
def run(server, js, tmp_path, monkeypatch):
    """
    Run the command in a folder of its own, check its status and return its output.
    """
    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    monkeypatch.setenv("NATS_URL", server.url)
    monkeypatch.chdir(tmp_path)

    def run(*arguments, fails=0, **options):
        done = CliRunner().invoke(app, ("query", *arguments), **options)
        assert done.exit_code == fails, (done.output, done.exception)
        return done.output

    return run


@pytest.fixture
def rows(run):
    """
    Run a statement and return its rows as dictionaries.
    """

    def rows(sql, *arguments):
        return [json.loads(line) for line in run(sql, "--json", *arguments).splitlines()]

    return rows


class TestTables:
    def test_a_report_over_a_stream(self, run, orders):
        """
        Keys of the payloads are columns with types, and the answer is a table.
        """
        report = "select subject, count(*) as orders, sum(total) from ORDERS group by 1 order by 1"

        assert [line.split() for line in run(report).splitlines()] == [
            ["subject", "orders", "sum(total)"],
            ["orders.eu", "2", "90.5"],
            ["orders.us", "1", "10.0"],
        ]

    def test_the_columns_of_a_stream(self, rows, orders):
        """
        `describe` lists the parts of messages, the JSON, and its keys with their types.
        """
        found = {row["column_name"]: row["column_type"] for row in rows("describe ORDERS")}

        assert list(found) == [*BASE, "article", "total", "count"]
        assert found["headers"] == "MAP(VARCHAR, VARCHAR[])"
        assert (found["json"], found["timestamp"]) == ("JSON", "TIMESTAMP WITH TIME ZONE")
        keys = [found[key] for key in ("article", "total", "count")]
        assert keys == ["VARCHAR", "DOUBLE", "BIGINT"]

    def test_the_parts_of_messages(self, rows, orders):
        """
        All parts of a message are there as the server has them.
        """
        stored = orders.get_message(2)
        (found,) = rows("select *, epoch_us(timestamp) as us from ORDERS where sequence = 2")

        assert found["subject"] == "orders.us"
        assert found["headers"] == {"Kind": ["a"]}
        assert found["json"] == json.loads(stored.data)
        assert 0 <= stored.timestamp_ns - 1000 * found["us"] < 1000

    def test_payloads_that_are_not_json(self, js, rows, orders):
        """
        Other payloads are null as JSON, and their bytes are in `data`.
        """
        for payload in (b"\xff\x00", b"", b"{broken", b"[1, 2]", b'"text"'):
            js.publish("orders.eu", payload)
        found = rows("select json, article, hex(data) as hex from ORDERS where sequence > 3")

        assert [row["json"] for row in found] == [None, None, None, [1, 2], "text"]
        assert [row["hex"] for row in found[:2]] == ["FF00", ""]
        assert {row["article"] for row in found} == {None}

    def test_names_of_keys(self, js, rows):
        """
        A key with the name of another column gets a prefix, and each key is a column of its own.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        keys = ["a", "A", "data", "json", "json_data", "q\"'", "a.b", "a/b~", "$.x", "*", "", "ä"]
        js.publish("s", json.dumps({key: number for number, key in enumerate(keys)}))
        (found,) = rows("select * exclude (subject, timestamp, headers) from S")

        del found["data"], found["json"], found["sequence"]
        names = ["a", "json_A", "json_data", "json_json", "json_json_data", *keys[5:]]
        names[names.index("")] = "json_"
        assert found == {name: number for number, name in enumerate(names)}

    def test_many_keys(self, js, run, rows):
        """
        The first 200 keys are columns, and a warning says so if there are more.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish("s", json.dumps({f"key{number}": number for number in range(250)}))

        assert run("select key199, json ->> 'key249' as last from S").split("\n")[0] == (
            "S: 200 of 250 keys are columns; the column json has all"
        )
        assert 'column "key200" not found' in run("select key200 from S", fails=1)

    def test_nested_values_are_json(self, js, rows):
        """
        Objects, lists and keys with several types are columns of the type JSON.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish("s", '{"o": {"x": 1}, "l": [1], "n": null, "m": 1}')
        js.publish("s", '{"o": {"y": 1}, "l": [], "m": "text"}')
        first, second = rows("select o, l, n, m from S order by sequence")

        assert first == {"o": {"x": 1}, "l": [1], "n": None, "m": 1}
        assert second == {"o": {"y": 1}, "l": [], "n": None, "m": "text"}

    @pytest.mark.parametrize(
        ("kind", "values", "later"),
        [
            ("BIGINT", ("1", "-1"), "1.5"),
            ("BIGINT", ("-1", "1"), '"text"'),
            ("BIGINT", ("1", "-1"), '"2"'),
            ("BIGINT", ("1", "-1"), "18446744073709551615"),
            ("BIGINT", ("1", "-1"), "true"),
            ("DOUBLE", ("0.5", "1"), "true"),
            ("DOUBLE", ("0.5", "-1"), '"2"'),
            ("BOOLEAN", ("true", "false"), "1"),
            ("BOOLEAN", ("true", "false"), '"true"'),
        ],
    )
    def test_a_value_of_another_type_is_an_error(self, js, run, rows, kind, values, later):
        """
        A later value that is not of the column's type is never changed or left out silently.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish_many(("s", f'{{"n": {value}}}') for value in (*values, "null", later))
        shown = run("select count(n) from S", "--sample", "1", fails=1)

        value = later.strip('"')
        assert f"S: the key 'n' was {kind} in the sample, so give a larger --sample" in shown
        assert shown.endswith(f"; it is now: {value}\n")
        assert rows("select n from S where sequence <= 3", "--sample", "1") == [
            *({"n": json.loads(value)} for value in values),
            {"n": None},
        ]

    def test_a_table_that_is_named_twice(self, js, rows, orders):
        """
        A stream may be joined with itself.
        """
        (found,) = rows("select count(*) as n from ORDERS a join ORDERS b using (subject)")
        assert found == {"n": 5}
        (found,) = rows("select (select count(*) from ORDERS) + (select count(*) from ORDERS) as n")
        assert found == {"n": 6}

    def test_scans_of_a_stream_that_grows(self, js, rows):
        """
        All scans of a stream in one statement end at the same message, while others are stored.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        done = threading.Event()

        def publish():
            while not done.is_set():
                js.publish_many(("s", b"x") for _ in range(200))

        with futures.ThreadPoolExecutor(1) as pool:
            publishing = pool.submit(publish)
            try:
                for _ in range(5):
                    (found,) = rows(
                        "select (select max(sequence) from S) as a, (select count(*) from S) as b"
                    )
                    assert (found["a"] or 0) == found["b"]
            finally:
                done.set()
            publishing.result()

    def test_more_than_a_page(self, js, rows):
        """
        All messages of many pages are read.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish_many(("s", b'{"n": %d}' % number) for number in range(20_000))

        assert rows("select count(*) as c, sum(n) as s from S") == [{"c": 20_000, "s": 199_990_000}]
        assert len(rows("select n from S")) == 20_000

    def test_names_in_quotes(self, js, rows):
        """
        A name that is no identifier is put in quotes. Common table expressions need no stream.
        """
        js.create_stream("my-stream", subjects=["s"], allow_direct=True, storage="memory")
        js.publish("s", b"x")

        assert rows('with t as (select sequence from "my-stream") select * from t') == [
            {"sequence": 1}
        ]
        query = 'with "my-stream" as (select sequence + 1 as n from "my-stream") from "my-stream"'
        assert rows(query) == [{"n": 2}]

    def test_common_table_expressions(self, js, rows, orders):
        """
        A common table expression hides a stream, and jetsync does not read that stream.
        """
        js.create_stream("T", subjects=["t"], storage="memory")
        one = "select 1 as n"

        assert rows(f"with T as ({one}) select n from t") == [{"n": 1}]
        assert rows(f"select n from (with T as ({one}) select n from T)") == [{"n": 1}]
        assert rows(f"with T as ({one}), u as (select n + 1 as n from T) from u") == [{"n": 2}]
        assert rows("with orders as (select count(*) as n from ORDERS) from orders") == [{"n": 3}]
        assert rows(
            f"with recursive T as ({one} union all select n + 1 from T where n < 3) from T"
        ) == [{"n": 1}, {"n": 2}, {"n": 3}]

    def test_a_common_table_expression_outside_its_scope(self, run):
        """
        Outside of its statement, the name of a common table expression is one of a stream.
        """
        for sql in (
            "from (with t as (select 1) from t) a, t b",
            "with u as (from t), t as (select 1) from u",
        ):
            assert "neither a stream nor a bucket 't'" in run(sql, fails=1)

    def test_names_that_differ_in_case(self, js, run, orders):
        """
        One statement cannot read two streams whose names differ only in case.
        """
        js.create_stream("orders", subjects=["s"], allow_direct=True, storage="memory")
        shown = run("select count(*) from orders, ORDERS", fails=1)

        assert shown == (
            "Error: DuckDB ignores case, and these differ only in case: ORDERS, orders\n"
        )
        assert run("select count(*) as n from orders").split() == ["n", "0"]

    def test_an_empty_stream(self, js, run, rows):
        """
        A stream without messages is a table without rows.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")

        assert rows("select * from S") == []
        assert run("select * from S").split() == BASE
        assert run("select 1 as one").split() == ["one", "1"]

    def test_a_part_of_a_stream(self, rows, orders):
        """
        Options read only some subjects, or begin later.
        """
        query = "select sequence from ORDERS"

        assert rows(query, "--subject", "orders.us") == [{"sequence": 2}]
        assert rows(query, "--seq", "3") == [{"sequence": 3}]
        assert rows(query, "--seq", "9") == []
        assert len(rows(query, "--since", "1h")) == 3
        moment = orders.get_message(3).timestamp.isoformat()
        assert rows(query, "--since", moment) == [{"sequence": 3}]

    def test_scans_end_at_the_same_message(self, js, orders):
        """
        If the stream grows during the statement, each scan of it ends at the same message.
        """
        messages = Messages(js.stream("ORDERS"), {"seq": None, "since": None, "subject": None})
        js.publish("orders.eu", b"later")

        for _ in range(2):
            reader = pyarrow.RecordBatchReader.from_stream(messages)
            assert reader.read_all()["sequence"].to_pylist() == [1, 2, 3]

    def test_too_many_keys(self, js, run):
        """
        Only the first 200 keys are columns, with a warning. A key with a NUL is in `json` only.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish("s", json.dumps({"a\0": 1, **{f"k{number}": 1 for number in range(250)}}))
        shown = run("describe S", "--format", "csv")

        assert "S: 200 of 251 keys are columns; the column json has all\n" in shown
        assert "k199" in shown
        assert "k200" not in shown
        assert "\0" not in shown


class TestBuckets:
    def test_current_entries(self, js, rows):
        """
        A bucket has its current entries. Its stream has all revisions.
        """
        bucket = js.create_key_value("config", history=5, storage="memory")
        bucket.put("a.b", '{"size": 1}')
        last = bucket.put("a.b", '{"size": 2}')
        bucket.put("gone", b"x")
        bucket.delete("gone")
        (found,) = rows("select * exclude created, epoch_us(created) > 0 as created from config")

        assert (found["key"], found["revision"]) == ("a.b", last)
        assert (found["size"], found["json"], found["created"]) == (2, {"size": 2}, True)
        assert len(rows("select * from KV_config")) == 4
        assert rows("select count(*) as n from config a join config b using (key)") == [{"n": 1}]

    def test_many_entries(self, js, rows):
        """
        All entries of a bucket are read.
        """
        js.create_key_value("many", storage="memory")
        js.publish_many((f"$KV.many.k{number}", b"%d" % number) for number in range(5000))

        assert rows("select count(*) as n, sum(json::int) as s from many") == [
            {"n": 5000, "s": 12_497_500}
        ]

    def test_a_join_of_a_stream_and_a_bucket(self, js, rows, orders):
        """
        One statement may read streams and buckets.
        """
        js.create_key_value("prices", storage="memory").put("lamp", b"12")
        found = rows(
            "select sequence, prices.json::int as price from ORDERS join prices on key = article"
        )
        assert found == [{"sequence": 2, "price": 12}]

    def test_a_stream_comes_before_a_bucket(self, js, rows):
        """
        If a stream and a bucket have the same name, the table is the stream.
        """
        js.create_key_value("same", storage="memory").put("a", b"1")
        js.create_stream("same", subjects=["s"], allow_direct=True, storage="memory")

        assert rows("select * from same") == []

    def test_an_empty_bucket(self, js, run):
        """
        A bucket without entries is a table without rows.
        """
        js.create_key_value("empty", storage="memory")

        assert run("from empty").split() == ["key", "value", "revision", "created", "json"]


class TestFormats:
    def test_csv(self, run, orders):
        """
        CSV has a header, and quotes where they are needed.
        """
        shown = run("select article, json from ORDERS order by sequence", "--format", "csv")
        found = list(csv.reader(io.StringIO(shown)))

        assert found[0] == ["article", "json"]
        assert [row[0] for row in found[1:]] == ["chair", "lamp", "table"]
        assert json.loads(found[1][1])["total"] == 20.5
        assert run("select null as a, '' as b where false", "--format", "csv") == "a,b\n"

    @pytest.mark.parametrize("name", ["out.parquet", "out.csv", "out.jsonl"])
    def test_files(self, run, orders, tmp_path, name):
        """
        The name of the file decides its format, and an old file is kept without --force.
        """
        query = "select * from ORDERS order by sequence"
        assert run(query, "--output", name) == f"wrote {name}\n"
        assert "exists already: use --force" in run(query, "--output", name, fails=1)
        assert run(query, "--output", name, "--force", "--limit", "2")

        text = (tmp_path / name).read_bytes()
        if name == "out.parquet":
            table = parquet.read_table(tmp_path / name)
            assert table["data"].to_pylist() == [orders.get_message(n).data for n in (1, 2)]
            assert table["total"].to_pylist() == [20.5, 10.0]
        else:
            assert text.count(b"\n") == (3 if name == "out.csv" else 2)
        assert [path.name for path in tmp_path.iterdir()] == [name]

    def test_a_device_is_not_replaced(self, run, tmp_path):
        """
        The result does not replace what is not a file, not even with --force.
        """
        device = tmp_path / "device"
        device.mkdir()
        for arguments in ((), ("--force",)):
            shown = run("select 1", "-o", str(device), "--format", "csv", *arguments, fails=1)
            assert shown.endswith("device': not a regular file\n")
        assert [path.name for path in tmp_path.iterdir()] == ["device"]

    def test_parquet_of_many_row_groups(self, js, run, tmp_path):
        """
        A large result has several row groups, and whole numbers keep their digits.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish_many(("s", b"x" * 10_000) for _ in range(5000))
        run("select * from S", "-o", "out.parquet")
        file = parquet.ParquetFile(tmp_path / "out.parquet")
        assert (file.metadata.num_rows, file.num_row_groups) == (5000, 2)

        run("select sum(9007199254740993) as s", "-o", "sum.parquet")
        assert parquet.read_table(tmp_path / "sum.parquet")["s"].to_pylist() == [9007199254740993]

    def test_the_file_is_absent_after_an_error(self, js, run, tmp_path):
        """
        If the statement fails, no file and no part of one is left.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish_many([("s", b'{"n": 1}')] * 5000 + [("s", b'{"n": 1.5}')])
        for name in ("out.parquet", "out.csv", "out.json"):
            shown = run("select n from S", "--output", name, fails=1)
            assert shown.startswith("Error: ")
            assert "the key 'n' was BIGINT" in shown
        assert list(tmp_path.iterdir()) == []
        shown = run("select 1", "--output", "no/folder.csv", fails=1)
        assert "No such file or directory" in shown
        assert "Errno" not in shown

    def test_a_table_shows_the_first_rows(self, js, run):
        """
        A table has 100 rows, or as many as --limit says, and a warning if there are more.
        """
        query = "select * from range(101) t(n)"
        shown = run(query).splitlines()
        assert shown[-2:] == ["99", "these are the first 100 rows: --limit shows more"]
        assert len(run(query, "--limit", "101").splitlines()) == 102
        assert run("select null as a").split() == ["a", "NULL"]
        assert run(query, "--json", "--limit", "2") == '{"n":0}\n{"n":1}\n'

    def test_numbers_are_aligned_to_the_right(self, run):
        """
        Columns of numbers are aligned to the right, others to the left.
        """
        shown = run("select 1 as number, 1.5 as decimal, 2e0 as double, 'a' as text")

        assert [line.rstrip() for line in shown.splitlines()] == [
            "number  decimal  double  text",
            "     1      1.5     2.0  a",
        ]

    def test_hostile_payloads(self, js, run, rows):
        """
        Text with control characters or markup is shown, and does not act on the terminal.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        evil = "\x1b[2J[red]\u202e\x9b\n"
        js.publish("s", json.dumps({evil: evil}).encode())
        shown = run(f'select "{evil}" from S')

        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert "\x9b" not in shown
        assert shown.count("\\x1b[2J[red]\\u202e\\x9b\\n") == 2
        assert rows(f'select "{evil}" from S') == [{evil: evil}]

    def test_the_statement_from_standard_input(self, run, orders):
        """
        Without SQL or with `-`, the statement is read from standard input.
        """
        query = "select count(*) as n -- a comment\nfrom ORDERS;\n"
        for arguments in ((), ("-",)):
            assert run(*arguments, input=query.encode()).split() == ["n", "3"]
        assert run("select 1 as n -- a comment").split() == ["n", "1"]

    def test_temporary_data(self, rows):
        """
        DuckDB writes temporary data into a folder that the command removes.
        """
        (found,) = rows("select current_setting('temp_directory') as folder")

        folder = pathlib.Path(found["folder"])
        assert folder.name.startswith("jetsync-query-")
        assert not folder.exists()

    def test_tables_of_a_schema(self, run):
        """
        A table with a schema is one of DuckDB, and no stream.
        """
        assert run("select table_name from information_schema.tables").split() == ["table_name"]


class TestHostilePayloads:
    @pytest.mark.parametrize("depth", [1_000, 100_000])
    def test_a_payload_of_any_depth(self, js, rows, orders, depth):
        """
        A payload that is nested deeply is JSON like any other, and its keys are columns.
        """
        js.publish("orders.eu", '{"deep":' * depth + "1" + "}" * depth)
        js.publish("orders.eu", "[" * depth + "]" * depth)

        assert rows("select count(*) as count, count(json) as json from ORDERS") == [
            {"count": 5, "json": 5}
        ]
        assert rows("select article from ORDERS where deep is null and article = 'lamp'") == [
            {"article": "lamp"}
        ]
        (found,) = rows("select length(deep::varchar) as length from ORDERS where deep is not null")
        assert found["length"] == 9 * (depth - 1) + 1

    def test_numbers_of_both_signs(self, js, rows):
        """
        Positive and negative whole numbers make one column of whole numbers.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish("s", '{"a": 1, "b": null, "c": 2.5}')
        js.publish("s", '{"a": -1, "b": true, "c": 1}')

        found = {row["column_name"]: row["column_type"] for row in rows("describe S")}

        assert [found[key] for key in "abc"] == ["BIGINT", "BOOLEAN", "DOUBLE"]

    def test_json_has_only_finite_numbers(self, js, run):
        """
        `--json` prints null for infinities and for what is not a number, and keeps such texts.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish("s", '{"a": Infinity, "b": [NaN, -Infinity, 1.5], "c": "Infinity \\" NaN"}')

        def refuse(name):
            raise AssertionError(name)

        sql = "select json, a, b, c, 'nan'::float as d, {'NaN': '-inf'::double} as e from S"
        shown = json.loads(run(sql, "--json"), parse_constant=refuse)

        values = {"a": None, "b": [None, None, 1.5], "c": 'Infinity " NaN'}
        assert shown == {"json": values, **values, "d": None, "e": {"NaN": None}}


class TestMistakes:
    @pytest.mark.parametrize(
        ("sql", "text"),
        [
            ("selec", "Parser Error: syntax error"),
            ("select * from nope", "there is neither a stream nor a bucket 'nope'\n"),
            ("select * from orders", "nor a bucket 'orders'; did you mean 'ORDERS'?\n"),
            ('select * from "a$b"', "there is neither a stream nor a bucket 'a$b'"),
            ("select nope from ORDERS", 'Binder Error: Referenced column "nope" not found'),
            ("select totl from ORDERS", '"total"'),
            ("select 'x'::int from ORDERS", "Conversion Error: Could not convert string 'x'"),
            ("", "the statement is not one SELECT"),
            ("select 1; select 2", "the statement is not one SELECT"),
            ("create table t as select 1", "the statement is not one SELECT"),
            ("copy (select 1) to 'out.csv'", "the statement is not one SELECT"),
            ("select * from 'out.csv'", "out.csv"),
            ("select * from read_text('/etc/hosts')", "disabled"),
            ("select * from options", "neither a stream nor a bucket 'options'"),
            ('select * from "a b"', "a b"),
            ("select * from query('set threads = 1')", "Parser Error"),
            (f"select {'[' * 900}1{']' * 900}", "the statement is nested too deeply"),
        ],
    )
    def test_errors_have_one_line(self, run, orders, sql, text):
        """
        A statement that DuckDB cannot answer, or that does more than reading, fails with a line.
        """
        shown = run(sql, fails=1)

        assert shown.startswith("Error: ")
        assert text in shown
        assert shown.count("\n") == 1

    @pytest.mark.parametrize(
        "call",
        [
            "enable_logging()",
            "enable_logging('QueryLog', storage='file', storage_path='logs')",
            "disable_logging()",
            "enable_profiling()",
        ],
    )
    def test_settings_are_fixed(self, run, tmp_path, call):
        """
        A SELECT that calls a function cannot change settings of DuckDB, nor write its log.
        """
        if version("duckdb").startswith("1."):
            pytest.skip("these functions of DuckDB 1 ignore the lock of its settings")

        assert "the configuration has been locked" in run(f"select * from {call}", fails=1)
        assert list(tmp_path.iterdir()) == []

    def test_a_bucket_whose_name_differs_in_case(self, js, run):
        """
        The error for an unknown table names a bucket, too.
        """
        js.create_key_value("STOCK")

        assert "; did you mean 'STOCK'?\n" in run("select * from stock", fails=1)

    def test_a_stream_without_direct_gets(self, js, run):
        """
        A stream that does not allow direct gets is refused by jetsync's own error.
        """
        js.create_stream("S", subjects=["s"], storage="memory")

        assert run("select * from S", fails=1) == (
            "Error: direct get from stream 'S' is not supported:"
            " give the stream --direct with `jetsync stream edit`\n"
        )

    def test_without_a_server(self, run):
        """
        A server that does not answer is an error of one line.
        """
        shown = run("select 1", "--server", "nats://127.0.0.1:9", "--timeout", "1s", fails=1)
        assert shown.startswith("Error: ")

    @pytest.mark.parametrize(("kind", "line"), [("csv", "range\n"), ("json", '{"range":0}\n')])
    def test_a_closed_pipe(self, server, kind, line):
        """
        If the reader of standard output goes away, the command ends without an error.
        """
        command = ("query", "from range(1000000000)", "--format", kind)
        with running(*command, NATS_URL=server.url) as process:
            assert process.stdout.readline() == line
            process.stdout.close()
            assert process.wait(60) == 0
            assert process.stderr.read() == ""

    def test_ctrl_c(self, js, server, tmp_path):
        """
        Ctrl-C ends a statement that runs, and removes the temporary folder.
        """
        js.create_stream("S", subjects=["s"], allow_direct=True, storage="memory")
        js.publish_many(("s", b'{"n": %d}' % number) for number in range(3000))
        # Of each row with each, so that it takes minutes.
        sql = (
            "select a.sequence from S a, S b, S c where a.n + b.n + c.n = -1 or a.n + b.n + c.n = 0"
        )
        command = ("query", sql, "--format", "csv")
        with running(*command, NATS_URL=server.url, TMPDIR=str(tmp_path)) as process:
            # It has read the stream and computes.
            assert process.stdout.readline() == "sequence\n"
            assert len(list(tmp_path.iterdir())) == 1
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 1
            assert process.stderr.read().strip() == "Aborted!"
            assert list(tmp_path.iterdir()) == []

    def test_ctrl_c_again(self, monkeypatch):
        """
        A second Ctrl-C, while jetsync ends the statement, does not keep the statement running.
        """
        ended, closed = threading.Event(), threading.Event()
        waits, interrupts = iter([True]), iter([True])
        wait = futures.wait

        def press(first):
            if next(first, False):
                raise KeyboardInterrupt

        class Database:
            def interrupt(self):
                press(interrupts)
                ended.set()

        class Client:
            def close(self):
                closed.set()

        monkeypatch.setattr(futures, "wait", lambda *a, **k: (press(waits), wait(*a, **k))[1])
        with pytest.raises(KeyboardInterrupt):
            interruptible(lambda: ended.wait(60) and closed.wait(60), Client(), Database())
        assert ended.is_set()
        assert closed.is_set()
