from __future__ import annotations

import copy
import inspect
import pickle
import re

import attrs
import pytest

import jetsync
from jetsync import errors
from jetsync.errors import ApiError, JetSyncError, StatusError
from jetsync.errors.answers import from_api_error
from jetsync.errors.texts import redact_text, redact_url
from jetsync.values.outbound import OutboundMessage
from jetsync.values.pub_acks import PublishFailure, PublishReport

FAILURE = PublishFailure(7, OutboundMessage("a.b", memoryview(b"x")), ValueError("no"))
ARGUMENTS = {
    "subject": "a.b",
    "kind": "stream",
    "name": "a.b",
    "value": 0.5,
    "size": 10,
    "limit": 5,
    "timeout": 1.5,
    "operation": "publish",
    "dropped": 3,
    "what": "message",
    "report": PublishReport(3, 0, 1, 3, (FAILURE,)),
    "first_missing": 3,
    "sequence": 5,
    "batch_id": "b1",
    "feature": "eob",
    "needs": "server 2.14",
    "stream": "S",
    "consumer": "C",
    "mirror": "M",
    "attempts": 2,
    "bucket": "B",
    "key": "k",
    "keys": ["a", "b"],
    "plugin": "p",
    "hook": "jetsync_publish",
    "message": "it failed",
    "reason": "it is late",
    "reply": "r.1",
    "server_id": "NA",
    "path": "folder",
    "outcome": "part",
}


def all_classes() -> list[type[JetSyncError]]:
    """Return every public error class."""
    return [
        cls
        for cls in vars(jetsync).values()
        if inspect.isclass(cls) and issubclass(cls, JetSyncError)
    ]


def make(cls: type[JetSyncError], *, full: bool = False) -> JetSyncError:
    """Make an error with its required arguments, or with all that have a value in this file."""
    given = {
        name: ARGUMENTS[name]
        for name, parameter in inspect.signature(cls.__init__).parameters.items()
        if name in ARGUMENTS and (full or parameter.default is parameter.empty)
    }
    return cls(**given)


def state(error: JetSyncError) -> dict[str, object]:
    """Return an error's attributes, without reports, which are compared separately."""
    return {
        name: value for name, value in vars(error).items() if not isinstance(value, PublishReport)
    }


def test_every_error_is_public():
    """
    `__all__` of `jetsync.errors` lists each error that its files define.
    """
    defined = {
        name
        for module in (
            errors.api,
            errors.backups,
            errors.base,
            errors.objects,
            errors.status,
            errors.transport,
            errors.usage,
        )
        for name, value in vars(module).items()
        if inspect.isclass(value) and issubclass(value, JetSyncError)
    }

    assert defined == set(errors.__all__)


@pytest.mark.parametrize("cls", all_classes())
class TestEveryClass:
    @pytest.mark.parametrize("full", [False, True])
    def test_an_error_comes_back_from_pickle_with_its_data(self, cls, full):
        """An error comes back from pickle with its class, text and data."""
        error = make(cls, full=full)
        again = pickle.loads(pickle.dumps(error))
        assert type(again) is cls
        assert str(again) == str(error)
        assert again.args == error.args
        assert state(again) == state(error)

    def test_a_copied_error_has_the_same_class_text_and_data(self, cls):
        """A copied error has the same class, text and data."""
        error = make(cls)
        again = copy.copy(error)
        assert type(again) is cls
        assert (str(again), state(again)) == (str(error), state(error))

    def test_can_be_raised_and_caught_as_root(self, cls):
        """Every error is caught as JetSyncError and as each of its bases."""
        for base in cls.__mro__[:-1]:
            with pytest.raises(base):
                raise make(cls)

    def test_the_text_of_an_error_is_one_line(self, cls):
        """The text of an error is one line, and not a repr."""
        text = str(make(cls, full=True))
        assert "\n" not in text
        assert not text.startswith(("'", "("))

    def test_every_error_class_is_documented_and_in_the_tree(self, cls):
        """Every class has its own docstring and is in the tree of the module's docstring."""
        assert "__doc__" in vars(cls)
        assert cls.__doc__
        assert issubclass(cls, ApiError) or cls.__name__ in errors.__doc__


@pytest.mark.parametrize(
    ("name", "builtin"),
    [
        ("InvalidArgumentError", ValueError),
        ("InvalidTypeError", TypeError),
        ("ConnectError", ConnectionError),
        ("ConnectTimeoutError", TimeoutError),
        ("ConnectionClosedError", ConnectionError),
        ("DisconnectedError", TimeoutError),
        ("DisconnectedError", ConnectionError),
        ("ConnectionLostError", ConnectionError),
        ("PermissionDeniedError", PermissionError),
        ("ForkedProcessError", RuntimeError),
        ("RequestTimeoutError", TimeoutError),
        ("WaitTimeoutError", TimeoutError),
        ("PublishOutcomeUnknownError", TimeoutError),
        ("KeyNotFoundError", KeyError),
    ],
)
def test_builtin_base(name, builtin):
    """An error can be caught as its built-in base class."""
    assert issubclass(getattr(errors, name), builtin)


def test_os_error_fields_stay_empty():
    """Errors that are also OSErrors take no errno from their text."""
    error = errors.PermissionDeniedError("a.b", "publish")
    assert error.errno is None
    assert error.strerror is None
    assert str(error) == "permission denied: may not publish to 'a.b'"


def test_notes_survive_pickle():
    """Notes that were added to an error survive pickling."""
    error = errors.NoRespondersError("a")
    error.__notes__ = ["seen twice"]
    assert pickle.loads(pickle.dumps(error)).__notes__ == ["seen twice"]


class TestApiErrors:
    @pytest.mark.parametrize("err_code", sorted(ApiError.classes))
    def test_class_by_err_code(self, err_code):
        """A server's error becomes the class of its err_code, with both numbers in the text."""
        error = from_api_error({"code": 418, "err_code": err_code, "description": "d"}, stream="S")
        assert type(error) is ApiError.classes[err_code]
        assert (error.code, error.err_code, error.stream) == (418, err_code, "S")
        assert error.description == "d"
        assert "418" in str(error)
        assert str(err_code) in str(error)

    def test_measured_codes_are_known(self):
        """Each err_code that servers were observed to send has a class."""
        seen = {
            *(10003, 10012, 10014, 10025, 10026, 10037, 10039, 10052, 10054, 10058, 10059, 10060),
            *(10065, 10070, 10071, 10076, 10077, 10111, 10136, 10138, 10139, 10148, 10149, 10158),
            *(10159, 10160, 10162, 10163, 10164, 10165, 10166, 10167, 10168, 10169, 10170, 10171),
            *(10174, 10175, 10176, 10177, 10178, 10179, 10185, 10188, 10189, 10190, 10191, 10193),
            *(10196, 10198, 10199, 10200, 10201, 10204, 10205, 10206, 10207, 10208, 10209, 10210),
            *(10211, 10212, 10218, 10227),
        }
        assert seen <= ApiError.classes.keys()

    @pytest.mark.parametrize(
        ("err_codes", "cls"),
        [
            ((10212,), errors.ScheduleSchedulerInvalidError),
            ((10213, 10214, 10215, 10216, 10217), errors.StreamConfigInvalidError),
            ((10197, 10219, 10220, 10221, 10222), errors.ConsumerConfigInvalidError),
            ((10224,), errors.ClusterRescueError),
            ((10225,), errors.StreamIdentityMismatchError),
            ((10226,), errors.StreamReconfigureInProgressError),
            ((10227,), errors.StreamSourceHeaderError),
        ],
    )
    def test_codes_of_the_newest_servers(self, err_codes, cls):
        """The codes that servers 2.14 and 2.15 have added have classes."""
        assert {ApiError.classes[each] for each in err_codes} == {cls}

    @pytest.mark.parametrize(
        "cls", [errors.ScheduleSchedulerInvalidError, errors.StreamSourceHeaderError]
    )
    def test_a_refused_copy_names_the_remedy(self, cls):
        """The error of a message with a header that only servers may set says how to copy it."""
        assert "message.headers.forwardable()" in str(cls(stream="S"))

    def test_no_err_code_twice(self):
        """No two classes have the same err_code, and those of key-value buckets have none."""
        codes = [
            cls._usual[1]
            for cls in all_classes()
            if issubclass(cls, ApiError) and "usual" in vars(cls)
        ]
        assert len(codes) == len(set(codes))
        assert ApiError.classes[10059] is errors.StreamNotFoundError
        assert ApiError.classes[10071] is errors.WrongLastSequenceError

    def test_unknown_code(self):
        """An unknown err_code becomes an ApiError."""
        error = from_api_error({"code": 500, "err_code": 19999, "description": "new"})
        assert type(error) is ApiError
        assert "19999" in str(error)

    @pytest.mark.parametrize("error", [{}, {"code": None, "err_code": "x", "description": None}])
    def test_an_error_object_without_fields_is_an_api_error(self, error):
        """An error object without fields becomes an ApiError."""
        assert type(from_api_error(error)) is ApiError

    def test_usual_values(self):
        """An error without arguments has the server's usual text."""
        error = errors.MessageNotFoundError()
        assert (error.code, error.err_code, error.stream) == (404, 10037, None)
        assert str(error) == "no message found (404, err_code 10037)"

    @pytest.mark.parametrize(
        ("error", "text"),
        [
            (
                errors.ConsumerNotFoundError(stream="ORDERS", consumer="worker"),
                "consumer 'worker' not found on stream 'ORDERS' (404, err_code 10014)",
            ),
            (
                errors.ConsumerConfigInvalidError(
                    stream="S", consumer="c", description="max deliver is set"
                ),
                "consumer 'c' on stream 'S': max deliver is set (500, err_code 10012)",
            ),
            (errors.StreamNotFoundError(stream="S"), "stream 'S' not found (404, err_code 10059)"),
            (
                errors.StreamFullError(stream="S"),
                "stream 'S': maximum messages exceeded (503, err_code 10077)",
            ),
            (
                errors.StreamFullError(stream="KV_b"),
                (
                    "bucket 'b': maximum messages exceeded (503, err_code 10077);"
                    " raise max_bytes, or remove keys with stream.purge"
                ),
            ),
            (
                errors.StreamFullError(stream="OBJ_b"),
                (
                    "object store 'b': maximum messages exceeded (503, err_code 10077);"
                    " raise max_bytes, delete objects, or remove old marks with purge_deletes"
                ),
            ),
            (
                errors.StreamNameInUseError(stream="OBJ_b"),
                (
                    "object store 'b': stream name already in use (400, err_code 10058);"
                    " use create_or_update_object_store to change it"
                ),
            ),
            (ApiError(code=500, description="new"), "new (500)"),
        ],
    )
    def test_the_text_of_an_error_names_stream_and_consumer(self, error, text):
        """The text names the stream and the consumer that the error is about."""
        assert str(error) == text

    @pytest.mark.parametrize(
        ("err_code", "description", "last"),
        [
            (10071, "wrong last sequence: 1005", 1005),
            (10071, "wrong last sequence: 0", 0),
            (10164, "wrong last sequence", None),
        ],
    )
    def test_last_sequence(self, err_code, description, last):
        """The actual last sequence is read from the server's text."""
        error = from_api_error({"code": 400, "err_code": err_code, "description": description})
        assert isinstance(error, errors.WrongLastSequenceError)
        assert error.last_sequence == last

    def test_batch_limit(self):
        """The limit of a batch is read from the server's text."""
        error = from_api_error(
            {
                "code": 400,
                "err_code": 10199,
                "description": "atomic publish batch is too large: 1000",
            }
        )
        assert error.limit == 1000

    def test_incomplete_batch_reason(self):
        """The text contains the reason for an incomplete batch."""
        error = errors.BatchIncompleteError(reason="idle for 11.5 s")
        assert error.reason == "idle for 11.5 s"
        assert str(error).endswith(": idle for 11.5 s")


class TestStatusErrors:
    def test_status_stream_and_consumer_are_in_the_text(self):
        """Status, stream and consumer are in the text."""
        error = errors.ConsumerDeletedError(stream="S", consumer="C")
        assert str(error) == "409 Consumer Deleted (stream 'S', consumer 'C')"
        assert (error.code, error.description) == (409, "Consumer Deleted")

    @pytest.mark.parametrize(
        ("cls", "description", "limit"),
        [
            (errors.MaxRequestBatchError, "Exceeded MaxRequestBatch of 10", 10),
            (errors.MaxRequestMaxBytesError, "Exceeded MaxRequestMaxBytes of 1000", 1000),
            (errors.MaxRequestExpiresError, "Exceeded MaxRequestExpires of 2s", "2s"),
            (errors.MaxRequestBatchError, "Exceeded MaxRequestBatch", None),
            (errors.MaxRequestExpiresError, "Exceeded MaxRequestExpires", None),
        ],
    )
    def test_the_limit_of_the_consumer_is_read_from_the_text(self, cls, description, limit):
        """The consumer's limit is read from the text."""
        assert cls(code=409, description=description).limit == limit

    def test_found_by_the_client(self):
        """An error without a status line of the server shows no code."""
        error = errors.NoHeartbeatError(consumer="C")
        assert isinstance(error, StatusError)
        assert str(error) == "no heartbeat received (consumer 'C')"


class TestSecrets:
    @pytest.mark.parametrize(
        ("url", "redacted"),
        [
            ("nats://h:4222", "nats://h:4222"),
            ("nats://user:secret@h:4222", "nats://***@h:4222"),
            ("tls://secret@h", "tls://***@h"),
            ("user:secret@h", "***@h"),
            ("nats://u:s@cret@h", "nats://***@h"),
            ("nats://u:sec/ret@h", "nats://***@h"),
            ("nats://u:sec,ret@h", "nats://***@h"),
            ("nats://u:secret@a,tls://u:secret@b", "nats://***@a,tls://***@b"),
            ("a,u:secret@b", "***@b"),
            ("nats://u:secret@a:1,b:2", "nats://***@a:1,b:2"),
            ("//u:secret@h", "***@h"),
            ("nats://u:secret", "nats://***"),
            ("nats://u:sec,ret", "nats://***"),
            ("nats://u:secret@", "nats://***@"),
            ("nats:u:secret", "***"),
            ("nats:/u:secret", "***"),
            ("nats://sec/ret", "nats://***"),
            ("nats://u:1#secret", "nats://u:1#***"),
            ("nats://u:1#sec@ret", "nats://***"),
            ("u:secret", "***"),
            ("wss://h?token=secret", "wss://h?***"),
            ("wss://u:secret@h:1/path?token=secret", "wss://***@h:1/path?***"),
            ("wss://h?token=sec@ret", "wss://***"),
            ("wss://h/path#secret", "wss://h/path#***"),
            ("wss://h/path", "wss://h/path"),
            ("nats://[::1]:4222", "nats://[::1]:4222"),
            (" a:1 , nats://b:2/ ,", " a:1 , nats://b:2/ ,"),
            ("", ""),
        ],
    )
    def test_redact_url(self, url, redacted):
        """Only hosts, ports and the paths of WebSocket URLs are shown."""
        assert redact_url(url) == redacted
        assert redact_url(redacted) == redacted

    @pytest.mark.parametrize(
        ("text", "redacted"),
        [
            ("no answer (nats://u:secret@h:1); no", "no answer (nats://***@h:1); no"),
            ("404, url='ws://h:1/?token=secret'", "404, url='ws://h:1/?***'"),
            ("u:secret@h is gone", "***@h is gone"),
            ("host 127.0.0.1:1 ssl:default [no]", "host 127.0.0.1:1 ssl:default [no]"),
        ],
    )
    def test_redact_text(self, text, redacted):
        """URLs within a text are shown without secrets, and the rest as it is."""
        assert redact_text(text) == redacted

    def test_connect_errors(self):
        """Errors of connecting never contain the password of a URL."""
        for error in (
            errors.ConnectError("refused", server="nats://u:secret@h:1"),
            errors.ConnectTimeoutError(1, server="nats://u:secret@h:1"),
            errors.AuthenticationError("no", server="nats://u:secret@h:1"),
        ):
            assert "secret" not in repr(error)
            assert "secret" not in repr(vars(error))
            assert "h:1" in str(error)

    def test_header_value(self):
        """An invalid header is named and its value is not shown."""
        error = errors.InvalidHeaderError("Authorization", "the value contains a line end")
        assert "Authorization" in str(error)


def test_publish_many_names_the_first_failure():
    """The error of a bulk publish counts the failures, shows the first and carries the report."""
    error = jetsync.PublishManyError(ARGUMENTS["report"])
    assert str(error) == "1 of 4 messages were not acknowledged; the first is messages[7]: no"
    assert error.report.failures == (FAILURE,)
    assert error.subject == "a.b"
    alone = jetsync.PublishManyError(attrs.evolve(ARGUMENTS["report"], count=0))
    assert str(alone).startswith("1 of 1 message was not acknowledged; ")


def test_publish_many_of_invalid_messages():
    """If jetsync refused every failed message, the error says that they were not sent."""
    invalid = PublishFailure(7, OutboundMessage("a.b"), errors.InvalidTypeError("no pair"))
    error = jetsync.PublishManyError(jetsync.PublishReport(0, 0, None, None, (invalid,)))
    assert "1 of 1 message was invalid and not sent; the first is messages[7]" in str(error)


@pytest.mark.parametrize(
    ("kind", "of_stream", "of_bucket"),
    [
        (errors.StreamNameInUseError, "create_or_update_stream", "create_or_update_key_value"),
        (errors.MessageTtlDisabledError, "allow_msg_ttl=True", "limit_marker_ttl"),
    ],
)
def test_the_remedy_fits_the_object(kind, of_stream, of_bucket):
    """An error of a bucket names the bucket and its remedy instead of those of its stream."""
    error = str(kind(stream="S"))
    assert "stream 'S'" in error
    assert of_stream in error
    assert of_bucket not in error

    error = str(kind(stream="KV_B"))
    assert "bucket 'B'" in error
    assert of_bucket in error
    assert of_stream not in error


def test_invalid_ttl_keeps_text_only():
    """The error keeps only the repr of an invalid ttl, so it can be pickled."""
    error = errors.InvalidTtlError(lambda: None)
    assert "lambda" in pickle.loads(pickle.dumps(error)).value


def test_a_missing_stream_of_a_consumer():
    """If the stream is missing, the text does not name the consumer."""
    error = errors.StreamNotFoundError(stream="CC", consumer="f82e_7")
    assert str(error) == "stream 'CC' not found (404, err_code 10059)"


def test_the_text_of_a_status():
    """
    It is the server's, or the usual one if the server sent none.
    """
    limit = jetsync.MaxRequestBatchError(description="Exceeded MaxRequestBatch of 5")
    assert str(limit) == "409 Exceeded MaxRequestBatch of 5"
    silent = jetsync.ConsumerUnavailableError(description="", stream="S", consumer="c")
    assert str(silent).startswith("503 no server answers for the consumer")
    assert str(silent).endswith("(stream 'S', consumer 'c')")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (9.99997, "10 s"),
        (5, "5 s"),
        (0.05, "0.05 s"),
        (1.23456, "1.23 s"),
        (99.98, "100 s"),
        (3600, "3600 s"),
    ],
)
def test_durations_in_texts_are_rounded(seconds, text):
    """
    Every error about a wait says how long it was in three digits, as what is left of 10 s.
    """
    for error in (
        errors.ConnectTimeoutError(seconds),
        errors.DisconnectedError(timeout=seconds),
        errors.RequestTimeoutError("a", seconds),
        errors.WaitTimeoutError("it", seconds),
        errors.PublishOutcomeUnknownError("a", timeout=seconds),
    ):
        assert re.search(rf"(within|after) {text}\b", str(error)), error
        assert error.timeout == seconds
