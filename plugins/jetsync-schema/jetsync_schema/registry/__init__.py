"""
Load contracts from files and buckets, and find the contract of a subject.
"""
