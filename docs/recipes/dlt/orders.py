from collections.abc import Iterator
from typing import Any

import dlt

import jetsync


@dlt.resource(name="orders", write_disposition="merge", primary_key="sequence")
def new_orders(stream: jetsync.Stream) -> Iterator[list[dict[str, Any]]]:
    """Yield the orders that no earlier run has loaded."""
    state = dlt.current.resource_state()
    with stream.scan(subject="orders.*", start=state.get("next", 1)) as scan:
        for page in scan.pages():
            yield [
                {"sequence": message.sequence, "stored": message.timestamp, **message.json()}
                for message in page
            ]
            state["next"] = page.sequences[-1] + 1


def main() -> None:
    """Load new orders into DuckDB, and print how many there are now."""
    pipeline = dlt.pipeline("orders", destination=dlt.destinations.duckdb("orders.duckdb"))
    with jetsync.connect() as client:
        pipeline.run(new_orders(client.jetstream().stream("ORDERS")))
    with pipeline.sql_client() as sql:
        rows = sql.execute_sql("select count(*), sum(total) from orders")
    count, total = rows[0] if rows else (0, 0.0)
    print(f"{count} orders, {total:.2f}")


if __name__ == "__main__":
    main()
