from __future__ import annotations

import pytest

from jetsync import errors
from jetsync._proto.status import STATUS_RULES, Effect, find_rule, read_status
from jetsync.values.headers import encode_headers

PENDING = {"Nats-Pending-Messages": "9", "Nats-Pending-Bytes": "99908"}
LAST = {"Nats-Last-Consumer": "4", "Nats-Last-Stream": "17"}

# Every status line that servers were observed to send, with its headers (facts, section 3.1).
LINES = [
    ("100 Idle Heartbeat", LAST, Effect.ALIVE, None),
    ("100 Idle Heartbeat", {}, Effect.ALIVE, None),
    ("404 No Messages", {}, Effect.ENDED, None),
    ("408 Request Timeout", PENDING, Effect.ENDED, None),
    ("408 Requests Pending", {}, Effect.ENDED, None),
    ("408 Interest Expired", PENDING, Effect.ENDED, None),
    (
        "409 Message Size Exceeds MaxBytes",
        PENDING,
        Effect.ENDED,
        errors.MessageSizeExceedsMaxBytesError,
    ),
    ("409 Batch Completed", PENDING, Effect.ENDED, None),
    ("409 Server Shutdown", PENDING, Effect.TRANSIENT, errors.ServerShutdownError),
    ("409 Leadership Change", {}, Effect.TRANSIENT, errors.LeadershipChangeError),
    ("409 Consumer Deleted", {}, Effect.FAULT, errors.ConsumerDeletedError),
    ("409 Consumer is push based", {}, Effect.FAULT, errors.NotPullConsumerError),
    ("409 Exceeded MaxRequestBatch of 10", {}, Effect.FAULT, errors.MaxRequestBatchError),
    ("409 Exceeded MaxRequestExpires of 2s", {}, Effect.FAULT, errors.MaxRequestExpiresError),
    ("409 Exceeded MaxRequestMaxBytes of 1000", {}, Effect.FAULT, errors.MaxRequestMaxBytesError),
    ("409 Exceeded MaxWaiting", {}, Effect.FAULT, errors.MaxWaitingError),
    (
        "400 Bad Request - heartbeat value too large",
        {},
        Effect.FAULT,
        errors.BadPullRequestError,
    ),
    (
        "400 Bad Request - invalid character 'b' looking for beginning of value",
        {},
        Effect.FAULT,
        errors.BadPullRequestError,
    ),
    (
        "400 Bad Request - json: cannot unmarshal string into Go value",
        {},
        Effect.FAULT,
        errors.BadPullRequestError,
    ),
    ("400 Bad Request - Priority Group missing", {}, Effect.FAULT, errors.InvalidGroupError),
    ("400 Bad Request - Invalid Priority Group", {}, Effect.FAULT, errors.InvalidGroupError),
    (
        "400 Bad Request - Not a Overflow Priority consumer",
        {},
        Effect.FAULT,
        errors.InvalidGroupError,
    ),
    (
        "400 Bad Request - Not a Pinned Client Priority consumer",
        {},
        Effect.FAULT,
        errors.InvalidGroupError,
    ),
    (
        "400 Bad Request - Priority must be between 0 and 9",
        {},
        Effect.FAULT,
        errors.InvalidGroupError,
    ),
    ("423 Nats-Pin-Id mismatch", {}, Effect.TRANSIENT, errors.PinIdMismatchError),
    ("423 Nats-Wrong-Pin-Id", PENDING, Effect.TRANSIENT, errors.PinIdMismatchError),
    ("423 Nats-Wrong-Pin-Id", {}, Effect.TRANSIENT, errors.PinIdMismatchError),
    ("412 Required Api Level", {}, Effect.FAULT, errors.RequiredApiLevelError),
    ("503", {"Nats-Subject": "x"}, Effect.ABSENT, errors.ConsumerUnavailableError),
    ("503", {}, Effect.ABSENT, errors.ConsumerUnavailableError),
]


def block(line, headers):
    """Return a status as it arrives over the wire."""
    return b"NATS/1.0 " + line.encode() + encode_headers(headers.items())[8:]


class TestLines:
    @pytest.mark.parametrize(("line", "headers", "effect", "error"), LINES)
    def test_every_status_line_of_servers_has_one_meaning(self, line, headers, effect, error):
        """Every status line of servers has one meaning, with or without its headers."""
        status = read_status(block(line, headers))
        code, _, description = line.partition(" ")
        assert (status.code, status.description) == (int(code), description)
        assert (status.effect, status.rule.error) == (effect, error)
        counted = "Nats-Pending-Messages" in headers
        assert status.pending_messages == (9 if counted else None)
        assert status.pending_bytes == (99908 if counted else None)
        assert status.rule in STATUS_RULES

    def test_a_503_with_a_header_is_a_status_like_any_other(self):
        """A 503 with a header and without a description is a status like any other."""
        status = read_status(b"NATS/1.0 503\r\nNats-Subject: x\r\n\r\n")
        assert (status.code, status.description) == (503, "")
        assert status.effect is Effect.ABSENT
        assert isinstance(status.error("S", "c"), errors.ConsumerUnavailableError)

    @pytest.mark.parametrize("rest", [b"", b" "])
    def test_bare_code(self, rest):
        """A code needs no description."""
        assert read_status(b"NATS/1.0 404" + rest + b"\r\n\r\n").effect is Effect.ENDED

    @pytest.mark.parametrize("header", [b"", b"A: b\r\n", b"Nats-Pending-Messages: 5\r\n"])
    def test_an_ordinary_message_has_no_status(self, header):
        """An ordinary message has no status, whatever its headers."""
        assert read_status(b"NATS/1.0\r\n" + header + b"\r\n") is None

    @pytest.mark.parametrize(("text", "count"), [("0", 0), ("-1", None)])
    def test_limits_that_were_not_requested_are_not_counted(self, text, count):
        """Limits that were not requested are not counted: servers send -1 for them."""
        status = read_status(block("408 Request Timeout", {"Nats-Pending-Messages": text}))
        assert (status.pending_messages, status.pending_bytes) == (count, None)

    @pytest.mark.parametrize(
        "text", ["", "x", "+1", "1_0", "\u0661", "9" * 4300, "1e9", str(1 << 64)]
    )
    def test_an_invalid_count(self, text):
        """A count that is not a number of 64 bits is a protocol error."""
        with pytest.raises(errors.ProtocolError):
            read_status(block("408 Request Timeout", {"Nats-Pending-Messages": text}))

    @pytest.mark.parametrize("code", [b"9" * 4300, b"-1", b"+408", b"4_8", "\u0664".encode()])
    def test_an_invalid_code(self, code):
        """A code that is not a short number is a protocol error."""
        with pytest.raises(errors.ProtocolError):
            read_status(b"NATS/1.0 " + code + b" Oops\r\n\r\n")

    def test_not_a_block(self):
        """Bytes that are not a header block are a protocol error."""
        with pytest.raises(errors.ProtocolError):
            read_status(b"HTTP/1.1 404\r\n\r\n")


class TestRules:
    @pytest.mark.parametrize(
        "rule", STATUS_RULES, ids=lambda rule: f"{rule.code} {rule.text}".strip()
    )
    def test_found_by_itself(self, rule):
        """No rule hides another one: each matches its own code and text, in any case."""
        assert find_rule(rule.code, rule.text) is rule
        assert find_rule(rule.code, rule.text.upper() + " and more") is rule
        assert rule.text == rule.text.lower()
        assert rule.meaning

    @pytest.mark.parametrize("rule", STATUS_RULES, ids=lambda rule: str(rule.code))
    def test_errors_where_needed(self, rule):
        """A status that is raised, at once or if it lasts, has an error; a heartbeat has none."""
        if rule.effect in {Effect.FAULT, Effect.TRANSIENT, Effect.ABSENT}:
            assert issubclass(rule.error, errors.StatusError)
        if rule.effect is Effect.ALIVE:
            assert rule.error is None

    def test_every_rule_was_seen(self):
        """Every rule matches a line that servers send. A new rule needs its line in `LINES`."""
        found = {find_rule(int(line.split()[0]), line[4:]) for line, *_ in LINES}
        assert found == set(STATUS_RULES)

    @pytest.mark.parametrize(
        ("code", "description"),
        [(400 + 99, "Teapot"), (500, ""), (409, "Something New"), (599, "x"), (429, "Too Many")],
    )
    def test_an_unknown_status_from_400_up_is_an_error(self, code, description):
        """A status from 400 up that no rule matches is an error, and is shown unchanged."""
        rule = find_rule(code, description)
        assert (rule.effect, rule.error) == (Effect.FAULT, errors.UnknownStatusError)
        assert (rule.code, rule.text) == (0, "")
        status = read_status(block(f"{code} {description}".strip(), {}))
        error = status.error("S", "c")
        assert type(error) is errors.UnknownStatusError
        assert (error.code, error.description) == (code, description)

    @pytest.mark.parametrize("code", [101, 200, 299, 399])
    def test_unknown_note(self, code):
        """A status below 400 that no rule matches changes nothing."""
        rule = find_rule(code, "whatever")
        assert (rule.code, rule.text, rule.effect) == (0, "", Effect.ALIVE)

    def test_the_error_of_a_status_names_consumer_and_limit(self):
        """The error of a status names the consumer, and the limit if there is one."""
        error = read_status(block("409 Exceeded MaxRequestBatch of 10", {})).error("S", "c")
        assert (error.code, error.stream, error.consumer, error.limit) == (409, "S", "c", 10)
        error = read_status(block("409 Exceeded MaxRequestExpires of 2s", {})).error("S", "c")
        assert error.limit == "2s"
