"""
The pipeline of ``jetsync demo --spark``: real flights through Spark and JetStream, and a kill.

General layout, lowest first: ``data`` (the data set, and the answer computed straight from it),
``pipeline`` (what Spark does, on public names only: the file to copy from), ``picture``, ``run``
(starts, kills and restarts the pipeline, and compares), ``__main__`` (the command).
"""
