"""
The engines of jetsync: protocol rules without input, output, clocks or threads.

Rule 1: a file of this folder imports nothing that does I/O, tells time or makes threads. Time is an
argument called *now*, in seconds of a monotonic clock.

Rule 2: events go in, decisions come out. An engine never sends; it returns what its caller should
send, yield or raise.

Rule 3: an engine calls no hook and logs nothing. The handles that drive it do.

Rule 4: an engine is used by one thread at a time; whoever shares one brings the lock.

Rule 5: an engine owns its state. Other code reads it, and calls one method of the engine for each
event.
"""

from __future__ import annotations
