"""
One module per peer, each with a class ``Peer`` whose methods are named after rows.

A peer that has no method for a row sits that row out. So a new row is one entry in
``benchmarks/rows.py`` and one method per peer.
"""
