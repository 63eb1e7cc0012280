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
    ├── CallInSignalHandlerError (RuntimeError)   a handler interrupted a call of its thread
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
    ├── ApiError                              the server answered with an error; see ERROR_CLASSES
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

# ruff: noqa: F403 - every public name of the files below is a name of this module.

from __future__ import annotations

from jetsync.errors.api import *
from jetsync.errors.base import *
from jetsync.errors.status import *
from jetsync.errors.transport import *
from jetsync.errors.usage import *
