"""
The progress of streaming queries: backlog and rates, as values, as a listener and as metrics.
"""
