from collections.abc import Iterator

import polars as pl
from polars.io.plugins import register_io_source

import jetsync

COLUMNS = pl.Schema(
    {
        "subject": pl.String(),
        "data": pl.Binary(),
        "sequence": pl.Int64(),
        "timestamp": pl.Datetime("ns", "UTC"),
    }
)
ORDER = pl.Struct({"total": pl.Float64})


def scan_stream(stream: jetsync.Stream, subject: str) -> pl.LazyFrame:
    """Return the messages of a stream as a lazy frame. Each collect reads them again."""

    def read(
        columns: list[str] | None, predicate: pl.Expr | None, rows: int | None, _: int | None
    ) -> Iterator[pl.DataFrame]:
        with stream.scan(subject=subject) as scan:
            for batch in scan.to_reader(columns or list(COLUMNS)):
                frame = pl.DataFrame(batch)
                if rows is not None:
                    frame = frame.head(rows)
                    rows -= len(frame)
                yield frame if predicate is None else frame.filter(predicate)
                if rows == 0:
                    return

    return register_io_source(read, schema=COLUMNS)


def main() -> None:
    """Print a report and write a file."""
    with jetsync.connect() as client:
        messages = scan_stream(client.jetstream().stream("ORDERS"), "orders.*")
        report = (
            messages.select(
                country=pl.col("subject").str.split(".").list.get(1),
                order=pl.col("data").cast(pl.String).str.json_decode(ORDER),
            )
            .group_by("country")
            .agg(orders=pl.len(), total=pl.col("order").struct.field("total").sum())
            .sort("country")
        )
        for country, orders, total in report.collect(engine="streaming").iter_rows():
            print(f"{country}: {orders} orders, {total:.2f}")
        messages.sink_parquet("orders.parquet")
        archived = pl.scan_parquet("orders.parquet").select(pl.len()).collect().item()
        print(f"{archived} orders archived")


if __name__ == "__main__":
    main()
