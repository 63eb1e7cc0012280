"""
Tasks of Django in a work queue: the backend, and what its workers do.
"""
