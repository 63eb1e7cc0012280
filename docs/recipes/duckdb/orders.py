from typing import Any

import duckdb

import jetsync

REPORT = """
    select
        split_part(subject, '.', 2) as country,
        count(*) as orders,
        sum((decode(data)::json ->> 'total')::double) as total
    from messages
    group by country
    order by country
"""

ARCHIVE = """
    copy (select sequence, timestamp, subject, decode(data) as body from messages)
    to 'orders.parquet' (format parquet)
"""


def query(stream: jetsync.Stream, statement: str) -> list[Any]:
    """Run one SQL statement over a table `messages` with all messages of a stream."""
    with stream.scan(subject="orders.*") as scan, duckdb.connect() as database:
        # The table can be read once.
        database.register("messages", scan.to_reader())
        return database.execute(statement).fetchall()


def main() -> None:
    """Print a report and write a file."""
    with jetsync.connect() as client:
        stream = client.jetstream().stream("ORDERS")
        for country, orders, total in query(stream, REPORT):
            print(f"{country}: {orders} orders, {total:.2f}")
        ((archived,),) = query(stream, ARCHIVE)
        print(f"{archived} orders archived")


if __name__ == "__main__":
    main()
