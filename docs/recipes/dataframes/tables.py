"""
Tables in an object store, written and read by pandas, pyarrow, Polars, DuckDB and Dask.
"""

import os

import dask.dataframe
import duckdb
import fsspec
import pandas as pd
import polars as pl
import pyarrow.dataset
import pyarrow.parquet as pq

SERVER = {"servers": os.environ.get("NATS_URL", "nats://127.0.0.1:4222")}
fs = fsspec.filesystem("jetstream", **SERVER)
fs.makedirs("tables", exist_ok=True)  # the object store

# pandas
orders = pd.DataFrame({"article": ["chair", "table", "lamp"], "count": [2, 1, 3]})
orders.to_parquet("jetstream://tables/orders.parquet", storage_options=SERVER)
orders.to_csv("jetstream://tables/orders.csv.gz", index=False, storage_options=SERVER)
print(pd.read_csv("jetstream://tables/orders.csv.gz", storage_options=SERVER))

# pyarrow: one column, and a dataset of several objects
print(pq.read_table("tables/orders.parquet", filesystem=fs, columns=["count"]))
table = pq.read_table("tables/orders.parquet", filesystem=fs)
pq.write_to_dataset(table, "tables/by-article", filesystem=fs, partition_cols=["article"])
print(pq.read_table("tables/by-article", filesystem=fs, filters=[("article", "==", "lamp")]))

# Polars
with fs.open("tables/polars.parquet", "wb") as file:
    pl.DataFrame(table).write_parquet(file)
with fs.open("tables/polars.parquet", "rb") as file:
    print(pl.read_parquet(file, columns=["article"]))

# DuckDB: it writes files itself, and reads datasets of pyarrow
duckdb.register_filesystem(fs)
stored = pyarrow.dataset.dataset("tables/orders.parquet", filesystem=fs)
duckdb.sql(
    "COPY (SELECT article, count * 2 AS count FROM stored)"
    " TO 'jetstream://tables/doubled.parquet' (FORMAT parquet)"
)
doubled = pyarrow.dataset.dataset("tables/doubled.parquet", filesystem=fs)
print(duckdb.execute("SELECT sum(count) AS total FROM doubled").fetchall())

# Dask
lazy = dask.dataframe.from_pandas(orders, npartitions=2)
lazy.to_parquet("jetstream://tables/dask", storage_options=SERVER)
print(dask.dataframe.read_parquet("jetstream://tables/dask", storage_options=SERVER).compute())
