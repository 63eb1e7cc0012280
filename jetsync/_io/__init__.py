"""
The connection: the background thread, the seam to nats-py, and the bytes in and out.
"""
