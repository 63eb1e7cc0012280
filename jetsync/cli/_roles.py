"""
The roles of users, and the subjects that a program in each role uses.

A test runs a program for each role with a user who has these permissions alone, and shows that it
needs each of them.
"""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Operation = Literal["publish", "subscribe"]


@attrs.frozen
class Line:
    """
    A permission of a role.
    """

    operation: Operation
    subject: str
    """The subject. Names in braces are arguments and options."""

    why: str
    """What the program does with it."""

    option: str | None = None
    """The option that adds the line, or several options, which add it together."""

    unless: str | None = None
    """The option that replaces the line, or several options, which replace it together."""


@attrs.frozen
class Option:
    """
    An option of a role.
    """

    name: str
    help: str
    value: str | None = None
    """What it takes, as often as wanted; None for a flag."""

    default: str | None = None
    """What lines have if no value is given."""


@attrs.frozen
class Role:
    """
    What a user does.
    """

    name: str
    about: str
    arguments: tuple[str, ...]
    """The names of arguments. The last one may end with `...`."""

    lines: tuple[Line, ...]
    options: tuple[Option, ...] = ()


def permissions_of(role: Role, given: Mapping[str, Any]) -> list[Line]:
    """
    Return what a user needs for a role: lines whose subjects have the values.

    Args:
        role: The role.
        given: Texts, tuples of texts, and flags: the arguments and options of the role, and `api`,
            `inbox`, `domain` and `write`.
    """
    values = dict(given)
    for option in role.options:
        if option.default is not None:
            values[option.name] = values.get(option.name) or (option.default,)
    found: dict[tuple[str, str], Line] = {}
    for line in role.lines:
        if line.option is not None and not _are_given(line.option, given):
            continue
        if line.unless is not None and _are_given(line.unless, given):
            continue
        for subject in _subjects(line.subject, values):
            # One permission may be needed for two reasons.
            found.setdefault((line.operation, subject), attrs.evolve(line, subject=subject))
    return [*found.values()]


def _are_given(options: str, given: Mapping[str, Any]) -> bool:
    return all(given.get(name) for name in options.split())


def _subjects(template: str, values: Mapping[str, Any]) -> Iterator[str]:
    """
    Yield the subject of a line for each combination of the values that it names.
    """
    names = re.findall(r"\{([\w-]+)\}", template)
    several = [[value] if isinstance(value := values[name], str) else value for name in names]
    for each in itertools.product(*several):
        yield template.format_map(dict(zip(names, each, strict=True)))


# --------------------------------------------------------------------------------------------------
# Lines that several roles have


def _publish(
    subject: str, why: str, *, option: str | None = None, unless: str | None = None
) -> Line:
    return Line("publish", subject, why, option, unless)


def _subscribe(subject: str, why: str, *, option: str | None = None) -> Line:
    return Line("subscribe", subject, why, option)


_ANSWERS: Final = _subscribe("{inbox}.>", "receive answers and messages")

# From 2.14 on, servers may add a domain and the hash of an account to the subjects of
# acknowledgements and of flow control (`js_ack_fc_v2`).
_ACKS: Final = (
    _publish("$JS.ACK.{stream}.{consumer}.>", "acknowledge"),
    _publish("$JS.ACK.{domain}.*.{stream}.{consumer}.>", "acknowledge, newer form"),
)


_PULLS: Final = (
    _publish("{api}.CONSUMER.MSG.NEXT.{stream}.{consumer}", "pull messages"),
    _publish("{api}.CONSUMER.INFO.{stream}.{consumer}", "look it up, see if it is gone"),
)


def _consumers(stream: str, filters: str, option: str | None = None) -> tuple[Line, ...]:
    """
    Return the lines for consumers that jetsync creates and names, with one filter each.
    """
    create = f"{{api}}.CONSUMER.CREATE.{stream}.*{filters}"
    pull = f"{{api}}.CONSUMER.MSG.NEXT.{stream}.*"
    info = f"{{api}}.CONSUMER.INFO.{stream}.*"
    delete = f"{{api}}.CONSUMER.DELETE.{stream}.*"
    return (
        _publish(create, "create a consumer", option=option),
        _publish(pull, "pull from it", option=option),
        _publish(info, "see what it has sent", option=option),
        _publish(delete, "delete it at the end", option="delete"),
    )


_DELETE: Final = Option(
    "delete",
    "Also delete the consumer at the end. Otherwise, the server does so after 5 minutes. The user "
    "can then delete every consumer of the stream.",
)
_FILTER: Final = Option(
    "filter", "Only consumers with this one filter. May be repeated.", "SUBJECT"
)
_KEY: Final = Option("key", "Only keys of this pattern. May be repeated.", "PATTERN", ">")
_LOOKUP: Final = "look the stream up"

# A client has one subscription for the reports about all streams.
_ADVISORIES: Final = "$JS.EVENT.ADVISORY.STREAM.BATCH_ABANDONED.*"

_BATCH: Final = (
    _publish("{api}.STREAM.NAMES", "find the stream of a subject"),
    _publish("{api}.STREAM.INFO.{stream}", "find out whether it takes batches"),
    _publish("{subject}", "publish"),
    _ANSWERS,
)

# --------------------------------------------------------------------------------------------------

_ROLES: Final = (
    Role(
        "publisher",
        "Publish messages to SUBJECT with `publish`, `publish_many` or a publisher.",
        ("subject...",),
        (_publish("{subject}", "publish"), _ANSWERS),
    ),
    Role(
        "atomic-publisher",
        "Publish atomic batches to SUBJECT of STREAM.",
        ("stream", "subject..."),
        (
            *_BATCH,
            _subscribe(_ADVISORIES, "learn that a batch was dropped"),
        ),
    ),
    Role(
        "fast-publisher",
        "Publish with fast ingest to SUBJECT of STREAM.",
        ("stream", "subject..."),
        _BATCH,
    ),
    Role(
        "worker",
        "Read and acknowledge the messages of the pull consumer CONSUMER of STREAM.",
        ("stream", "consumer"),
        (
            *_PULLS,
            *_ACKS,
            _ANSWERS,
            _publish("{api}.CONSUMER.CREATE.{stream}.{consumer}", "create it", option="create"),
            _publish(
                "{api}.CONSUMER.CREATE.{stream}.{consumer}.{filter}",
                "create it with this filter",
                option="filter",
            ),
            _publish(
                "{api}.STREAM.INFO.{stream}", "compare the filter with the stream", option="filter"
            ),
            _publish("{dead-letter}", "store dead letters", option="dead-letter"),
        ),
        (
            Option("create", "Also create the consumer without a filter, or with several."),
            Option("filter", "Also create the consumer with this one filter.", "SUBJECT"),
            Option("dead-letter", "Also store dead letters on this subject.", "SUBJECT"),
        ),
    ),
    Role(
        "push-worker",
        "Read and acknowledge the messages of the push consumer CONSUMER of STREAM, which sends "
        "them to DELIVER.",
        ("stream", "consumer", "deliver"),
        (
            _publish("{api}.CONSUMER.INFO.{stream}.{consumer}", "look it up"),
            *_ACKS,
            _subscribe("{deliver}", "receive messages"),
            _ANSWERS,
            _publish("$JS.FC.{stream}.{consumer}.>", "answer flow control", option="flow-control"),
            _publish(
                "$JS.FC.{domain}.*.{stream}.{consumer}.>",
                "answer flow control, newer form",
                option="flow-control",
            ),
        ),
        (Option("flow-control", "Also answer flow control, if the consumer has it."),),
    ),
    Role(
        "reader",
        "Read STREAM with ordered consumers.",
        ("stream",),
        (
            _publish("{api}.STREAM.INFO.{stream}", _LOOKUP),
            _publish("{api}.CONSUMER.CREATE.{stream}.*", "create a consumer", unless="filter"),
            _publish(
                "{api}.CONSUMER.CREATE.{stream}.*.{filter}", "create a consumer", option="filter"
            ),
            *_consumers("{stream}", "")[1:],
            _ANSWERS,
        ),
        (_FILTER, _DELETE),
    ),
    Role(
        "direct-reader",
        "Read STREAM without a consumer: `get_message`, `get_last`, `get_next`, `scan` and others.",
        ("stream",),
        (
            _publish("{api}.STREAM.INFO.{stream}", _LOOKUP, unless="last"),
            _publish("{api}.DIRECT.GET.{stream}", "read one message or many", unless="last"),
            _publish(
                "{api}.DIRECT.GET.{stream}.>", "read the last message of a subject", unless="last"
            ),
            _publish(
                "{api}.DIRECT.GET.{stream}.{last}",
                "read the last message of this subject",
                option="last",
            ),
            _publish(
                "{api}.STREAM.MSG.GET.{stream}",
                "ask the leader if there is no message",
                unless="last",
            ),
            _ANSWERS,
        ),
        (
            Option(
                "last",
                "Only read the last message of this subject, with `lookup=False`. May be repeated.",
                "SUBJECT",
            ),
        ),
    ),
    Role(
        "kv-reader",
        "Read keys of the key-value bucket BUCKET.",
        ("bucket",),
        (
            _publish("{api}.STREAM.INFO.KV_{bucket}", "look the bucket up"),
            _publish("{api}.DIRECT.GET.KV_{bucket}.$KV.{bucket}.{key}", "read a key"),
            _publish("{api}.DIRECT.GET.KV_{bucket}", "read many keys at once", option="many"),
            _publish(
                "{api}.STREAM.MSG.GET.KV_{bucket}",
                "ask the leader if there is no key",
                unless="key",
            ),
            *_consumers("KV_{bucket}", ".$KV.{bucket}.{key}", "watch"),
            _publish(
                "{api}.CONSUMER.CREATE.KV_{bucket}.*",
                "create a consumer with several filters",
                option="several",
            ),
            _ANSWERS,
        ),
        (
            _KEY,
            Option("many", "Also read many keys at once with `get_many`, or an old revision."),
            Option("watch", "Also `keys`, `history` and `watch`."),
            Option("several", "Also `keys` and `watch` with several patterns at once."),
            _DELETE,
        ),
    ),
    Role(
        "kv-writer",
        "Write keys of the key-value bucket BUCKET.",
        ("bucket",),
        (
            _publish("{api}.STREAM.INFO.KV_{bucket}", "look the bucket up"),
            _publish("{write}$KV.{bucket}.{key}", "write a key"),
            _publish(
                "{api}.STREAM.MSG.GET.KV_{bucket}",
                "see what the leader has of a key",
                option="create",
            ),
            _ANSWERS,
            _subscribe(_ADVISORIES, "learn that a transaction was dropped", option="atomic"),
        ),
        (
            _KEY,
            Option("create", "Also `create` keys that were deleted before, and `modify` keys."),
            Option("atomic", "Also events about dropped transactions, if the program has plugins."),
        ),
    ),
    Role(
        "object-reader",
        "Read objects of the object store BUCKET.",
        ("bucket",),
        (
            _publish("{api}.STREAM.INFO.OBJ_{bucket}", "look the store up"),
            _publish("{api}.DIRECT.GET.OBJ_{bucket}.$O.{bucket}.M.>", "find an object"),
            _publish("{api}.DIRECT.GET.OBJ_{bucket}", "read its data, and list objects"),
            _publish("{api}.STREAM.MSG.GET.OBJ_{bucket}", "ask the leader if there is no object"),
            *_consumers("OBJ_{bucket}", ".$O.{bucket}.>", "watch"),
            _ANSWERS,
        ),
        (
            Option("watch", "Also `watch` and `seek`, and all reads with servers before 2.11."),
            _DELETE,
        ),
    ),
    Role(
        "object-writer",
        "Put and delete objects of the object store BUCKET.",
        ("bucket",),
        (
            _publish("{api}.STREAM.INFO.OBJ_{bucket}", "look the store up"),
            _publish("{api}.STREAM.MSG.GET.OBJ_{bucket}", "find the object to replace"),
            _publish("$O.{bucket}.>", "write data and descriptions"),
            _publish("{api}.STREAM.PURGE.OBJ_{bucket}", "remove replaced data"),
            _ANSWERS,
        ),
    ),
    Role(
        "spark-reader",
        "Read STREAM with jetsync-spark. The stream of the bucket `users` is KV_users.",
        ("stream...",),
        (
            _publish("{api}.STREAM.INFO.{stream}", _LOOKUP),
            _publish("{api}.DIRECT.GET.{stream}", "read rows"),
            _publish("{api}.STREAM.MSG.GET.{stream}", "find the positions of times and filters"),
            _publish("{api}.STREAM.NAMES", "find the streams of a pattern", option="pattern"),
            _publish("{api}.STREAM.LIST", "look many streams up at once", option="many"),
            _publish(
                "{api}.CONSUMER.CREATE.{stream}.*",
                "create a consumer",
                option="wait",
                unless="filter",
            ),
            *_consumers("{stream}", "", "wait")[1:],
            _publish(
                "{api}.CONSUMER.CREATE.{stream}.*.{filter}",
                "create a consumer with the filter of a query",
                option="wait filter",
            ),
            *(_publish(line.subject, line.why, option="consumer") for line in (*_PULLS, _ACKS[0])),
            _publish(
                "{api}.CONSUMER.CREATE.{stream}.{consumer}", "create it", option="consumer create"
            ),
            _ANSWERS,
        ),
        (
            Option("pattern", "Also find the streams of a pattern."),
            Option("many", "Also look four or more streams up at once."),
            Option(
                "wait",
                "Also wait for new messages with consumers of its own, and read with them from "
                "servers before 2.11 and from streams without `allow_direct`.",
            ),
            Option("consumer", "Also read through this durable consumer.", "NAME"),
            Option("create", "Also create the durable consumer."),
            Option("filter", "With `--wait`, only consumers with this one filter.", "SUBJECT"),
            _DELETE,
        ),
    ),
    Role(
        "spark-writer",
        "Write to SUBJECT of STREAM with jetsync-spark. The keys of the bucket `users` are "
        "subjects `$KV.users.>` of KV_users.",
        ("stream", "subject..."),
        (
            _publish("{api}.STREAM.INFO.{stream}", _LOOKUP),
            _publish("{subject}", "write rows"),
            *(
                _publish("{api}.STREAM.NAMES", "find the stream of a subject", option=mode)
                for mode in ("fast", "atomic", "ledger")
            ),
            _publish("{ledger}.>", "write the ledger", option="ledger"),
            _publish("{api}.STREAM.MSG.GET.{stream}", "read the ledger", option="ledger"),
            _publish(
                "{api}.DIRECT.GET.{stream}", "read many entries of the ledger", option="ledger"
            ),
            _ANSWERS,
        ),
        (
            Option("fast", "Also `fastIngest`."),
            Option("atomic", "Also `mode=atomic`."),
            Option("ledger", "Also `mode=exactlyonce`, with this `ledgerSubject`.", "SUBJECT"),
        ),
    ),
    Role(
        "monitor",
        "Read the figures of streams and consumers with `jetsync export`, `jetsync check` or a "
        "`Monitor`.",
        (),
        (
            _publish("{api}.INFO", "see the use and limits of the account", unless="no-account"),
            _publish("{api}.STREAM.LIST", "list the streams", unless="stream"),
            _publish("{api}.STREAM.INFO.{stream}", "look up a stream that is named"),
            _publish(
                "{api}.CONSUMER.LIST.{stream}",
                "list the consumers of a stream",
                unless="stream consumer",
            ),
            _publish("{api}.CONSUMER.INFO.{stream}.{consumer}", "look up a consumer that is named"),
            _publish(
                "{api}.DIRECT.GET.{stream}",
                "see when the oldest message was stored",
                unless="no-lookups",
            ),
            _publish(
                "{api}.STREAM.MSG.GET.{stream}",
                "see it in a stream without `allow_direct`",
                unless="no-lookups",
            ),
            _ANSWERS,
        ),
        (
            Option(
                "stream",
                "Only this stream. May be repeated up to 16 times. Without it, the user may list "
                "all streams, which a name with * also needs.",
                "NAME",
                "*",
            ),
            Option(
                "consumer", "With `--stream`, only this consumer. May be repeated.", "NAME", "*"
            ),
            Option("no-account", "Without the account, as `jetsync export --no-account`."),
            Option(
                "no-lookups",
                "Without permission to read messages, as `jetsync export --lookups 0`. Some ages "
                "are missing then.",
            ),
        ),
    ),
    Role(
        "administrator",
        "Create, change and delete streams, consumers and buckets.",
        (),
        (_publish("{api}.>", "send all requests of the JetStream API"), _ANSWERS),
    ),
)

ROLES: Final = {role.name: role for role in _ROLES}
"""The roles by name."""
