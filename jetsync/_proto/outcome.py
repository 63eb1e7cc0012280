"""
What became of a publish that failed, and whether another attempt may follow, as one table.

:data:`OUTCOME_RULES` has the decisions. :func:`cause_of` reads the cause from an error, and
:func:`outcome_of` finds the rule: the first one that matches applies. The table has a rule for
every combination. The paths that publish make the error that the caller gets, and ask plugins.

What a new cause needs: a member of :class:`Cause` in a rule for each combination, its errors in
``_CAUSES``, and its lines in ``tests/proto/test_outcome.py``.
"""

from __future__ import annotations

import enum
import functools
from typing import Final

import attrs

from jetsync import errors


class Cause(enum.Enum):
    """Why an attempt ended."""

    ACK = "the stream has stored the message"
    SPLIT = "the server stored the messages of an atomic batch one by one"
    OWN_CONDITION = "the stream refused an id or a condition, perhaps because it has the message"
    NO_STREAM = "no stream took the message (503)"
    UNAVAILABLE = "JetStream is temporarily unavailable (503)"
    BUSY = "the server cannot store it at the moment"
    IN_PROCESS = "the server is storing a message with the same id"
    UNPROCESSED = "the server disconnected over a message before this one, or over this one"
    SILENT = "there was no answer in time"
    LOST = "the connection was lost"
    DOWN = "there was no connection in time"
    CLOSED = "the client was closed"
    DENIED = "the user has no permission"
    UNREADABLE = "the answer cannot be read"
    INTERRUPTED = "Ctrl-C or another exception interrupted the call"
    REFUSED = "the server refused the message for another reason"
    INVALID = "jetsync refused the message"


class Ending(enum.Enum):
    """What the stream has of the message or the batch."""

    STORED = "stored"
    NOT_STORED = "not stored"
    UNKNOWN = "unknown"
    # Some or all messages of an atomic batch, but not as a batch.
    SPLIT = "split"


class Again(enum.Enum):
    """Whether another attempt may follow."""

    NEVER = "never"
    # Without asking, but only if this was the first attempt.
    ONCE = "once"
    # A plugin decides. Without one, the options say how often.
    COUNTED = "counted"
    # A plugin decides. Without one, there is no other attempt.
    ASK = "ask"
    # As ASK for batches and objects. Single messages fail at once.
    PATIENT = "patient"
    # As COUNTED for batches, and as ASK for objects. Single messages fail at once.
    BATCHES = "batches"
    # Batches read from the stream whether an earlier attempt was stored. Otherwise as NEVER.
    LOOK = "look"


@attrs.frozen
class OutcomeRule:
    """One row of the table. None matches both values."""

    causes: tuple[Cause, ...]
    # Whether the server may have received this attempt; of a batch, its commit.
    sent: bool | None
    # Whether an earlier attempt may be stored.
    earlier: bool | None
    # Whether the stream cannot store the message twice: it has an id, or a condition on the last
    # sequence.
    safe: bool | None
    ending: Ending
    again: Again

    @property
    def may_repeat_message(self) -> bool:
        """Whether a single message may be sent again, if a plugin or the options want it."""
        return self.again is Again.COUNTED or self.again is Again.ASK

    @property
    def may_repeat_batch(self) -> bool:
        """Whether a batch or an object may be sent again."""
        return self.again not in {Again.NEVER, Again.LOOK}

    @property
    def repeats_whole_batch(self) -> bool:
        """Whether a call that sends a whole batch sends it again at once, without asking."""
        return self.again is Again.ASK and self.sent is False

    @property
    def counts_batch(self) -> bool:
        """Whether the options say how often a batch is sent again, without a plugin."""
        return self.again is Again.COUNTED or self.again is Again.BATCHES


_C, _R = Cause, OutcomeRule
_STORED, _NOT_STORED, _UNKNOWN = Ending.STORED, Ending.NOT_STORED, Ending.UNKNOWN
_UNANSWERED: Final = (_C.SILENT, _C.UNREADABLE, _C.LOST, _C.DENIED)
_REFUSED: Final = (_C.OWN_CONDITION, _C.REFUSED, _C.INVALID)
# Answers and time-outs, too: those of a batch whose commit was not sent.
_UNSENT: Final = (_C.SILENT, _C.UNREADABLE, _C.DENIED, _C.CLOSED, _C.INTERRUPTED)

# fmt: off
OUTCOME_RULES: Final = (
    #  causes                                     sent   earlier safe  ending       again
    _R((_C.ACK,),                                 None,  None,  None,  _STORED,     Again.NEVER),
    _R((_C.SPLIT,),                               None,  None,  None,  Ending.SPLIT, Again.NEVER),
    # The refusal does not decide the earlier attempt, which may be why the server refuses.
    _R((_C.OWN_CONDITION,),                       None,  True,  None,  _UNKNOWN,    Again.LOOK),
    _R((_C.NO_STREAM,),                           None,  True,  None,  _UNKNOWN,    Again.COUNTED),
    # The server is still storing the earlier attempt, and soon knows its outcome.
    _R((_C.IN_PROCESS,),                          None,  True,  None,  _UNKNOWN,    Again.ASK),
    _R((_C.BUSY,),                                None,  True,  None,  _UNKNOWN,    Again.PATIENT),
    _R((_C.UNAVAILABLE,),                         None,  True,  None,  _UNKNOWN,    Again.BATCHES),
    _R((_C.NO_STREAM,),                           None,  False, None,  _NOT_STORED, Again.COUNTED),
    _R((_C.UNAVAILABLE,),                         None,  False, None,  _NOT_STORED, Again.BATCHES),
    _R((_C.BUSY, _C.IN_PROCESS),                  None,  False, None,  _NOT_STORED, Again.PATIENT),
    _R((_C.UNPROCESSED,),                         None,  False, None,  _NOT_STORED, Again.ONCE),
    # Nothing was sent, so the attempt costs nothing and changes nothing.
    _R((_C.LOST,),                                False, False, None,  _NOT_STORED, Again.ASK),
    _R((_C.LOST,),                                False, True,  None,  _UNKNOWN,    Again.ASK),
    _R((_C.DOWN,),                                None,  False, None,  _NOT_STORED, Again.ASK),
    _R((_C.DOWN,),                                None,  True,  None,  _UNKNOWN,    Again.ASK),
    _R(_UNANSWERED,                               True,  None,  True,  _UNKNOWN,    Again.ASK),
    _R(_UNANSWERED,                               True,  None,  False, _UNKNOWN,    Again.NEVER),
    _R((_C.CLOSED, _C.INTERRUPTED),               True,  None,  None,  _UNKNOWN,    Again.NEVER),
    # No other failure of this attempt decides the earlier one.
    _R(tuple(Cause),                              None,  True,  None,  _UNKNOWN,    Again.NEVER),
    _R(_REFUSED,                                  None,  False, None,  _NOT_STORED, Again.NEVER),
    _R(_UNSENT,                                   False, False, None,  _NOT_STORED, Again.NEVER),
)
# fmt: on
"""What follows from each cause. The first row that matches applies."""

# The first row whose class matches applies. Other errors come before a message is sent.
_CAUSES: Final = (
    ((errors.RequestTimeoutError, type(None)), _C.SILENT),
    ((errors.NoRespondersError, errors.NoStreamResponseError), _C.NO_STREAM),
    (errors.ConnectionLostError, _C.LOST),
    (errors.DisconnectedError, _C.DOWN),
    (errors.ConnectionClosedError, _C.CLOSED),
    (errors.PermissionDeniedError, _C.DENIED),
    (errors.ProtocolError, _C.UNREADABLE),
    (errors.AtomicityError, _C.SPLIT),
    (errors.DuplicateMessageInProcessError, _C.IN_PROCESS),
    (errors.TemporarilyUnavailableError, _C.UNAVAILABLE),
    (
        (
            errors.WrongLastSequenceError,
            errors.WrongLastMessageIdError,
            errors.DuplicateMessageIdError,
        ),
        _C.OWN_CONDITION,
    ),
    (
        (
            errors.InsufficientResourcesError,
            errors.TooManyRequestsError,
            errors.TooManyInflightError,
            errors.BatchIncompleteError,
        ),
        _C.BUSY,
    ),
    (errors.ApiError, _C.REFUSED),
)

# After these, the attempt was not sent. Other errors say it, or come after it was sent.
_NEVER_SENT: Final = {Cause.DOWN, Cause.INVALID}

# If a server has no room (503), the next leader may have some. The limit of an account (400) is the
# same on all servers.
_ACCOUNT_LIMIT: Final = 400


def cause_of(error: BaseException | None) -> tuple[Cause, bool]:
    """
    Return the cause of an attempt that failed with *error*, and whether it was sent.

    None means that there was no answer in time. An unknown outcome has the cause of its error.
    """
    if isinstance(error, errors.PublishOutcomeUnknownError):
        error = error.__cause__
    cause = next((cause for kinds, cause in _CAUSES if isinstance(error, kinds)), Cause.INVALID)
    if isinstance(error, errors.InsufficientResourcesError) and error.code == _ACCOUNT_LIMIT:
        cause = Cause.REFUSED
    return cause, getattr(error, "sent", cause not in _NEVER_SENT)


@functools.cache
def outcome_of(
    cause: Cause, *, sent: bool, earlier: bool = False, safe: bool = False
) -> OutcomeRule:
    """
    Return the rule for one attempt.

    Args:
        cause: Why it ended.
        sent: Whether the server may have received it.
        earlier: Whether an earlier attempt may be stored.
        safe: Whether the stream cannot store the message twice.
    """
    return next(
        rule
        for rule in OUTCOME_RULES
        if cause in rule.causes
        and rule.sent in {None, sent}
        and rule.earlier in {None, earlier}
        and rule.safe in {None, safe}
    )
