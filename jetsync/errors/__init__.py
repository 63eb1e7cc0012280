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
    │   │   ├── NotSystemAccountError         only users of the system account get an answer
    │   │   └── ServerNotFoundError
    │   ├── PermissionDeniedError (PermissionError)
    │   ├── SubscriptionLimitError
    │   ├── SlowConsumerError
    │   └── ForkedProcessError (RuntimeError)
    ├── CallInSignalHandlerError (RuntimeError)   the interrupted call cannot continue
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
    ├── DecodeError (ValueError)              a payload, key or value in another format
    ├── CopiedMessageError                    only the original message can be acknowledged
    ├── AcksNotWantedError
    ├── HandleClosedError                     the object is closed
    │   ├── ConsumptionClosedError
    │   ├── FileClosedError (ValueError)
    │   └── BatchClosedError
    ├── ConflictingUseError (RuntimeError)
    │   └── ConsumerInUseError                a push consumer with another subscriber
    ├── ResetAttemptsExceededError            an ordered consumer could not be recreated
    ├── KeyNotFoundError (KeyError)
    ├── KeysVanishedError                     a snapshot that is no longer complete
    ├── ObjectNotFoundError (KeyError)
    ├── ObjectIsLinkError                     a link has no data of its own
    ├── ObjectCorruptedError                  stored data is missing or has another digest
    ├── BackupError                           no files were written
    ├── BackupDamagedError                    nothing was sent
    ├── RestoreError                          says what the server has now
    ├── PluginError                           may carry a report; in _hooks.errors
    └── DevServerError
"""

# ruff: noqa: F403 - this module only shows the names of other modules.

from __future__ import annotations

import typing as _t

from jetsync.errors.api import *
from jetsync.errors.backups import *
from jetsync.errors.base import *
from jetsync.errors.objects import *
from jetsync.errors.status import *
from jetsync.errors.transport import *
from jetsync.errors.usage import *

# Type checkers cannot read this list. They take every name without an underscore in the files above
# for public, so those files import other names under an alias.
if not _t.TYPE_CHECKING:
    __all__ = sorted(name for name in globals() if name.endswith("Error"))  # noqa: PLE0605
    for _name in __all__:
        # Tracebacks and pickles name the module that users import from.
        globals()[_name].__module__ = "jetsync"
