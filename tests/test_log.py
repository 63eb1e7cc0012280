from __future__ import annotations

import logging
import re
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from jetsync._base import log as _log
from jetsync._base.log import beats, get_logger


def test_record(caplog):
    """An event becomes one line of a standard record, with its keys on the record."""
    with caplog.at_level(logging.INFO, logger="jetsync"):
        get_logger("test").bind(stream="S").info("connected", server="h:4222", note="50 % done")
    (record,) = caplog.records
    assert record.name == "jetsync.test"
    assert record.getMessage() == "connected stream='S' server='h:4222' note='50 % done'"
    assert record.event == "connected"
    assert record.fields == {"stream": "S", "server": "h:4222", "note": "50 % done"}


def test_level_is_the_standard_one(caplog):
    """Events below the level of the standard logger go nowhere."""
    with caplog.at_level(logging.WARNING, logger="jetsync"):
        get_logger("test").info("quiet")
    assert caplog.records == []


def test_traceback(caplog):
    """An exception that is logged brings its traceback."""
    with caplog.at_level(logging.DEBUG, logger="jetsync"):
        try:
            raise ValueError("broken")
        except ValueError:
            get_logger("test").exception("handler_failed")
    assert caplog.records[0].exc_info[0] is ValueError


def test_silent_without_configuration():
    """Nothing is printed in a program that has not configured logging, not even an error."""
    program = (
        "from jetsync._base.log import get_logger\n"
        "log = get_logger('x')\n"
        "log.error('lost', why='test')\n"
        "log.debug('quiet')\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")


def test_application_configuration_is_left_alone(caplog):
    """Our loggers neither configure structlog nor follow an application's configuration."""
    assert not structlog.is_configured()
    seen = []
    structlog.configure(processors=[lambda *event: seen.append(event) or "x"])
    try:
        with caplog.at_level(logging.INFO, logger="jetsync"):
            get_logger("other").info("connected")
    finally:
        structlog.reset_defaults()
    assert seen == []
    assert caplog.records[0].getMessage() == "connected"


def test_one_null_handler():
    """However many loggers are made, the parent has one null handler."""
    get_logger("a")
    get_logger("b")
    handlers = logging.getLogger("jetsync").handlers
    assert sum(isinstance(handler, logging.NullHandler) for handler in handlers) == 1


class TestBeats:
    def test_done(self, caplog):
        """Work that ends well logs begin and done, with what it put into the outcome."""
        with (
            caplog.at_level(logging.DEBUG, logger="jetsync"),
            beats(get_logger("test"), "drain", client=1) as outcome,
        ):
            outcome["left"] = 0
        begin, done = caplog.records
        assert (begin.event, begin.fields) == ("drain.begin", {"client": 1})
        assert done.event == "drain.done"
        assert done.fields["left"] == 0
        assert done.fields["seconds"] >= 0

    @pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()])
    def test_failed(self, caplog, error):
        """Work that raises logs failed, and the exception passes through unchanged."""
        with (
            caplog.at_level(logging.DEBUG, logger="jetsync"),
            pytest.raises(type(error)) as caught,
            beats(get_logger("test"), "drain"),
        ):
            raise error
        assert caught.value is error
        assert caplog.records[-1].event == "drain.failed"
        assert caplog.records[-1].fields["error"] == repr(error)


EVENT_NAMES = {
    key: value for key, value in vars(_log).items() if key.isupper() and isinstance(value, str)
}


def test_event_names_are_unique():
    """No two events share a name."""
    assert len(EVENT_NAMES) == len(set(EVENT_NAMES.values()))


@pytest.mark.parametrize("name", EVENT_NAMES)
def test_event_names_are_used(name):
    """Every event that has a name is logged somewhere."""
    module = Path(_log.__file__)
    sources = [
        path.read_text("utf-8") for path in module.parents[1].rglob("*.py") if path != module
    ]
    used = re.compile(rf"_log\.{name}\b|import .*\b{name}\b")
    assert any(used.search(source) for source in sources)
