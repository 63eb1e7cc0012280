"""
Writing: rows of DataFrames into streams.
"""
