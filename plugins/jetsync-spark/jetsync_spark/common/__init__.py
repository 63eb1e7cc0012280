"""
What reading and writing share: options, connections, errors, retries and subjects.
"""
