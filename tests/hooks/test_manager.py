"""
Loading plugins and calling their hooks, without a server.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import logging
import os
import re
import subprocess
import sys
import types

import attrs
import pytest

from jetsync._hooks.errors import PluginError
from jetsync._hooks.manager import PluginInfo, Plugins, installed_plugins
from jetsync.errors import ConfigurationError, InvalidTypeError
from jetsync.events import (
    BatchCommitOperation,
    ClosedEvent,
    DirectReadOperation,
    FetchOperation,
    PublishOperation,
)
from jetsync.hookspecs import hookimpl
from jetsync.values.ttl import MarkerReason

PUBLISH = PublishOperation(subject="orders.1", timeout=5.0)


@attrs.frozen
class Note:
    """
    A stand-in for a message: hooks accept any object.
    """

    text: str = ""
    subject: str = "s"
    headers: None = None


def load(*plugins, **env):
    """
    Load plugins with these environment variables only.
    """
    return Plugins.load(plugins, env)


def plugin(name="", **hooks):
    """
    Make a plugin object from functions, and mark each as an implementation.
    """
    return types.SimpleNamespace(
        name=name, **{hook: hookimpl(function) for hook, function in hooks.items()}
    )


def wrapper(name, function, hook="jetsync_publish"):
    """
    Make a plugin object from one generator function.
    """
    return types.SimpleNamespace(name=name, **{hook: hookimpl(wrapper=True)(function)})


def adding(text):
    """
    Make an implementation that adds to the text of a note.
    """

    def jetsync_prepare_message(message):
        return Note(message.text + text)

    return jetsync_prepare_message


def raising(error):
    """
    Make an implementation that always raises.
    """

    def implementation():
        raise error

    return implementation


@pytest.fixture
def entry_points(monkeypatch):
    """
    A function that installs an entry point for one test.
    """
    found = []

    def install(name, value, target):
        module = types.ModuleType(value.partition(":")[0])
        setattr(module, value.partition(":")[2], target)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        found.append(importlib.metadata.EntryPoint(name, value, "jetsync"))

    def entry_points(*, group):
        return importlib.metadata.EntryPoints(found if group == "jetsync" else [])

    monkeypatch.setattr(importlib.metadata, "entry_points", entry_points)
    return install


class TestNoPlugins:
    def test_every_hook_is_none(self):
        """
        Without plugins, all hooks and the dispatcher are None.
        """
        plugins = load()

        hooks = (plugins.prepare, plugins.received, plugins.retry, plugins.status)
        hooks += (plugins.ttl_marker, plugins.enter_publish, plugins.enter_batch_commit)
        hooks += (plugins.enter_fetch, plugins.dispatcher)
        assert {None} == set(hooks)
        assert plugins.infos == ()
        assert plugins.close()
        assert repr(plugins) == "<Plugins none>"

    def test_only_implemented_hooks_are_there(self):
        """
        Hooks that no plugin implements are None.
        """
        plugins = load(plugin(jetsync_prepare_message=adding("x")))

        assert plugins.prepare is not None
        assert plugins.received is None
        assert plugins.enter_publish is None

    def test_reads_the_environment_of_the_process(self, monkeypatch):
        """
        By default, the environment variables of the process are read.
        """
        monkeypatch.setenv("JETSYNC_PLUGINS", "missing")

        with pytest.raises(ConfigurationError, match="'missing'"):
            Plugins.load()


class TestTransform:
    def test_hook_jetsync_prepare_message_hands_on_from_plugin_to_plugin(self):
        """
        Each plugin gets the message that the previous one returned. The last one loaded runs first.
        """
        plugins = load(
            plugin("a", jetsync_prepare_message=adding("a")),
            plugin("b", jetsync_prepare_message=adding("b")),
        )

        assert plugins.prepare(Note("-")) == Note("-ba")

    def test_hook_jetsync_prepare_message_respects_tryfirst_and_trylast(self):
        """
        `tryfirst` and `trylast` move an implementation to the start or the end of the order.
        """

        class First:
            @hookimpl(tryfirst=True)
            def jetsync_prepare_message(self, message):
                return Note(message.text + "first")

        class Last:
            @hookimpl(trylast=True)
            def jetsync_prepare_message(self, message):
                return Note(message.text + "last")

        plugins = load(First, plugin("m", jetsync_prepare_message=adding("-")), Last)

        assert plugins.prepare(Note()) == Note("first-last")

    def test_none_keeps_the_message(self):
        """
        If a plugin returns None, the same object is passed on.
        """
        note = Note("as it was")
        plugins = load(plugin(jetsync_prepare_message=lambda message: None))

        assert plugins.prepare(note) is note

    def test_hook_jetsync_prepare_message_vetoes_by_raising(self):
        """
        The error names the plugin and the hook, and has the plugin's own error as its cause.
        """
        later = []

        def keeping(message):
            later.append(message)

        error = ValueError("not today")
        plugins = load(
            plugin("later", jetsync_prepare_message=keeping),
            plugin("guard", jetsync_prepare_message=raising(error)),
        )

        with pytest.raises(PluginError, match="not today") as caught:
            plugins.prepare(Note())

        assert (caught.value.plugin, caught.value.hook) == ("guard", "jetsync_prepare_message")
        assert caught.value.__cause__ is error
        assert later == []

    def test_a_plugin_error_is_kept(self):
        """
        A PluginError that a plugin raises is not wrapped in another one.
        """
        error = PluginError(plugin="inner", hook="jetsync_publish")
        plugins = load(plugin("outer", jetsync_prepare_message=raising(error)))

        with pytest.raises(PluginError) as caught:
            plugins.prepare(Note())

        assert caught.value is error

    def test_something_else_than_a_message_is_refused(self):
        """
        The error names a plugin that returns something other than a message.
        """
        plugins = load(plugin("odd", jetsync_prepare_message=lambda message: b"bytes"))

        with pytest.raises(PluginError, match=r"'odd'.*returned bytes, not Note"):
            plugins.prepare(Note())

    def test_interrupts_pass(self):
        """
        KeyboardInterrupt does not become a PluginError.
        """
        plugins = load(plugin(jetsync_prepare_message=raising(KeyboardInterrupt)))

        with pytest.raises(KeyboardInterrupt):
            plugins.prepare(Note())

    def test_hook_jetsync_message_received_replaces_and_vetoes(self):
        """
        Received messages pass through the plugins like sent ones.
        """
        plugins = load(
            plugin("veto", jetsync_message_received=raising(OSError("disk"))),
            plugin("mark", jetsync_message_received=lambda message: Note(message.text + "!")),
        )
        alone = load(plugin("mark", jetsync_message_received=lambda message: Note("!")))

        assert alone.received(Note()) == Note("!")
        with pytest.raises(PluginError, match="plugin 'veto' failed in jetsync_message_received"):
            plugins.received(Note())


class TestWrappers:
    @pytest.mark.parametrize(
        ("hook", "attribute", "operation"),
        [
            ("jetsync_publish", "enter_publish", PUBLISH),
            (
                "jetsync_batch_commit",
                "enter_batch_commit",
                BatchCommitOperation(batch_id="b", size=2),
            ),
            ("jetsync_fetch", "enter_fetch", FetchOperation(stream="S", consumer="C")),
            ("jetsync_fetch", "enter_fetch", DirectReadOperation(stream="S", name="scan")),
        ],
    )
    def test_runs_the_operation_at_the_yield(self, hook, attribute, operation):
        """
        A wrapper gets the operation before it runs, and its result afterwards.
        """
        seen = []

        def implementation(operation):
            seen.append(operation)
            result = yield
            seen.append(result)
            return result

        plugins = load(wrapper("w", implementation, hook))

        assert getattr(plugins, attribute)(operation).run(lambda: "result") == "result"
        assert seen == [operation, "result"]

    def test_hook_jetsync_publish_first_is_outermost(self):
        """
        The wrapper that starts first ends last; tryfirst moves it outwards.
        """
        seen = []

        def nested(name):
            def jetsync_publish():
                seen.append(f"+{name}")
                result = yield
                seen.append(f"-{name}")
                return result

            return jetsync_publish

        outer = types.SimpleNamespace(
            name="outer", jetsync_publish=hookimpl(wrapper=True, tryfirst=True)(nested("outer"))
        )
        plugins = load(outer, wrapper("a", nested("a")), wrapper("b", nested("b")))

        plugins.enter_publish(PUBLISH).run(lambda: seen.append("call"))

        assert seen == ["+outer", "+b", "+a", "call", "-a", "-b", "-outer"]

    def test_hook_jetsync_shared_headers_are_put_together(self):
        """
        If several plugins return the same header, the first one's values count.
        """

        def giving(name, headers):
            function = hookimpl(lambda operation: headers)
            return types.SimpleNamespace(name=name, jetsync_shared_headers=function)

        nothing = giving("nothing", None)
        plugins = load(giving("b", {"B": ["3", "4"], "A": "5"}), giving("a", {"A": "1"}), nothing)
        shared = plugins.shared_headers(PUBLISH)

        assert shared.to_dict() == {"A": ["1"], "B": ["3", "4"]}
        assert shared.block == b"NATS/1.0\r\nA: 1\r\nB: 3\r\nB: 4\r\n\r\n"
        assert load(nothing).shared_headers(PUBLISH) is None

    def test_hook_jetsync_shared_headers_has_to_give_headers(self):
        """
        Invalid headers become a PluginError that names the plugin.
        """

        def given(headers):
            function = hookimpl(lambda: headers)
            return types.SimpleNamespace(name="p", jetsync_shared_headers=function)

        for headers in ({"A": "1\r\n"}, 7, {"A": 1}):
            with pytest.raises(PluginError) as caught:
                load(given(headers)).shared_headers(PUBLISH)
            assert (caught.value.plugin, caught.value.hook) == ("p", "jetsync_shared_headers")

    @pytest.mark.parametrize(
        "name",
        [
            "Nats-Msg-Id",
            "Nats-Expected-Stream",
            "Nats-Expected-Last-Sequence",
            "Nats-Expected-Last-Msg-Id",
            "Nats-Batch-Id",
            "Nats-Batch-Commit",
            "nats-msg-id",
            "NATS-EXPECTED-LAST-MSG-ID",
        ],
    )
    def test_hook_jetsync_shared_headers_are_not_of_one_message(self, name):
        """
        Headers that apply to one message, such as an id, become a PluginError.
        """
        shares = types.SimpleNamespace(
            name="p", jetsync_shared_headers=hookimpl(lambda: {"A": "1", name: "1"})
        )
        with pytest.raises(PluginError, match=f"'p'.*{name}"):
            load(shares).shared_headers(PUBLISH)

    def test_hook_jetsync_batch_commit_result_is_replaced(self):
        """
        The caller gets the value that a wrapper returns.
        """

        def jetsync_batch_commit():
            return (yield) + 1

        plugins = load(wrapper("w", jetsync_batch_commit, "jetsync_batch_commit"))

        assert plugins.enter_batch_commit(PUBLISH).run(lambda: 1) == 2

    def test_hook_jetsync_fetch_result_is_kept_without_return(self):
        """
        A wrapper that returns None keeps the result.
        """

        def jetsync_fetch():
            yield

        plugins = load(wrapper("w", jetsync_fetch, "jetsync_fetch"))

        assert plugins.enter_fetch(PUBLISH).run(lambda: "batch") == "batch"

    def test_an_error_of_the_operation_passes_unchanged(self):
        """
        The wrappers get the operation's error, and the caller gets the same object.
        """
        error = TimeoutError("late")
        seen = []

        def jetsync_publish():
            try:
                yield
            except TimeoutError as exc:
                seen.append(exc)
                raise

        plugins = load(wrapper("a", jetsync_publish), wrapper("b", jetsync_publish))

        with pytest.raises(TimeoutError) as caught:
            plugins.enter_publish(PUBLISH).run(raising(error))

        assert caught.value is error
        assert seen == [error, error]

    def test_a_swallowed_error_is_raised_all_the_same(self):
        """
        A wrapper that catches the error and returns None does not turn a failure into a success.
        """

        def jetsync_publish():
            with contextlib.suppress(TimeoutError):
                yield

        plugins = load(wrapper("w", jetsync_publish))

        with pytest.raises(TimeoutError):
            plugins.enter_publish(PUBLISH).run(raising(TimeoutError()))

    def test_an_error_is_replaced_by_a_result(self):
        """
        If a wrapper returns a value after an error, the caller gets the value.
        """

        def jetsync_publish():
            try:
                return (yield)
            except TimeoutError:
                return "from the cache"

        plugins = load(wrapper("w", jetsync_publish))

        assert plugins.enter_publish(PUBLISH).run(raising(TimeoutError())) == "from the cache"

    @pytest.mark.parametrize("keeps_cause", [True, False])
    def test_an_error_is_replaced_on_purpose(self, keeps_cause):
        """
        Raising `from` the error, or `from None`, replaces the error.
        """

        def jetsync_publish():
            try:
                yield
            except TimeoutError as exc:
                if keeps_cause:
                    raise LookupError("busy") from exc
                raise LookupError("busy") from None

        plugins = load(wrapper("w", jetsync_publish))

        with pytest.raises(LookupError, match="busy"):
            plugins.enter_publish(PUBLISH).run(raising(TimeoutError()))

    def test_an_accident_in_a_handler_names_the_plugin(self):
        """
        An error that happens while a wrapper handles the operation's error becomes a PluginError.
        """

        def jetsync_publish():
            try:
                yield
            except TimeoutError:
                {}["missing"]

        plugins = load(wrapper("clumsy", jetsync_publish))

        with pytest.raises(PluginError, match=r"'clumsy'") as caught:
            plugins.enter_publish(PUBLISH).run(raising(TimeoutError()))

        assert isinstance(caught.value.__cause__, KeyError)
        assert isinstance(caught.value.__cause__.__context__, TimeoutError)

    def test_an_error_before_the_yield_prevents_the_operation(self):
        """
        The operation does not run. The error names the plugin, and the outer wrappers get it.
        """
        seen = []

        def broken():
            raise ValueError("at the start")
            yield

        def around():
            try:
                yield
            except PluginError as exc:
                seen.append(exc.plugin)
                raise

        plugins = load(wrapper("broken", broken), wrapper("around", around))

        with pytest.raises(PluginError, match="at the start") as caught:
            plugins.enter_publish(PUBLISH).run(lambda: seen.append("call"))

        assert caught.value.hook == "jetsync_publish"
        assert seen == ["broken"]

    def test_an_error_after_the_yield_names_the_plugin(self):
        """
        An error after the operation has succeeded names the plugin.
        """

        def jetsync_publish():
            yield
            raise ValueError("at the end")

        plugins = load(wrapper("late", jetsync_publish))

        with pytest.raises(PluginError, match=r"'late'.*at the end"):
            plugins.enter_publish(PUBLISH).run(lambda: 1)

    @pytest.mark.parametrize("count", [0, 2])
    def test_a_wrapper_yields_exactly_once(self, count):
        """
        The error names a wrapper that does not yield, or yields twice.
        """

        def jetsync_publish():
            for _ in range(count):
                yield

        plugins = load(wrapper("w", jetsync_publish))

        with pytest.raises(PluginError, match=r"did not yield|yielded more than once"):
            plugins.enter_publish(PUBLISH).run(lambda: 1)

    @pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, StopIteration])
    def test_special_errors_pass(self, error):
        """
        KeyboardInterrupt, SystemExit and StopIteration pass through wrappers.
        """

        def jetsync_publish():
            return (yield)

        plugins = load(wrapper("a", jetsync_publish), wrapper("b", jetsync_publish))

        with pytest.raises(error):
            plugins.enter_publish(PUBLISH).run(raising(error()))

    def test_a_plugin_error_of_a_wrapper_is_kept(self):
        """
        A PluginError that a wrapper raises is not wrapped in another one.
        """
        error = PluginError(plugin="inner", hook="jetsync_publish")

        def before():
            raise error
            yield

        def after():
            yield
            raise error

        for function in (before, after):
            with pytest.raises(PluginError) as caught:
                load(wrapper("w", function)).enter_publish(PUBLISH).run(lambda: 1)
            assert caught.value is error


class TestEntering:
    """
    Operations that span several calls: they are entered and left.
    """

    def test_enter_and_leave(self):
        """
        The wrapper starts when the operation is entered and ends when it is left.
        """
        seen = []

        def jetsync_fetch(operation):
            seen.append(operation.name)
            seen.append((yield))
            return "replaced"

        entered = load(wrapper("w", jetsync_fetch, "jetsync_fetch")).enter_fetch(PUBLISH)

        assert seen == ["publish"]
        assert entered.leave("result", None) == "replaced"
        assert seen == ["publish", "result"]
        assert entered.leave("again", None) == "again"

    def test_leaving_with_an_error(self):
        """
        The outcome may be an error. The caller gets the error that the wrappers raise.
        """

        def jetsync_publish():
            yield

        entered = load(wrapper("w", jetsync_publish)).enter_publish(PUBLISH)
        error = TimeoutError()

        with pytest.raises(TimeoutError) as caught:
            entered.leave(None, error)

        assert caught.value is error

    def test_a_wrapper_that_does_not_start(self):
        """
        The wrappers that have started get the error, and the operation is not entered.
        """
        seen = []

        def around():
            try:
                yield
            except PluginError as exc:
                seen.append(exc.plugin)
                raise

        def broken():
            raise ValueError("at the start")
            yield

        plugins = load(wrapper("broken", broken), wrapper("around", around))

        with pytest.raises(PluginError, match="at the start"):
            plugins.enter_publish(PUBLISH)

        assert seen == ["broken"]


class TestObserving:
    def test_hook_jetsync_status_continues_after_an_error(self, caplog):
        """
        Each kind of error is logged once per plugin, and the other plugins still get the event.
        """
        seen = []
        errors = [ValueError("1"), ValueError("2"), OSError("3")]

        def keeping(event):
            seen.append(event)

        def jetsync_status():
            raise errors.pop(0)

        plugins = load(
            plugin("after", jetsync_status=keeping),
            plugin("broken", jetsync_status=jetsync_status),
        )
        event = ClosedEvent()

        with caplog.at_level(logging.ERROR, "jetsync"):
            for _ in range(3):
                plugins.status(event)

        assert seen == [event, event, event]
        assert len(caplog.records) == 2
        assert all("'broken'" in record.getMessage() for record in caplog.records)
        assert all(record.exc_info for record in caplog.records)

    def test_hook_jetsync_ttl_marker_gets_message_and_reason(self):
        """
        The hook gets the marker and the server's reason for it.
        """
        seen = []

        def jetsync_ttl_marker(reason, message):
            seen.append((message, reason))

        plugins = load(
            plugin(jetsync_ttl_marker=jetsync_ttl_marker),
            plugin("broken", jetsync_ttl_marker=raising(ValueError())),
        )

        plugins.ttl_marker(Note("gone"), MarkerReason.MAX_AGE)

        assert seen == [(Note("gone"), MarkerReason.MAX_AGE)]


class TestRetry:
    def test_hook_jetsync_retry_first_answer_counts(self):
        """
        The first plugin that returns a delay decides. Zero is a delay.
        """
        asked = []

        def jetsync_retry(operation, error, attempt):
            asked.append((operation, error, attempt))

        error = TimeoutError()
        plugins = load(
            plugin("never", jetsync_retry=lambda: 7.0),
            plugin("zero", jetsync_retry=lambda: 0),
            plugin("no opinion", jetsync_retry=jetsync_retry),
        )

        assert plugins.retry(PUBLISH, error, 1) == 0.0
        assert asked == [(PUBLISH, error, 1)]

    def test_no_answer_means_no_retry(self):
        """
        If no plugin returns a delay, there is no retry.
        """
        assert load(plugin(jetsync_retry=lambda: None)).retry(PUBLISH, OSError(), 1) is None

    @pytest.mark.parametrize("answer", [-1, float("nan"), float("inf"), True, "1"])
    def test_a_delay_that_is_none_names_the_plugin(self, answer):
        """
        A delay that is not a finite number of seconds from 0 up becomes a PluginError.
        """
        plugins = load(plugin("odd", jetsync_retry=lambda: answer))

        with pytest.raises(PluginError, match="'odd'"):
            plugins.retry(PUBLISH, OSError(), 1)

    def test_raising_names_the_plugin(self):
        """
        If the hook raises, the operation fails with a PluginError.
        """
        with pytest.raises(PluginError, match="plugin 'r' failed in jetsync_retry"):
            load(plugin("r", jetsync_retry=raising(ValueError()))).retry(PUBLISH, OSError(), 1)

        own = PluginError(plugin="own", hook="jetsync_retry")
        with pytest.raises(PluginError) as caught:
            load(plugin("r", jetsync_retry=raising(own))).retry(PUBLISH, OSError(), 1)
        assert caught.value is own


class Sample:
    """
    A plugin as users write them.
    """

    @hookimpl
    def jetsync_prepare_message(self, message):
        return Note("sample")

    @hookimpl
    def jetsync_retry(self):
        return 1


class TestLoading:
    def test_a_plugin_is_named_by_its_name_class_or_module(self):
        """
        A plugin's name is its `name`, its class or its module.
        """
        module = types.ModuleType("some.module")
        module.jetsync_retry = hookimpl(lambda attempt: None)
        named = Sample()
        named.name = "mine"

        infos = load(named, Sample, module).infos

        hooks = ("jetsync_prepare_message", "jetsync_retry")
        source = f"{__name__}:Sample"
        assert infos == (
            PluginInfo("mine", hooks, source),
            PluginInfo("Sample", hooks, source),
            PluginInfo("some.module", ("jetsync_retry",), "some.module"),
        )
        assert repr(load(named)) == "<Plugins mine>"

    def test_a_class_is_instantiated(self):
        """
        A class is instantiated.
        """
        assert load(Sample).prepare(Note()) == Note("sample")

    def test_a_class_that_needs_arguments_is_refused(self):
        """
        The error says why the class could not be instantiated.
        """

        class Needy:
            def __init__(self, what):
                pass

        with pytest.raises(ConfigurationError, match=r"'Needy' cannot be created.*what"):
            load(Needy)

    def test_a_lone_name_is_refused(self):
        """
        A string instead of a list is rejected.
        """
        with pytest.raises(InvalidTypeError, match="list"):
            Plugins.load("retry", {})

    def test_twice_is_refused(self):
        """
        Two plugins with the same name are rejected.
        """
        with pytest.raises(ConfigurationError, match="'Sample' is given twice"):
            load(Sample, Sample())

    def test_the_same_object_under_two_names_is_refused(self, entry_points):
        """
        An object cannot be registered under two names.
        """
        target = plugin("mine", jetsync_retry=lambda: None)
        entry_points("installed", "pkg:target", target)

        with pytest.raises(ConfigurationError, match="'installed' cannot be registered"):
            load(target, "installed")

    @pytest.mark.parametrize("thing", [None, 42, object(), types.ModuleType("empty")])
    def test_without_any_hook_is_refused(self, thing):
        """
        An object that implements no hook is rejected.
        """
        with pytest.raises(ConfigurationError, match="implements no hook; there are jetsync_"):
            load(thing)

    @pytest.mark.parametrize(
        ("function", "text"),
        [
            (
                lambda mesage: None,
                "declares mesage, but the hook's arguments are message",
            ),
            (lambda message, mode=1: None, "declares mode=1, but"),
            (lambda *messages: None, r"declares \*messages"),
            (lambda **anything: None, r"declares \*\*anything"),
            (lambda *, message: None, "declares message"),
        ],
    )
    def test_unknown_arguments_are_refused(self, function, text):
        """
        An argument that the hook does not have is rejected.
        """
        with pytest.raises(ConfigurationError, match=f"'p': jetsync_prepare_message {text}"):
            load(plugin("p", jetsync_prepare_message=function))

    def test_a_default_is_no_obstacle(self):
        """
        An argument may have a default, and is passed anyway.
        """
        seen = []
        load(plugin(jetsync_status=lambda event=None: seen.append(event))).status("event")

        assert seen == ["event"]

    def test_unknown_hooks_are_refused(self):
        """
        A misspelt hook is rejected, marked or not. The error suggests a name.
        """
        text = "'p': there is no hook jetsync_publsh; did you mean jetsync_publish?"
        unmarked = types.SimpleNamespace(name="p", jetsync_publsh=lambda: None)

        with pytest.raises(ConfigurationError, match=re.escape(text)):
            load(plugin("p", jetsync_publsh=lambda: None))
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            load(unmarked)
        with pytest.raises(ConfigurationError, match="there is no hook other; there are jetsync_"):
            load(plugin("p", other=lambda: None))

    def test_an_unmarked_hook_is_refused(self):
        """
        A function with the name of a hook but without a mark is rejected.
        """
        unmarked = types.SimpleNamespace(name="p", jetsync_status=lambda event: None)

        with pytest.raises(ConfigurationError, match="never runs, because it is not marked"):
            load(unmarked)

    def test_only_functions_are_checked(self):
        """
        Only functions are checked: a plugin may import a module named jetsync_something.
        """
        extra = plugin("p", jetsync_retry=lambda: None)
        extra.jetsync_other = types.ModuleType("jetsync_other")

        assert load(extra).retry is not None

    def test_a_hook_of_another_version_may_be_optional(self):
        """
        A hook that is marked as optional need not exist in this version.
        """
        extra = plugin("p", jetsync_retry=lambda: None)
        extra.jetsync_tomorrow = hookimpl(optionalhook=True)(lambda: None)

        assert load(extra).infos[0].hooks == ("jetsync_retry",)

    def test_a_function_of_another_name_may_be_meant(self):
        """
        The `specname` of pluggy gives the name of the hook.
        """
        other = types.SimpleNamespace(delay=hookimpl(specname="jetsync_retry")(lambda: 3))

        assert load(other).retry(PUBLISH, OSError(), 1) == 3.0

    def test_wrong_kinds_of_functions_are_refused(self):
        """
        Hooks are wrappers or plain functions, as specified, and never async.
        """

        def generator(message):
            yield

        async def coroutine(message):
            pass

        def old():
            yield

        def refused(text, **hooks):
            with pytest.raises(ConfigurationError, match=text):
                load(types.SimpleNamespace(name="p", **hooks))

        mark = hookimpl(wrapper=True)
        refused("wraps an operation", jetsync_publish=hookimpl(lambda operation: None))
        refused("has nothing to wrap", jetsync_prepare_message=mark(generator))
        refused("yields, but it is not a wrapper", jetsync_prepare_message=hookimpl(generator))
        refused("does not yield", jetsync_publish=mark(lambda operation: None))
        refused("is async", jetsync_prepare_message=hookimpl(coroutine))
        refused("old-style", jetsync_publish=hookimpl(hookwrapper=True)(old))


class TestEntryPoints:
    def test_a_plugin_gets_the_name_of_its_entry_point(self, entry_points):
        """
        A plugin can be loaded by its entry point, whose name it gets.
        """
        entry_points("sample", "pkg_sample:Sample", Sample)

        (info,) = load("sample").infos

        assert info.name == "sample"

    def test_an_unknown_name_lists_the_known_ones(self, entry_points):
        """
        The error lists the installed plugins.
        """
        with pytest.raises(ConfigurationError, match="no plugin 'retri'; installed: none"):
            load("retri")
        entry_points("retry", "pkg_retry:Sample", Sample)
        entry_points("otel", "pkg_otel:Sample", Sample)
        with pytest.raises(ConfigurationError, match="no plugin 'retri'; installed: otel, retry"):
            load("retri")

    def test_no_plugin_is_made_before_all_names_are_known(self, entry_points):
        """
        No plugin is created if a name is unknown, because plugins may open resources.
        """
        made = []
        entry_points("sample", "pkg_sample:make", type("Made", (), {"__init__": made.append}))
        with pytest.raises(ConfigurationError, match="no plugin 'retri'"):
            load("sample", "retri")
        assert made == []

    def test_earlier_plugins_get_a_closed_event(self):
        """
        If one plugin is rejected, those before it get a closed event, to release their resources.
        """
        told = []

        def jetsync_status(event):
            told.append(event)

        with pytest.raises(ConfigurationError) as caught:
            load(plugin("listens", jetsync_status=jetsync_status), object())
        assert [(event.kind.value, event.error) for event in told] == [("closed", caught.value)]

    def test_one_that_can_not_be_imported_is_named(self, entry_points):
        """
        The error names the plugin and has the import error as its cause.
        """
        entry_points("broken", "pkg_broken:other", Sample)
        sys.modules["pkg_broken"].__dict__.clear()

        with pytest.raises(ConfigurationError, match=r"'broken' \(pkg_broken:other\)") as caught:
            load("broken")

        assert isinstance(caught.value.__cause__, AttributeError)

    def test_environment_adds(self, entry_points):
        """
        JETSYNC_PLUGINS adds plugins by name. Spaces, repetitions and loaded plugins are ignored.
        """
        entry_points("a", "pkg_a:Sample", Sample)
        entry_points("b", "pkg_b:Sample", Sample)

        plugins = load("b", JETSYNC_PLUGINS=" a, b,,a ")

        assert [info.name for info in plugins.infos] == ["b", "a"]

    def test_environment_makes_no_second_one(self, entry_points):
        """
        JETSYNC_PLUGINS does not create a second instance of a plugin that is passed as an argument.
        """
        made = []

        class Opening(Sample):
            name = "opening"

            def __init__(self):
                made.append(self)

        entry_points("opening", "pkg_opening:Opening", Opening)
        load("opening", JETSYNC_PLUGINS="opening")
        load(Opening(), JETSYNC_PLUGINS="opening")

        assert len(made) == 2

    def test_environment_blocks(self, entry_points):
        """
        JETSYNC_BLOCK_PLUGINS leaves plugins out by name, without importing them.
        """
        entry_points("gone", "pkg_gone:missing", Sample)
        del sys.modules["pkg_gone"]

        plugins = load("gone", Sample, JETSYNC_PLUGINS="gone", JETSYNC_BLOCK_PLUGINS="gone,Sample")

        assert plugins.infos == ()
        assert plugins.blocked == ("gone", "Sample")
        assert plugins.prepare is None

    def test_installed_plugins_are_listed_without_loading(self, entry_points):
        """
        Installed plugins are listed without being imported.
        """
        entry_points("b", "pkg_b:missing", Sample)
        entry_points("a", "pkg_a:missing", Sample)

        installed = installed_plugins()
        assert [(name, entry.value) for name, entry in installed.items()] == [
            ("a", "pkg_a:missing"),
            ("b", "pkg_b:missing"),
        ]

    def test_installed_plugins_know_their_distribution(self, tmp_path, monkeypatch):
        """
        An installed plugin has a distribution and a version.
        """
        info = tmp_path / "jetsync_sample-1.2.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: jetsync-sample\nVersion: 1.2\n"
        )
        (info / "entry_points.txt").write_text("[jetsync]\nsample = jetsync_sample:Plugin\n")
        monkeypatch.syspath_prepend(tmp_path)

        entry = installed_plugins()["sample"]
        assert entry.value == "jetsync_sample:Plugin"
        assert (entry.dist.name, entry.dist.version) == ("jetsync-sample", "1.2")


class TestTrace:
    SCRIPT = """
import types
from jetsync._hooks.manager import Plugins
from jetsync.events import PublishOperation
from jetsync.hookspecs import hookimpl

class Message:
    subject = "orders.1"
    data = b"secret"
    headers = None

class Plugin:
    @hookimpl
    def jetsync_prepare_message(self, message):
        return None
    @hookimpl(wrapper=True)
    def jetsync_publish(self):
        return (yield)
    @hookimpl
    def jetsync_retry(self, error):
        raise ValueError("no idea")

plugins = Plugins.load([Plugin])
plugins.prepare(Message())
plugins.enter_publish(PublishOperation(subject="orders.1")).run(lambda: 5)
try:
    plugins.enter_publish(PublishOperation()).run(lambda: 1 / 0)
except ZeroDivisionError:
    pass
try:
    plugins.retry(PublishOperation(), OSError("lost"), 2)
except Exception:
    pass
"""

    def run(self, value):
        """
        Run the script in a new process with this value of the variable.
        """
        return subprocess.run(
            [sys.executable, "-c", self.SCRIPT],
            env={
                **os.environ,
                "JETSYNC_TRACE_HOOKS": value,
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )

    def test_a_line_for_each_call(self):
        """
        The plugin, hook, arguments, outcome and time go to stderr. Payloads do not.
        """
        result = self.run("1")

        lines = [re.sub(r" \[\d+ us\]$", "", line) for line in result.stderr.splitlines()]
        publish = "jetsync.hooks: Plugin jetsync_publish(PublishOperation(publish))"
        retry = "jetsync.hooks: Plugin jetsync_retry(PublishOperation(publish), OSError: lost, 2)"
        assert result.stdout == ""
        assert lines == [
            "jetsync.hooks: Plugin jetsync_prepare_message(Message(orders.1)) returned None",
            "jetsync.hooks: Plugin jetsync_publish(PublishOperation(orders.1)) started",
            "jetsync.hooks: Plugin jetsync_publish(PublishOperation(orders.1)) returned 5",
            "jetsync.hooks: Plugin jetsync_publish(PublishOperation(publish)) started",
            f"{publish} raised ZeroDivisionError: division by zero",
            f"{retry} raised ValueError: no idea",
        ]

    def test_silent_unless_asked(self):
        """
        The value 0 turns the trace off.
        """
        assert self.run("0").stderr == ""
