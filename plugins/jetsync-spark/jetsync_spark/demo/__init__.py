"""
The pipeline of ``python -m jetsync_spark.demo``: real flights go through Spark and JetStream, and a
driver is killed.

Layout, lowest first: ``data`` is the data set with its expected totals, and ``pipeline`` the Spark
code to copy from, which uses only public names. ``picture`` draws the result. ``run`` starts, kills
and restarts the pipeline and compares the totals. ``__main__`` is the command.
"""
