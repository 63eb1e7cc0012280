from __future__ import annotations

import types

import pytest

from jetsync._base.deadline import Deadline
from jetsync._base.locks import Latch
from jetsync.errors import (
    ConnectionClosedError,
    ConnectionLostError,
    DisconnectedError,
    DuplicateMessageInProcessError,
    JetSyncError,
    NoRespondersError,
    NoStreamResponseError,
    PermissionDeniedError,
    PublishOutcomeUnknownError,
)
from jetsync.publish.one import _encode_subject, publish_one
from jetsync.values.outbound import OutboundMessage
from jetsync.values.pub_acks import PubAck

REFUSED = NoRespondersError("a")
STORED = (b"", b"", None, b'{"stream":"S","seq":1,"duplicate":true}')
WRONG = (
    b"",
    b"",
    None,
    b'{"error":{"code":400,"err_code":10071,"description":"wrong last sequence: 1"},"stream":"S"}',
)
BUSY = (
    b"",
    b"",
    None,
    b'{"error":{"code":409,"err_code":10158,"description":"in process"},"stream":"S"}',
)


@pytest.fixture
def publish():
    """Publish, where the test decides each outcome and a plugin asks for up to three attempts."""

    def publish(*outcomes, msg_id="1"):
        left = iter(outcomes)

        def ask(*_, **options):
            outcome = next(left)
            if isinstance(outcome, JetSyncError):
                raise outcome
            return outcome

        plugins = types.SimpleNamespace(
            status=None,
            enter_publish=None,
            prepare=None,
            shared_headers=None,
            retry=lambda operation, error, attempt: 0.0 if attempt < 3 else None,
        )
        connection = types.SimpleNamespace(exchange=ask, plugins=plugins, closing=Latch())
        context = types.SimpleNamespace(connection=connection, plugins=plugins)
        message = OutboundMessage("a", b"x", msg_id=msg_id)
        return publish_one(context, message, Deadline.after(10), retries=0, retry_wait=0.0)

    return publish


class TestAfterAnUnknownOutcome:
    @pytest.mark.parametrize(
        "later",
        [
            [DisconnectedError(timeout=1.0), DisconnectedError(timeout=1.0)],
            [ConnectionClosedError()],
            [PermissionDeniedError("a", "publish")],
            [REFUSED, REFUSED],
            [REFUSED, DisconnectedError(timeout=1.0)],
            [WRONG],
        ],
    )
    def test_a_later_refusal_leaves_it_unknown(self, publish, later):
        """A refusal of the last attempt does not decide the first one: the outcome is unknown."""
        with pytest.raises(PublishOutcomeUnknownError) as caught:
            publish(ConnectionLostError(subject="a"), *later)
        assert caught.value.msg_id == "1"
        assert "an earlier attempt got no answer" in str(caught.value)
        assert isinstance(caught.value.__cause__, JetSyncError)

    def test_an_ack_settles_it(self, publish):
        """If the message has an id, an ack of one attempt decides all of them."""
        assert publish(ConnectionLostError(subject="a"), STORED) == PubAck("S", 1, duplicate=True)

    def test_a_message_that_the_server_is_storing_goes_again(self, publish):
        """The server refuses a copy while it stores the first one, and later confirms it."""
        assert publish(ConnectionLostError(subject="a"), BUSY, STORED).duplicate
        with pytest.raises(PublishOutcomeUnknownError, match="in process"):
            publish(ConnectionLostError(subject="a"), BUSY, BUSY)

    def test_an_answer_that_cannot_be_read(self, publish):
        """Such an answer leaves the outcome unknown, so a message with an id may go again."""
        assert publish((b"", b"", None, b"no JSON"), STORED).duplicate

    def test_a_client_that_was_closed(self, publish):
        """No plugin is asked if the client was closed after the message was sent."""
        with pytest.raises(PublishOutcomeUnknownError, match="closed"):
            publish(ConnectionClosedError(sent=True), STORED)

    def test_without_an_id_it_is_not_repeated(self, publish):
        """No plugin can request a retry that might store a message twice."""
        with pytest.raises(PublishOutcomeUnknownError):
            publish(ConnectionLostError(subject="a"), STORED, msg_id=None)


class TestCertainOutcomes:
    def test_another_program_is_storing_a_message_with_this_id(self, publish):
        """Without an earlier attempt, the copy is not this program's."""
        with pytest.raises(DuplicateMessageInProcessError):
            publish(BUSY, STORED)

    @pytest.mark.parametrize(
        "error", [DisconnectedError(timeout=1.0), ConnectionLostError(sent=False)]
    )
    def test_nothing_was_sent(self, publish, error):
        """A plugin may have a message sent again that was not sent; its error stays as it was."""
        assert publish(error, STORED, msg_id=None).sequence == 1
        with pytest.raises(type(error)):
            publish(REFUSED, error, error)

    @pytest.mark.parametrize("error", [ConnectionClosedError(), PermissionDeniedError("a", "b")])
    def test_nothing_can_be_sent(self, publish, error):
        """No plugin is asked if the client is closed or the user may not publish."""
        with pytest.raises(type(error)):
            publish(REFUSED, error)

    def test_a_publish_that_no_stream_took_is_not_stored(self, publish):
        """A message that no stream took in any attempt is not stored."""
        with pytest.raises(NoStreamResponseError) as caught:
            publish(REFUSED, REFUSED, REFUSED)
        assert caught.value.attempts == 3


def test_a_subject_is_checked_once():
    """
    The bytes of a subject that was published before are kept.
    """
    subject = "orders.checked.once"
    assert _encode_subject(subject) is _encode_subject(subject)
