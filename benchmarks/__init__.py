"""
Compare jetsync with nats-py, natsrpy, natsio and a raw socket: ``python -m benchmarks``.
"""
