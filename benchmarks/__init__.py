"""
Compare jetsync with nats-py, natsrpy and a raw socket: ``python -m benchmarks``.
"""
