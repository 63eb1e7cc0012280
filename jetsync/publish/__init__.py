"""
Publishing: single messages, many messages in flight, atomic batches and fast ingest.
"""
