"""
Values and wire forms: no I/O, no clock, no threads.
"""
