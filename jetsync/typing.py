"""
The types that users and plugins meet in signatures.
"""

from jetsync._base.deadline import Seconds
from jetsync.kv.config import KeyValueFields
from jetsync.objects.config import ObjectStoreFields
from jetsync.objects.source import ObjectData
from jetsync.options import ConnectFields, OptionsFields
from jetsync.values.consumer_config import ConsumerFields
from jetsync.values.frame import Frame
from jetsync.values.headers import HeadersInput
from jetsync.values.message import Acker
from jetsync.values.outbound import Payload
from jetsync.values.stream_config import StreamFields

__all__ = [
    "Acker",
    "ConnectFields",
    "ConsumerFields",
    "Frame",
    "HeadersInput",
    "KeyValueFields",
    "ObjectData",
    "ObjectStoreFields",
    "OptionsFields",
    "Payload",
    "Seconds",
    "StreamFields",
]
