"""
Instruments, and counts that are cheap per message.
"""
