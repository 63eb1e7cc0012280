"""
`jetsync query`: SQL over streams and buckets, which DuckDB answers.
"""

from __future__ import annotations

import contextlib
import csv
import functools
import io
import json
import re
import tempfile
from concurrent import futures
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import click

from jetsync._base.files import replacing
from jetsync.cli._connection import Command, connect
from jetsync.cli._output import (
    GOOD,
    check_output,
    print_table,
    read_input,
    readable_files,
    say,
    shown_file,
    until_output_closes,
    warn,
    write_raw,
)
from jetsync.cli._sql import MOST, columns, identifier, tables
from jetsync.cli._units import number_option, since_option
from jetsync.errors import (
    BucketNotFoundError,
    InvalidBucketError,
    JetSyncError,
    StreamNotFoundError,
)
from jetsync.values.arrow import COLUMNS, arrow_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    import jetsync

SHOWN: Final = 100
"""Default number of rows of a table."""

SAMPLE: Final = 1000
"""Default number of messages that decide which keys of JSON payloads are columns."""

FORMATS: Final = {".csv": "csv", ".json": "json", ".jsonl": "json", ".parquet": "parquet"}
"""The formats of files by their names."""

# Rows that are converted at once.
_ROWS: Final = 1000

# Seconds for a snapshot of a bucket. One with 1 million keys takes up to a minute.
_SNAPSHOT: Final = 300.0

# Bytes of a row group of Parquet, before compression.
_ROW_GROUP: Final = 32 << 20

# Seconds between two looks at a statement that runs.
_TURN: Final = 0.2

# The columns of a stream. Some versions of DuckDB have few functions for nanoseconds with a zone.
_PARTS: Final = "* replace (timestamp::timestamptz as timestamp)"

_NUMBER: Final = re.compile(r"U?(TINY|SMALL|BIG|HUGE)?INT(EGER)?|DOUBLE|FLOAT|DECIMAL\(.*\)")

_TEXT_OR_NOT_FINITE: Final = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|-?Infinity|NaN')


@click.command(cls=Command)
@click.argument("sql", required=False)
@click.option(
    "--format",
    "kind",
    type=click.Choice(["table", "csv", "json", "parquet"]),
    help="Format of the result.  [default: that of the name of FILE, or table]",
)
@click.option("--json", "kind", flag_value="json", help="The same as --format json.")
@click.option("-o", "--output", metavar="FILE", help="Write the result into FILE.")
@click.option("-f", "--force", is_flag=True, help="Replace FILE if it exists.")
@number_option(
    "--limit", help=f"Print or write the first N rows only.  [default: {SHOWN} rows of a table]"
)
@click.option(
    "--subject", metavar="FILTER", help="Read only messages whose subject matches FILTER."
)
@number_option("--seq", help="Read from sequence N on.")
@since_option
@number_option(
    "--sample",
    default=SAMPLE,
    show_default=True,
    help="Make columns of the JSON keys of the first N messages.",
)
def query(
    *,
    options: jetsync.ConnectOptions,
    sql: str | None,
    kind: str | None,
    output: str | None,
    force: bool,
    limit: int | None,
    sample: int,
    **where: Any,
) -> None:
    """
    Answer one SELECT statement over streams and key-value buckets.

    If SQL is left out or is `-`, it is read from standard input. Tables are streams and buckets by
    their names. Put names such as "my-stream" in double quotes. A stream has the columns subject,
    data, sequence, timestamp, headers and json. A bucket has key, value, revision, created and
    json. Top-level keys of JSON payloads are columns, too: `jetsync query "describe ORDERS"` lists
    them.
    """
    path = None if output is None else Path(output)
    if kind is None:
        kind = "table" if path is None else FORMATS.get(path.suffix.lower(), "table")
    if kind == "parquet" and path is None:
        raise click.UsageError("Parquet needs a file: give --output FILE.")
    if kind == "table" and path is not None:
        raise click.UsageError("Give --format csv, json or parquet for FILE.")
    if where["seq"] is not None and where["since"] is not None:
        raise click.UsageError("Give one of --seq and --since.")
    if path is not None:
        check_output(path, force=force)
    duckdb = _duckdb()
    given = read_input(sql, "the statement")
    text = given if isinstance(given, str) else given.decode("utf-8", "replace")
    with (
        tempfile.TemporaryDirectory(prefix="jetsync-query-") as folder,
        connect(options) as client,
        _database(duckdb, folder) as database,
    ):
        question = Question(duckdb, database, text)

        def answer() -> None:
            with readable_files(), question.readable_errors():
                for name in question.tables():
                    question.add(client.jetstream(), name, sample, where)
                if kind == "table":
                    show(question, limit)
                else:
                    write(question, kind, path, limit)

        interruptible(answer, client, database)


def interruptible(call: Callable[[], object], client: jetsync.Client, database: Any) -> None:
    """
    Run a call in a thread. At Ctrl-C, end its waits and its statement.

    DuckDB does not look at signals while it computes.
    """
    interrupt: KeyboardInterrupt | None = None
    with futures.ThreadPoolExecutor(1) as pool:
        running = pool.submit(call)
        while not running.done():
            # Users press Ctrl-C several times. The executor would wait for the whole statement.
            try:
                if interrupt is not None:
                    # Again and again, because the thread may be between two statements.
                    database.interrupt()
                    client.close()
                # Ctrl-C does not end a longer wait on Windows.
                futures.wait([running], timeout=_TURN)
            except KeyboardInterrupt as error:
                interrupt = error
    if interrupt is not None:
        raise interrupt
    running.result()


def _duckdb() -> Any:
    try:
        import duckdb
        import pyarrow as pa  # noqa: F401 - jetsync makes record batches with it.
    except ImportError as error:
        raise click.ClickException("SQL needs the extra: pip install 'jetsync[query]'") from error
    return duckdb


@contextlib.contextmanager
def _database(duckdb: Any, folder: str) -> Iterator[Any]:
    """
    Open a database in memory that reads and writes no files but its own temporary ones, and whose
    settings are fixed.
    """
    config = {
        "enable_external_access": "false",
        "python_enable_replacements": "false",
        "temp_directory": folder,
    }
    with duckdb.connect(config=config) as database:
        database.execute("set TimeZone = 'UTC'")
        # Functions such as `enable_logging` change settings in a SELECT.
        database.execute("set lock_configuration = true")
        yield database


class Messages:
    """
    The messages of a stream as DuckDB reads them. Each scan of the table reads the stream again.

    All scans end at the message that was the last one when the object was made.
    """

    def __init__(self, stream: jetsync.Stream, where: dict[str, Any]) -> None:
        start, since, subject = where["seq"], where["since"], where["subject"]
        # A stream may end before the start.
        end = max(stream.cached_info.state.last_seq, (start or 1) - 1)
        self._scan: Callable[[], jetsync.StreamScan] = functools.partial(
            stream.scan, start=start, start_time=since, subject=subject, end=end
        )
        self._schema = arrow_columns(COLUMNS).schema
        self.failure: Exception | None = None

    def __arrow_c_schema__(self) -> Any:
        return self._schema.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        import pyarrow as pa

        reader = pa.RecordBatchReader.from_batches(self._schema, self._batches())
        return reader.__arrow_c_stream__(requested_schema)

    def _batches(self) -> Iterator[Any]:
        try:
            with self._scan() as scan:
                yield from scan.to_reader(COLUMNS)
        except Exception as error:
            # DuckDB would report it in words of its own.
            self.failure = error
            raise


def entries(bucket: jetsync.KeyValue) -> Any:
    """
    Return the current entries of a bucket as an Arrow table.
    """
    import pyarrow as pa

    found = bucket.get_many(">", timeout=_SNAPSHOT).values()
    return pa.table(
        {
            "key": pa.array([entry.key for entry in found], pa.string()),
            "value": pa.array([entry.value for entry in found], pa.binary()),
            "revision": pa.array([entry.revision for entry in found], pa.int64()),
            "created": pa.array([entry.created for entry in found], pa.timestamp("us", "UTC")),
        }
    )


def suggestion(js: jetsync.JetStream, name: str) -> str:
    """
    Return the end of the error for an unknown table. In most databases, names ignore case.
    """
    with contextlib.suppress(JetSyncError):
        for stream in js.stream_names():
            for found in (stream, stream.removeprefix("KV_")):
                if found.lower() == name.lower():
                    return f"; did you mean {found!r}?"
    return ""


class Question:
    """
    One SELECT statement, and the tables that it names.
    """

    def __init__(self, duckdb: Any, database: Any, sql: str) -> None:
        self._duckdb = duckdb
        self.database = database
        self._sql = sql.strip().rstrip(";")
        self._sources: list[Messages] = []

    @contextlib.contextmanager
    def readable_errors(self) -> Iterator[None]:
        """
        Report an error of DuckDB as one line, and an error of a scan as it is.
        """
        import pyarrow as pa

        try:
            yield
        except JetSyncError:
            raise
        except (self._duckdb.Error, pa.ArrowException, OSError) as error:
            if getattr(error, "errno", None) is not None:
                # The error of a file. Those of DuckDB that pass through Arrow have no number.
                raise
            failures = [each.failure for each in self._sources if each.failure is not None]
            if failures:
                raise failures[0] from error
            # The text, and below an empty line the place in the statement.
            text = str(error).strip().partition("\n\n")[0]
            raise click.ClickException(" ".join(text.splitlines())) from error

    def tables(self) -> list[str]:
        """
        Return the names of streams and buckets in the statement.

        Raises:
            click.ClickException: It is not one SELECT statement. Such a statement only reads.
        """
        ((text,),) = self.database.execute("select json_serialize_sql(?)", [self._sql]).fetchall()
        try:
            tree = json.loads(text)
        except RecursionError:
            raise click.ClickException("the statement is nested too deeply") from None
        if tree["error"] and tree["error_type"] == "parser":
            raise click.ClickException(f"Parser Error: {tree['error_message']}")
        if tree["error"] or len(tree["statements"]) != 1:
            raise click.ClickException("the statement is not one SELECT")
        # Names of streams and buckets have no dots. This one is a file, which DuckDB refuses.
        names = sorted(name for name in tables(tree) if "." not in name)
        if len({name.lower() for name in names}) < len(names):
            raise click.ClickException(
                f"DuckDB ignores case, and these differ only in case: {', '.join(names)}"
            )
        return names

    def add(self, js: jetsync.JetStream, name: str, sample: int, where: dict[str, Any]) -> None:
        """
        Make a stream or a bucket a table.
        """
        source: Any
        try:
            source = Messages(js.stream(name), where)
        except StreamNotFoundError:
            try:
                source = entries(js.key_value(name))
            except (BucketNotFoundError, InvalidBucketError):
                raise click.ClickException(
                    f"there is neither a stream nor a bucket {name!r}{suggestion(js, name)}"
                ) from None
            parts, payload, own = "*", "value", source.schema.names
        else:
            self._sources.append(source)
            parts, payload, own = _PARTS, "data", COLUMNS
        # A name with a dot is not one of a stream.
        registered = identifier(f"jetsync.{name}")
        self.database.register(f"jetsync.{name}", source)
        document = (
            f"select {parts}, try_cast(try(decode({payload})) as json) as json from {registered}"
        )
        # Only the top-level keys. Their values may have any depth, and functions of DuckDB 1 that
        # look into them crash the process.
        keys = dict(
            self.database.execute(
                "select key, list(distinct type) from (select json, row_number() over () as place"
                f" from (select json from ({document}) limit {sample})"
                " where json_type(json) = 'OBJECT'), json_each(json)"
                " group by key order by min(place), arg_min(id, place)"
            ).fetchall()
        )
        if len(keys) > MOST:
            warn(f"{name}: {MOST} of {len(keys):,} keys are columns; the column json has all")
        selected = ", ".join(["*", *columns(name, keys, {*own, "json"})])
        self.database.execute(
            f"create view {identifier(name)} as select {selected} from ({document})"
        )

    def relation(self, selected: str = "*", limit: int | None = None) -> str:
        """
        Return SQL that selects something from the statement's rows.
        """
        rest = "" if limit is None else f" limit {limit}"
        return f'select {selected} from (\n{self._sql}\n) as "jetsync rows"{rest}'

    def rows(self, selected: str, limit: int | None) -> Iterator[list[tuple[Any, ...]]]:
        """
        Yield rows as they are computed.
        """
        result = self.database.execute(self.relation(selected, limit))
        while found := result.fetchmany(_ROWS):
            yield found


def show(question: Question, limit: int | None) -> None:
    """
    Print rows as a table.
    """
    most = SHOWN if limit is None else limit
    relation = question.database.sql(question.relation())
    numbers = [
        name
        for name, kind in zip(relation.columns, relation.types, strict=True)
        if _NUMBER.fullmatch(str(kind))
    ]
    rows = [row for found in question.rows("columns(*)::varchar", most + 1) for row in found]
    print_table(
        relation.columns,
        (("NULL" if cell is None else cell for cell in row) for row in rows[:most]),
        numbers=numbers,
    )
    if len(rows) > most:
        warn(f"these are the first {most:,} rows: --limit shows more")


def write(question: Question, kind: str, path: Path | None, limit: int | None) -> None:
    """
    Write rows to standard output, or into a file that appears when it has all rows.
    """
    if path is None:
        with until_output_closes():
            for data in lines(question, kind, limit):
                write_raw(data)
        return
    with replacing(path) as file:
        if kind == "parquet":
            write_parquet(question, file, limit)
        else:
            file.writelines(lines(question, kind, limit))
    say(f"wrote {shown_file(path)}", style=GOOD)


def lines(question: Question, kind: str, limit: int | None) -> Iterator[bytes]:
    """
    Yield rows as CSV with a header, or as JSON objects, one per line.
    """
    if kind == "json":
        for rows in question.rows('to_json("jetsync rows")::varchar', limit):
            yield "".join(f"{finite_json(text)}\n" for (text,) in rows).encode()
        return
    yield csv_lines([question.database.sql(question.relation()).columns])
    for rows in question.rows("columns(*)::varchar", limit):
        yield csv_lines(rows)


def finite_json(text: str) -> str:
    """
    Return JSON of DuckDB with null in place of `Infinity` and `NaN`, which JSON does not have.
    """
    if "Infinity" not in text and "NaN" not in text:
        return text
    return _TEXT_OR_NOT_FINITE.sub(lambda each: each[0] if each[0][0] == '"' else "null", text)


def csv_lines(rows: Iterable[Iterable[str | None]]) -> bytes:
    """
    Return rows as CSV. A cell that is null is empty.
    """
    buffer = io.StringIO()
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue().encode()


def write_parquet(question: Question, file: BinaryIO, limit: int | None) -> None:
    """
    Write rows as Parquet.
    """
    import pyarrow as pa
    from pyarrow import parquet

    found = question.database.sql(question.relation("*", limit))
    # DuckDB 1 has another name for it.
    read = getattr(found, "to_arrow_reader", None) or found.fetch_record_batch
    with read(_ROWS) as reader, parquet.ParquetWriter(file, reader.schema) as writer:
        held, size = [], 0
        for batch in reader:
            held.append(batch)
            size += batch.nbytes
            if size >= _ROW_GROUP:
                writer.write_table(pa.Table.from_batches(held))
                held, size = [], 0
        if held:
            writer.write_table(pa.Table.from_batches(held))
