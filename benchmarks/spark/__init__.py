"""
Compare jetsync-spark with jetsync itself, with nats-py in ``foreachPartition``, and with Spark.
"""
