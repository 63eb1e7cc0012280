"""
Requests to the JetStream API, as functions over a connection.
"""
