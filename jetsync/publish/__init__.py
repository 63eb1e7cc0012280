"""
Publishing: single messages, windows of many messages, atomic batches and fast ingest.
"""
