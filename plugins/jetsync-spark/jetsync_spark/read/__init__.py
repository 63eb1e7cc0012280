"""
Reading: streams and key-value buckets as DataFrames.
"""
