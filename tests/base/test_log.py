from __future__ import annotations

import ast
import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

import jetsync
from jetsync._base.log import beats, get_logger


def test_an_event_becomes_one_line_with_its_keys(caplog):
    """An event becomes one line of a standard record, with its keys on the record."""
    with caplog.at_level(logging.INFO, logger="jetsync"):
        get_logger("jetsync.test").info("connected", stream="S", server="h:4222", note="50 % done")
    (record,) = caplog.records
    assert record.name == "jetsync.test"
    assert record.getMessage() == "connected stream='S' server='h:4222' note='50 % done'"
    assert record.event == "connected"
    assert record.fields == {"stream": "S", "server": "h:4222", "note": "50 % done"}
    assert (record.filename, record.funcName) == (
        "test_log.py",
        "test_an_event_becomes_one_line_with_its_keys",
    )


def test_level_is_the_standard_one(caplog):
    """Events below the level of the standard logger go nowhere."""
    with caplog.at_level(logging.WARNING, logger="jetsync"):
        get_logger("jetsync.test").info("quiet")
    assert caplog.records == []


def test_the_log_of_an_exception_has_its_traceback(caplog):
    """Logging an exception includes its traceback."""
    with caplog.at_level(logging.DEBUG, logger="jetsync"):
        try:
            raise ValueError("broken")
        except ValueError:
            get_logger("jetsync.test").exception("handler_failed")
    assert caplog.records[0].exc_info[0] is ValueError


def test_silent_without_configuration():
    """Nothing is printed in a program that has not configured logging, not even an error."""
    program = (
        "from jetsync._base.log import get_logger\n"
        "log = get_logger('jetsync.x')\n"
        "log.error('lost', why='test')\n"
        "log.debug('quiet')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


class TestStructlog:
    @pytest.fixture
    def seen(self):
        """Events that reach the processors of an application that has configured structlog."""
        seen = []

        def keep(_logger, method, event):
            seen.append((method, event))
            raise structlog.DropEvent

        structlog.configure(processors=[keep])
        yield seen
        structlog.reset_defaults()

    @pytest.mark.parametrize("method", ["debug", "info", "warning", "error"])
    def test_a_configured_structlog_gets_all_events(self, seen, caplog, method):
        """Events of an application that has configured structlog go to its processors only."""
        caplog.set_level(logging.DEBUG, logger="jetsync")
        getattr(get_logger("jetsync.test"), method)("connected", server="h:4222", tries=2)
        fields = {"event": "connected", "server": "h:4222", "tries": 2, "logger": "jetsync.test"}
        assert seen == [(method, fields)]
        assert caplog.records == []

    def test_processors_find_the_exception_in_exc_info(self, seen):
        """Processors find the exception in `exc_info`, as in events of the application."""
        error = ValueError("broken")
        get_logger("jetsync.test").error("handler_failed", exc_info=error)
        try:
            raise error
        except ValueError:
            get_logger("jetsync.test").exception("handler_failed")
        assert [event["exc_info"] for _, event in seen] == [error, True]

    def test_configured_later(self, caplog):
        """Each event uses the logging that the application has configured at that moment."""
        logger = get_logger("jetsync.test")
        caplog.set_level(logging.INFO, logger="jetsync")
        logger.info("before")
        with structlog.testing.capture_logs() as captured:
            logger.info("between", n=1)
        structlog.reset_defaults()
        logger.info("after")
        assert captured == [
            {"event": "between", "n": 1, "logger": "jetsync.test", "log_level": "info"}
        ]
        assert [record.event for record in caplog.records] == ["before", "after"]

    def test_level_of_structlog(self, seen):
        """The level that the application has set in structlog applies to jetsync's events."""
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
        get_logger("jetsync.test").info("connected")
        assert seen == []

    def test_over_standard_logging(self, caplog):
        """Structlog on top of the standard `logging` uses the standard logger of the same name."""
        structlog.configure(
            processors=[
                structlog.stdlib.filter_by_level,
                structlog.stdlib.render_to_log_kwargs,
            ],
            logger_factory=structlog.stdlib.LoggerFactory(),
            wrapper_class=structlog.stdlib.BoundLogger,
        )
        try:
            with caplog.at_level(logging.INFO, logger="jetsync"):
                get_logger("jetsync.test").info("connected", server="h:4222")
                get_logger("jetsync.test").debug("quiet")
        finally:
            structlog.reset_defaults()
        (record,) = caplog.records
        assert (record.name, record.getMessage()) == ("jetsync.test", "connected")
        assert record.server == "h:4222"

    def test_processor_that_raises(self, caplog):
        """
        An error in the application's processors is logged and does not reach jetsync's caller.
        """

        def broken(_logger, _method, event):
            raise KeyError("request_id")

        structlog.configure(processors=[broken])
        try:
            get_logger("jetsync.test").info("connected")
        finally:
            structlog.reset_defaults()
        (record,) = caplog.records
        assert record.getMessage() == "jetsync could not log 'connected' through structlog"
        assert record.exc_info[0] is KeyError

    @pytest.mark.live
    def test_events_of_a_client(self, seen, nats_server):
        """A client logs through the application's structlog, in its own thread too."""
        with jetsync.connect(nats_server.url, name="till"):
            pass
        begin = {"event": "connect.begin", "client": "till", "logger": "jetsync.connection"}
        assert seen[0] == ("debug", begin)


def test_one_null_handler():
    """However many loggers are made, the parent has one null handler."""
    get_logger("jetsync.a")
    get_logger("jetsync.b")
    handlers = logging.getLogger("jetsync").handlers
    assert sum(isinstance(handler, logging.NullHandler) for handler in handlers) == 1


class TestBeats:
    def test_work_that_succeeds_logs_begin_and_done(self, caplog):
        """Work that succeeds logs begin and done, with the fields that it added to the outcome."""
        with (
            caplog.at_level(logging.DEBUG, logger="jetsync"),
            beats(get_logger("jetsync.test"), "drain", client=1) as outcome,
        ):
            outcome["left"] = 0
        begin, done = caplog.records
        assert (begin.event, begin.fields) == ("drain.begin", {"client": 1})
        assert done.event == "drain.done"
        assert done.fields["left"] == 0
        assert done.fields["seconds"] >= 0

    @pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
    def test_work_that_raises_logs_failed_and_raises(self, caplog, error):
        """Work that raises logs failed, and the exception passes through unchanged."""
        with (
            caplog.at_level(logging.DEBUG, logger="jetsync"),
            pytest.raises(type(error)) as caught,
            beats(get_logger("jetsync.test"), "drain"),
        ):
            raise error
        assert caught.value is error
        assert caplog.records[-1].event == "drain.failed"
        assert caplog.records[-1].fields["error"] == repr(error)


BEATS = {"begin": set(), "done": {"seconds"}, "failed": {"seconds", "error"}}
"""The events of a `beats` block, and the fields that each of them adds."""


def logged_by(node):
    """
    Yield each event that a call in the source logs, with its level and the fields that it names.
    """
    if not isinstance(node, ast.Call):
        return
    fields = {keyword.arg for keyword in node.keywords} - {None, "exc_info"}
    match node.func, node.args:
        case ast.Attribute(value=ast.Name("_log" | "_logger"), attr=method), [event]:
            level = "error" if method == "exception" else method
            yield ast.literal_eval(event), level, fields
        case ast.Name("beats"), [_, event]:
            for beat, more in BEATS.items():
                yield f"{ast.literal_eval(event)}.{beat}", "debug", fields | more


def test_the_table_of_events():
    """The reference lists each event that jetsync logs, and no other, with level and fields."""
    package = Path(jetsync.__file__).parent
    logged = [
        found
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for found in logged_by(node)
    ]
    page = Path(__file__).parents[2] / "docs" / "reference" / "logs.md"
    rows = re.findall(r"^\| (`.*) \| ([a-z, ]+) \| (.*) \|$", page.read_text("utf-8"), re.MULTILINE)
    listed = {
        (event, level): set(re.findall(r"`(\w+)`", text))
        for events, levels, text in rows
        for event in re.findall(r"`([\w.]+)`", events)
        for level in levels.split(", ")
    }
    assert listed.keys() == {(event, level) for event, level, _ in logged}
    assert [found for found in logged if not found[2] <= listed[found[:2]]] == []
