"""
jetsync: a blocking, thread-based client for NATS JetStream.

Users import every name from here, except from ``jetsync.devserver`` and ``jetsync.testing``. The
folders of the package are its layers; ``tests/test_layers.py`` lists them from top to bottom.
"""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING

from jetsync._base import locks as _locks
from jetsync._base.log import EventLogger, get_logger
from jetsync._hooks.errors import PluginError
from jetsync._proto.kv import KeyOperation
from jetsync.errors import (
    AcksNotWantedError,
    ApiError,
    ApiLevelRequiredError,
    AtomicityError,
    AtomicPublishDisabledError,
    AuthenticationError,
    BadDirectRequestError,
    BadPullRequestError,
    BadRequestError,
    BatchClosedError,
    BatchCommitInvalidError,
    BatchGapError,
    BatchIdInvalidError,
    BatchIncompleteError,
    BatchRuleError,
    BatchSequenceMissingError,
    BatchTooLargeError,
    BatchUnsupportedHeaderError,
    BucketNotFoundError,
    CallInSignalHandlerError,
    ConfigurationError,
    ConflictingUseError,
    ConnectError,
    ConnectionClosedError,
    ConnectionLostError,
    ConnectTimeoutError,
    ConsumerConfigInvalidError,
    ConsumerDeletedError,
    ConsumerDoesNotExistError,
    ConsumerExistsError,
    ConsumerNotFoundError,
    ConsumerUnavailableError,
    ConsumptionClosedError,
    CounterDisabledError,
    CounterIncrementInvalidError,
    CounterIncrementMissingError,
    CounterPayloadError,
    DevServerError,
    DirectNotSupportedError,
    DisconnectedError,
    DuplicateFilterSubjectsError,
    DuplicateMessageIdError,
    DuplicateMessageInProcessError,
    EmptyFilterSubjectError,
    FastBatchIdInvalidError,
    FastBatchUnknownError,
    FastPatternInvalidError,
    FastPublishDisabledError,
    FastTooManyInflightError,
    FlowControlAckPolicyError,
    ForkedProcessError,
    HandleClosedError,
    IncompleteMirrorError,
    InsufficientResourcesError,
    InvalidArgumentError,
    InvalidBucketError,
    InvalidGroupError,
    InvalidHeaderError,
    InvalidJsonError,
    InvalidKeyError,
    InvalidNameError,
    InvalidResetError,
    InvalidSubjectError,
    InvalidTtlError,
    InvalidTypeError,
    JetStreamNotEnabledError,
    JetSyncError,
    KeyExistsError,
    KeyNotFoundError,
    KeysVanishedError,
    LeadershipChangeError,
    MaxConsumersError,
    MaxControlLineError,
    MaxMessagesError,
    MaxPayloadError,
    MaxRequestBatchError,
    MaxRequestExpiresError,
    MaxRequestMaxBytesError,
    MaxStreamsError,
    MaxWaitingError,
    MessageAlreadyAckedError,
    MessageNotFoundError,
    MessageSizeExceedsMaxBytesError,
    MessageTooLargeError,
    MessageTtlDisabledError,
    MessageTtlInvalidError,
    MirrorAtomicError,
    MirrorFastPublishError,
    MissingExpectedSequenceError,
    NoHeartbeatError,
    NoRespondersError,
    NoStreamResponseError,
    NotJetStreamMessageError,
    NotPullConsumerError,
    NotSupportedError,
    OverlappingFilterSubjectsError,
    PermissionDeniedError,
    PinIdMismatchError,
    PriorityGroupNameError,
    PriorityGroupNotFoundError,
    PriorityGroupWithoutPolicyError,
    PriorityPolicyWithoutGroupError,
    ProtocolError,
    PublishError,
    PublishOutcomeUnknownError,
    PushWithPriorityGroupError,
    RequestTimeoutError,
    RequiredApiLevelError,
    ResetAttemptsExceededError,
    RollupNotPermittedError,
    SchedulePatternInvalidError,
    ScheduleRollupInvalidError,
    SchedulesDisabledError,
    ScheduleSourceInvalidError,
    ScheduleTargetInvalidError,
    ScheduleTimeZoneInvalidError,
    ScheduleTtlInvalidError,
    ServerShutdownError,
    SlowConsumerError,
    StatusError,
    StreamConfigInvalidError,
    StreamNameInUseError,
    StreamNotFoundError,
    StreamSealedError,
    SubjectCheckUnavailableError,
    SubjectOverlapError,
    SubscriptionLimitError,
    TemporarilyUnavailableError,
    TooManyInflightError,
    TooManyRequestsError,
    TooManySubjectsError,
    TransportError,
    UnknownStatusError,
    WaitTimeoutError,
    WrongLastMessageIdError,
    WrongLastRevisionError,
    WrongLastSequenceError,
    WrongStreamError,
)
from jetsync.events import (
    AsyncErrorEvent,
    BatchAbandonedEvent,
    BatchCommitOperation,
    BatchGapEvent,
    ClosedEvent,
    DirectReadOperation,
    DisconnectedEvent,
    FetchOperation,
    FilterOutsideSubjectsEvent,
    HandlerErrorEvent,
    HeartbeatMissedEvent,
    LameDuckEvent,
    Operation,
    OrderedResetEvent,
    PermissionDeniedEvent,
    PublishOperation,
    PullOutcome,
    PullStatusEvent,
    ReconnectedEvent,
    RetryEvent,
    ServersDiscoveredEvent,
    SlowConsumerEvent,
    StatusEvent,
    StatusKind,
    TtlRaisedEvent,
    WindowResult,
)
from jetsync.hookspecs import hookimpl
from jetsync.kv.config import KeyValueConfig, KeyValueStatus
from jetsync.kv.entry import Entry
from jetsync.options import DEFAULT_URL, ConnectOptions
from jetsync.publish.errors import BatchOutcomeUnknownError, PublishManyError
from jetsync.typing import (
    Acker,
    ConnectFields,
    ConsumerFields,
    Frame,
    HeadersInput,
    KeyValueFields,
    OptionsFields,
    Payload,
    Seconds,
    StreamFields,
)
from jetsync.values.account import AccountInfo, AccountLimits, AccountTier, ApiStats
from jetsync.values.consumer_config import (
    AckPolicy,
    ConsumerConfig,
    DeliverPolicy,
    PriorityPolicy,
    ReplayPolicy,
)
from jetsync.values.consumer_info import (
    ConsumerInfo,
    ConsumerReset,
    PauseState,
    PriorityGroupState,
    SequenceInfo,
)
from jetsync.values.headers import Headers
from jetsync.values.message import Message, Metadata
from jetsync.values.outbound import (
    BatchAck,
    Expect,
    OutboundMessage,
    PubAck,
    PublishFailure,
    PublishReport,
)
from jetsync.values.server_info import ServerInfo, Statistics
from jetsync.values.stored import StoredMessage, StoredPage
from jetsync.values.stream_config import (
    ConsumerLimits,
    DiscardPolicy,
    ExternalStream,
    PersistMode,
    Placement,
    Republish,
    RetentionPolicy,
    SourceConsumer,
    StorageType,
    StoreCompression,
    StreamConfig,
    StreamSource,
    SubjectTransform,
)
from jetsync.values.stream_info import (
    ClusterInfo,
    LostStreamData,
    PeerInfo,
    StreamAlternate,
    StreamInfo,
    StreamSourceInfo,
    StreamState,
)
from jetsync.values.ttl import MarkerReason

if TYPE_CHECKING:
    from jetsync.client import Client, connect
    from jetsync.consume.acks import ack_many
    from jetsync.consume.consumer import Consumer
    from jetsync.consume.consumption import Consumption, ConsumptionStatistics
    from jetsync.consume.fetch import MessageBatch
    from jetsync.consume.ordered import OrderedConsumer, OrderedStatistics
    from jetsync.consume.ordered_reads import OrderedBatch, OrderedConsumption
    from jetsync.consume.subscription import Subscription
    from jetsync.counters import Counter, CounterEntry
    from jetsync.jetstream import JetStream
    from jetsync.kv.handle import KeyValue
    from jetsync.kv.transaction import Transaction
    from jetsync.kv.watch import Watch
    from jetsync.publish.atomic import AtomicBatch
    from jetsync.publish.fast import FastPublisher, FastStatistics
    from jetsync.publish.publisher import (
        DeliveryReport,
        Publisher,
        PublisherStatistics,
        PublishFuture,
    )
    from jetsync.read.direct import DirectBatch, StreamScan
    from jetsync.stream import Stream

__version__ = "0.1.0"

__all__ = [
    # Connecting
    "DEFAULT_URL",
    "Client",
    "ConnectOptions",
    "ServerInfo",
    "Statistics",
    "Subscription",
    "connect",
    # JetStream, its streams and consumers
    "Consumer",
    "Consumption",
    "ConsumptionStatistics",
    "Counter",
    "CounterEntry",
    "DirectBatch",
    "JetStream",
    "MessageBatch",
    "OrderedBatch",
    "OrderedConsumer",
    "OrderedConsumption",
    "OrderedStatistics",
    "Stream",
    "StreamScan",
    # Key-value
    "Entry",
    "KeyOperation",
    "KeyValue",
    "KeyValueConfig",
    "KeyValueStatus",
    "Transaction",
    "Watch",
    # Configuration and information
    "AccountInfo",
    "AccountLimits",
    "AccountTier",
    "AckPolicy",
    "ApiStats",
    "ClusterInfo",
    "ConsumerConfig",
    "ConsumerInfo",
    "ConsumerLimits",
    "ConsumerReset",
    "DeliverPolicy",
    "DiscardPolicy",
    "ExternalStream",
    "LostStreamData",
    "PauseState",
    "PeerInfo",
    "PersistMode",
    "Placement",
    "PriorityGroupState",
    "PriorityPolicy",
    "ReplayPolicy",
    "Republish",
    "RetentionPolicy",
    "SequenceInfo",
    "SourceConsumer",
    "StorageType",
    "StoreCompression",
    "StreamAlternate",
    "StreamConfig",
    "StreamInfo",
    "StreamSource",
    "StreamSourceInfo",
    "StreamState",
    "SubjectTransform",
    # Messages
    "AtomicBatch",
    "BatchAck",
    "DeliveryReport",
    "Expect",
    "FastPublisher",
    "FastStatistics",
    "Headers",
    "MarkerReason",
    "Message",
    "Metadata",
    "OutboundMessage",
    "PubAck",
    "PublishFailure",
    "PublishFuture",
    "PublishReport",
    "Publisher",
    "PublisherStatistics",
    "StoredMessage",
    "StoredPage",
    "ack_many",
    # Hooks, events and operations
    "AsyncErrorEvent",
    "BatchAbandonedEvent",
    "BatchCommitOperation",
    "BatchGapEvent",
    "ClosedEvent",
    "DirectReadOperation",
    "DisconnectedEvent",
    "EventLogger",
    "FetchOperation",
    "FilterOutsideSubjectsEvent",
    "HandlerErrorEvent",
    "HeartbeatMissedEvent",
    "LameDuckEvent",
    "Operation",
    "OrderedResetEvent",
    "PermissionDeniedEvent",
    "PublishOperation",
    "PullOutcome",
    "PullStatusEvent",
    "ReconnectedEvent",
    "RetryEvent",
    "ServersDiscoveredEvent",
    "SlowConsumerEvent",
    "StatusEvent",
    "StatusKind",
    "TtlRaisedEvent",
    "WindowResult",
    "get_logger",
    "hookimpl",
    # Types
    "Acker",
    "ConnectFields",
    "ConsumerFields",
    "Frame",
    "HeadersInput",
    "KeyValueFields",
    "OptionsFields",
    "Payload",
    "Seconds",
    "StreamFields",
    # Errors
    "AcksNotWantedError",
    "ApiError",
    "ApiLevelRequiredError",
    "AtomicPublishDisabledError",
    "AtomicityError",
    "AuthenticationError",
    "BadDirectRequestError",
    "BadPullRequestError",
    "BadRequestError",
    "BatchClosedError",
    "BatchCommitInvalidError",
    "BatchGapError",
    "BatchIdInvalidError",
    "BatchIncompleteError",
    "BatchOutcomeUnknownError",
    "BatchRuleError",
    "BatchSequenceMissingError",
    "BatchTooLargeError",
    "BatchUnsupportedHeaderError",
    "BucketNotFoundError",
    "CallInSignalHandlerError",
    "ConfigurationError",
    "ConflictingUseError",
    "ConnectError",
    "ConnectTimeoutError",
    "ConnectionClosedError",
    "ConnectionLostError",
    "ConsumerConfigInvalidError",
    "ConsumerDeletedError",
    "ConsumerDoesNotExistError",
    "ConsumerExistsError",
    "ConsumerNotFoundError",
    "ConsumerUnavailableError",
    "ConsumptionClosedError",
    "CounterDisabledError",
    "CounterIncrementInvalidError",
    "CounterIncrementMissingError",
    "CounterPayloadError",
    "DevServerError",
    "DirectNotSupportedError",
    "DisconnectedError",
    "DuplicateFilterSubjectsError",
    "DuplicateMessageIdError",
    "DuplicateMessageInProcessError",
    "EmptyFilterSubjectError",
    "FastBatchIdInvalidError",
    "FastBatchUnknownError",
    "FastPatternInvalidError",
    "FastPublishDisabledError",
    "FastTooManyInflightError",
    "FlowControlAckPolicyError",
    "ForkedProcessError",
    "HandleClosedError",
    "IncompleteMirrorError",
    "InsufficientResourcesError",
    "InvalidArgumentError",
    "InvalidBucketError",
    "InvalidGroupError",
    "InvalidHeaderError",
    "InvalidJsonError",
    "InvalidKeyError",
    "InvalidNameError",
    "InvalidResetError",
    "InvalidSubjectError",
    "InvalidTtlError",
    "InvalidTypeError",
    "JetStreamNotEnabledError",
    "JetSyncError",
    "KeyExistsError",
    "KeyNotFoundError",
    "KeysVanishedError",
    "LeadershipChangeError",
    "MaxConsumersError",
    "MaxControlLineError",
    "MaxMessagesError",
    "MaxPayloadError",
    "MaxRequestBatchError",
    "MaxRequestExpiresError",
    "MaxRequestMaxBytesError",
    "MaxStreamsError",
    "MaxWaitingError",
    "MessageAlreadyAckedError",
    "MessageNotFoundError",
    "MessageSizeExceedsMaxBytesError",
    "MessageTooLargeError",
    "MessageTtlDisabledError",
    "MessageTtlInvalidError",
    "MirrorAtomicError",
    "MirrorFastPublishError",
    "MissingExpectedSequenceError",
    "NoHeartbeatError",
    "NoRespondersError",
    "NoStreamResponseError",
    "NotJetStreamMessageError",
    "NotPullConsumerError",
    "NotSupportedError",
    "OverlappingFilterSubjectsError",
    "PermissionDeniedError",
    "PinIdMismatchError",
    "PluginError",
    "PriorityGroupNameError",
    "PriorityGroupNotFoundError",
    "PriorityGroupWithoutPolicyError",
    "PriorityPolicyWithoutGroupError",
    "ProtocolError",
    "PublishError",
    "PublishManyError",
    "PublishOutcomeUnknownError",
    "PushWithPriorityGroupError",
    "RequestTimeoutError",
    "RequiredApiLevelError",
    "ResetAttemptsExceededError",
    "RollupNotPermittedError",
    "SchedulePatternInvalidError",
    "ScheduleRollupInvalidError",
    "ScheduleSourceInvalidError",
    "ScheduleTargetInvalidError",
    "ScheduleTimeZoneInvalidError",
    "ScheduleTtlInvalidError",
    "SchedulesDisabledError",
    "ServerShutdownError",
    "SlowConsumerError",
    "StatusError",
    "StreamConfigInvalidError",
    "StreamNameInUseError",
    "StreamNotFoundError",
    "StreamSealedError",
    "SubjectCheckUnavailableError",
    "SubjectOverlapError",
    "SubscriptionLimitError",
    "TemporarilyUnavailableError",
    "TooManyInflightError",
    "TooManyRequestsError",
    "TooManySubjectsError",
    "TransportError",
    "UnknownStatusError",
    "WaitTimeoutError",
    "WrongLastMessageIdError",
    "WrongLastRevisionError",
    "WrongLastSequenceError",
    "WrongStreamError",
    # The version
    "__version__",
]

# Loaded on first use. They bring nats-py, asyncio and anyio, which take most of the import time.
_LAZY = {
    "client": ("Client", "connect"),
    "consume.acks": ("ack_many",),
    "consume.consumer": ("Consumer",),
    "consume.consumption": ("Consumption", "ConsumptionStatistics"),
    "consume.fetch": ("MessageBatch",),
    "consume.ordered": ("OrderedConsumer", "OrderedStatistics"),
    "consume.ordered_reads": ("OrderedBatch", "OrderedConsumption"),
    "consume.subscription": ("Subscription",),
    "counters": ("Counter", "CounterEntry"),
    "jetstream": ("JetStream",),
    "kv.handle": ("KeyValue",),
    "kv.transaction": ("Transaction",),
    "kv.watch": ("Watch",),
    "publish.atomic": ("AtomicBatch",),
    "publish.fast": ("FastPublisher", "FastStatistics"),
    "publish.publisher": ("DeliveryReport", "PublishFuture", "Publisher", "PublisherStatistics"),
    "read.direct": ("DirectBatch", "StreamScan"),
    "stream": ("Stream",),
}


_loaded = _locks.Latch()


def _show_as_public(names: list[str]) -> None:
    """Make tracebacks, reprs and pickles name the module that users import from."""
    for name in names:
        value = globals()[name]
        if getattr(value, "__module__", "").startswith("jetsync."):
            value.__module__ = "jetsync"


def _load() -> None:
    """Import all lazy names at once, because a program that connects needs most of them."""
    try:
        for module, names in _LAZY.items():
            home = importlib.import_module(f"jetsync.{module}")
            globals().update({name: getattr(home, name) for name in names})
            _show_as_public([*names])
    finally:
        _loaded.set()


if not TYPE_CHECKING:  # Type checkers would accept every name.

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module 'jetsync' has no attribute {name!r}")
        # Ctrl-C strikes only in the main thread. It would leave a half-imported nats-py broken.
        thread = threading.Thread(target=_load, name="jetsync-import")
        with _locks.keep_interrupts():
            thread.start()
        try:
            _loaded.wait()
        finally:
            # The import continues after Ctrl-C. An interrupted join would not wait for its end.
            _loaded.wait()
            thread.join()
        if name not in globals():
            _load()  # Raises the error that ended the thread.
        return globals()[name]


def __dir__() -> list[str]:
    return sorted(__all__)


_show_as_public([name for name in __all__ if name in globals()])
