"""
Key-value buckets: handle, watch, transactions and their configuration.
"""
