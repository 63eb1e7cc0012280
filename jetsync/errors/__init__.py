"""
All errors that jetsync raises, in one tree.

Errors of the underlying libraries reach your code only as ``__cause__``. All errors have their data
as attributes, can be pickled and copied, and never contain secrets::

    JetSyncError
    ├── InvalidArgumentError (ValueError)     an invalid argument; nothing was sent
    │   ├── InvalidSubjectError
    │   ├── InvalidNameError
    │   │   ├── InvalidBucketError
    │   │   └── InvalidKeyError
    │   ├── InvalidHeaderError
    │   │   └── BatchRuleError                a header that an atomic batch does not allow
    │   ├── InvalidTtlError
    │   ├── MaxControlLineError
    │   └── MaxPayloadError
    ├── InvalidTypeError (TypeError)
    ├── ConfigurationError                    environment, context file, optional dependency
    ├── TransportError                        the connection or core NATS
    │   ├── ConnectError (ConnectionError)
    │   │   ├── ConnectTimeoutError (TimeoutError)
    │   │   └── AuthenticationError
    │   ├── ConnectionClosedError (ConnectionError)
    │   ├── DisconnectedError (ConnectionError, TimeoutError)
    │   ├── ConnectionLostError (ConnectionError)
    │   ├── NoRespondersError
    │   ├── PermissionDeniedError (PermissionError)
    │   ├── SubscriptionLimitError
    │   ├── SlowConsumerError
    │   └── ForkedProcessError (RuntimeError)
    ├── CallInSignalHandlerError (RuntimeError)   the interrupted call holds a lock
    ├── RequestTimeoutError (TimeoutError)    no reply to a request that stores nothing
    ├── WaitTimeoutError (TimeoutError)       a local wait timed out
    ├── ProtocolError                         an answer that jetsync cannot parse
    ├── PublishError
    │   ├── NoStreamResponseError             not stored
    │   ├── PublishOutcomeUnknownError (TimeoutError)
    │   │   └── BatchOutcomeUnknownError      carries the batch; in publish.errors
    │   ├── PublishManyError                  carries the report; in publish.errors
    │   ├── BatchGapError                     messages of a fast-ingest batch were lost
    │   └── AtomicityError                    a batch was stored message by message
    ├── ApiError                              the server refused; subclasses: `ApiError.classes`
    ├── StatusError                           a status ended a pull or a direct get
    │   ├── ConsumerDeletedError, NotPullConsumerError, ConsumerUnavailableError
    │   ├── MaxRequestBatchError, MaxRequestMaxBytesError, MaxRequestExpiresError
    │   ├── MaxWaitingError, MessageSizeExceedsMaxBytesError
    │   ├── LeadershipChangeError, ServerShutdownError
    │   ├── BadPullRequestError
    │   │   └── InvalidGroupError
    │   ├── PinIdMismatchError, RequiredApiLevelError, NoHeartbeatError
    │   ├── BadDirectRequestError, TooManySubjectsError
    │   └── UnknownStatusError
    ├── NotSupportedError                     the server is too old, or the stream does not allow it
    │   └── DirectNotSupportedError
    │       └── IncompleteMirrorError
    ├── NotJetStreamMessageError
    ├── MessageAlreadyAckedError
    ├── CopiedMessageError                    only the original message can be acknowledged
    ├── AcksNotWantedError
    ├── HandleClosedError                     the object is closed
    │   ├── ConsumptionClosedError
    │   └── BatchClosedError
    ├── ConflictingUseError (RuntimeError)
    ├── ResetAttemptsExceededError            an ordered consumer could not be recreated
    ├── KeyNotFoundError (KeyError)
    ├── KeysVanishedError                     a snapshot that is no longer complete
    ├── PluginError                           may carry a report; in _hooks.errors
    └── DevServerError
"""

# ruff: noqa: F403, F405 - the star imports below define the names in `__all__`.

from __future__ import annotations

from jetsync.errors.api import *
from jetsync.errors.base import *
from jetsync.errors.status import *
from jetsync.errors.transport import *
from jetsync.errors.usage import *

__all__ = [
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
    "CopiedMessageError",
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
    "PriorityGroupNameError",
    "PriorityGroupNotFoundError",
    "PriorityGroupWithoutPolicyError",
    "PriorityPolicyWithoutGroupError",
    "ProtocolError",
    "PublishError",
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
]
