"""
Plugins: loading them, calling their hooks, and delivering events.
"""
