"""
The types that users and plugins meet in signatures.
"""

from jetsync._base.deadline import Seconds
from jetsync.values.frame import Frame
from jetsync.values.headers import HeadersInput
from jetsync.values.message import Acker
from jetsync.values.outbound import Payload

__all__ = ["Acker", "Frame", "HeadersInput", "Payload", "Seconds"]
