"""
Every error that jetsync raises, as one tree.

Nothing of the libraries below reaches a user except as ``__cause__``. An error takes its data as
named arguments, keeps them as attributes and composes its own text; it can be pickled and copied,
and never contains a secret::

    JetSyncError
    ├── InvalidArgumentError (ValueError)     local misuse: nothing was sent
    │   ├── InvalidSubjectError
    │   ├── InvalidNameError
    │   │   ├── InvalidBucketError
    │   │   └── InvalidKeyError
    │   ├── InvalidHeaderError
    │   │   └── BatchRuleError                a header that an atomic batch can not have
    │   ├── InvalidTtlError
    │   ├── MaxControlLineError
    │   └── MaxPayloadError
    ├── InvalidTypeError (TypeError)
    ├── ConfigurationError                    environment, context file, optional dependency
    ├── TransportError                        the connection, not JetStream
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
    ├── CallInSignalHandlerError (RuntimeError)   a handler interrupted a call of its own thread
    ├── RequestTimeoutError (TimeoutError)    no answer to a request that stores nothing
    ├── WaitTimeoutError (TimeoutError)       a local wait ended, the handle is sound
    ├── ProtocolError                         an answer that cannot be understood
    ├── PublishError
    │   ├── NoStreamResponseError             not stored
    │   ├── PublishOutcomeUnknownError (TimeoutError)
    │   │   └── BatchOutcomeUnknownError      carries the batch; in publish.errors
    │   ├── PublishManyError                  carries the report; in publish.errors
    │   ├── BatchGapError                     fast ingest lost messages
    │   └── AtomicityError                    a batch was stored message by message
    ├── ApiError                              a server's answer, by err_code: ERROR_CLASSES
    ├── StatusError                           a status line that ends a pull or a direct get
    │   ├── ConsumerDeletedError, NotPullConsumerError, ConsumerUnavailableError
    │   ├── MaxRequestBatchError, MaxRequestMaxBytesError, MaxRequestExpiresError
    │   ├── MaxWaitingError, MessageSizeExceedsMaxBytesError
    │   ├── LeadershipChangeError, ServerShutdownError
    │   ├── BadPullRequestError
    │   │   └── InvalidGroupError
    │   ├── PinIdMismatchError, RequiredApiLevelError, NoHeartbeatError
    │   ├── BadDirectRequestError, TooManySubjectsError
    │   └── UnknownStatusError
    ├── NotSupportedError                     the server is too old, or the stream forbids it
    │   └── DirectNotSupportedError
    │       └── IncompleteMirrorError
    ├── NotJetStreamMessageError
    ├── MessageAlreadyAckedError
    ├── AcksNotWantedError
    ├── HandleClosedError                     a handle that has ended
    │   ├── ConsumptionClosedError
    │   └── BatchClosedError
    ├── ConflictingUseError (RuntimeError)
    ├── ResetAttemptsExceededError            an ordered consumer that gave up
    ├── KeyNotFoundError (KeyError)
    ├── KeysVanishedError                     a read of many keys at a moment that is gone
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
