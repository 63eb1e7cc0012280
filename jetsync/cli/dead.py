"""
`jetsync dead`: list, show, put back and remove dead letters.

A dead letter is a copy of a message that no worker could handle. `jetsync.replay` makes the message
of it again.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any, Final

import attrs
import click

import jetsync
from jetsync.cli._connection import Group, jetstream
from jetsync.cli._name_completion import stream_argument
from jetsync.cli._output import (
    GOOD,
    NAME,
    WARNING,
    Styled,
    check_form,
    confirm,
    counted,
    dry_run_option,
    force_option,
    json_option,
    moment,
    print_item,
    print_json,
    print_list,
    progress,
    say,
    text_or_base64,
    warn,
)
from jetsync.cli._units import combined, moment_of, number_option
from jetsync.values import dead_letter as headers_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REFUSED: Final = (
    jetsync.ApiError,
    jetsync.InvalidArgumentError,
    jetsync.NoStreamResponseError,
    jetsync.NotSupportedError,
)
"""Errors that concern one message. After others, the next message would fail, too."""


@attrs.frozen
class Letter:
    """
    A dead letter in its stream.
    """

    message: jetsync.StoredMessage

    def header(self, name: str) -> str:
        """
        Return a header of the dead letter; empty if it is missing.
        """
        return self.message.headers.get(name) or ""

    @property
    def stream(self) -> str:
        """The stream of the original."""
        return self.header(headers_of.STREAM)

    @property
    def consumer(self) -> str:
        """The consumer that gave the original up."""
        return self.header(headers_of.CONSUMER)

    @property
    def reason(self) -> str:
        """Why it did."""
        return self.header(headers_of.REASON)

    @property
    def original_headers(self) -> dict[str, list[str]]:
        """The headers of the original, under their own names."""
        found: dict[str, list[str]] = {}
        for name, value in self.message.headers.items():
            if name.startswith(headers_of.KEPT):
                found.setdefault(name[len(headers_of.KEPT) :], []).append(value)
            elif not name.startswith((headers_of.PREFIX, "Nats-")):
                found.setdefault(name, []).append(value)
        return found

    def as_json(self) -> dict[str, Any]:
        """
        Return it as `--json` prints it.
        """
        return {
            "sequence": self.message.sequence,
            "time": self.message.timestamp.isoformat(),
            "letter_subject": self.message.subject,
            "stream": self.stream,
            "stream_sequence": _number(self.header(headers_of.SEQUENCE)),
            "subject": self.header(headers_of.SUBJECT),
            "consumer": self.consumer,
            "deliveries": _number(self.header(headers_of.DELIVERIES)),
            "reason": self.reason,
            "headers": self.original_headers,
            **text_or_base64("data", self.message.data),
        }


@attrs.frozen
class Selection:
    """
    Which dead letters a command concerns.
    """

    subject: str | None = None
    stream_name: str | None = None
    consumer: str | None = None
    reason: str | None = None
    since: dt.datetime | None = None
    until: dt.datetime | None = None
    sequences: tuple[int, ...] = ()
    every: bool = False

    def check(self) -> None:
        """
        Raise a usage error unless the selection is explicit: sequences, filters, or all.
        """
        filters = (
            *(self.subject, self.stream_name, self.consumer, self.reason),
            *(self.since, self.until),
        )
        given = [bool(self.sequences), any(each is not None for each in filters), self.every]
        if sum(given) != 1:
            raise click.UsageError("Give SEQUENCES, options that select dead letters, or --all.")

    def letters(self, stream: jetsync.Stream) -> Iterator[Letter]:
        """
        Yield the dead letters. Those that are stored meanwhile are left out.
        """
        for sequence in dict.fromkeys(self.sequences):
            message = stream.get_message(sequence)
            if not _is_letter(message):
                text = f"message {sequence} of {stream.name} is not a dead letter"
                raise click.ClickException(text)
            yield Letter(message)
        if self.sequences:
            return
        for message in _messages(stream, self.subject):
            letter = Letter(message)
            if _is_letter(message) and self._takes(letter):
                yield letter

    def _takes(self, letter: Letter) -> bool:
        time = letter.message.timestamp
        return (
            (self.since is None or time >= self.since)
            and (self.until is None or time < self.until)
            and self.stream_name in {None, letter.stream}
            and self.consumer in {None, letter.consumer}
            and (self.reason is None or self.reason in letter.reason)
        )


selection_options: Final = combined(
    click.option("--subject", metavar="FILTER", help="Only those that are stored under FILTER."),
    click.option(
        "--from",
        "stream_name",
        metavar="NAME",
        help="Only those whose originals are in the stream NAME.",
    ),
    click.option("--consumer", metavar="NAME", help="Only those of the consumer NAME."),
    click.option("--reason", metavar="TEXT", help="Only those with TEXT in their reason."),
    click.option(
        "--since",
        type=moment_of,
        metavar="TIME",
        help="Only those that were given up at TIME or later: 2026-08-06T18:00, or 1h30m for an"
        " age.",
    ),
    click.option(
        "--until",
        type=moment_of,
        metavar="TIME",
        help="Only those that were given up before TIME.",
    ),
)
"""The options of a :class:`Selection`."""

sequences_argument: Final = click.argument("sequences", nargs=-1, type=click.IntRange(min=1))
all_option: Final = click.option("--all", "every", is_flag=True, help="All dead letters of STREAM.")


@click.group(cls=Group)
def dead() -> None:
    """
    List, show, put back and remove dead letters.

    STREAM is the stream that stores the dead letters.
    """


@dead.command("ls")
@stream_argument
@selection_options
@number_option("--limit", help="Show at most N dead letters, the oldest ones.")
@json_option
def list_letters(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    limit: int | None,
    as_json: bool,
    **which: Any,
) -> None:
    """
    List the dead letters in STREAM, with the reason why each message was given up.
    """
    found: list[Letter] = []
    for letter in Selection(**which).letters(jetstream(options).stream(stream)):
        if len(found) == limit:
            warn(f"there are more than {limit:,} dead letters")
            break
        found.append(letter)
    print_list(
        found,
        as_json=as_json,
        as_dict=Letter.as_json,
        row=lambda letter: {
            "sequence": str(letter.message.sequence),
            "time": moment(letter.message.timestamp),
            "subject": letter.header(headers_of.SUBJECT),
            "consumer": f"{letter.consumer} of {letter.stream}",
            "deliveries": letter.header(headers_of.DELIVERIES),
            "reason": letter.reason,
        },
        numbers=("sequence", "deliveries"),
        nothing=f"{stream} has no dead letters."
        if not any(which.values())
        else "No dead letter matches.",
    )


@dead.command("show")
@stream_argument
@click.argument("sequence", type=click.IntRange(min=1))
@click.option("--raw", is_flag=True, help="Print only the bytes of the payload.")
@json_option
def show_letter(
    *, options: jetsync.ConnectOptions, stream: str, sequence: int, raw: bool, as_json: bool
) -> None:
    """
    Show the dead letter at SEQUENCE of STREAM, with its payload.
    """
    check_form("payload", raw=raw, as_json=as_json)
    (letter,) = Selection(sequences=(sequence,)).letters(jetstream(options).stream(stream))
    message = letter.message
    pairs = [
        ("sequence", Styled(f"{message.sequence} of {message.stream}", NAME)),
        ("stored under", message.subject),
        ("given up", moment(message.timestamp)),
        ("reason", letter.reason),
        ("subject", letter.header(headers_of.SUBJECT)),
        ("original", f"{letter.header(headers_of.SEQUENCE)} of {letter.stream}"),
        ("consumer", letter.consumer),
        ("deliveries", letter.header(headers_of.DELIVERIES)),
        *(
            (f"header {name}", value)
            for name, values in letter.original_headers.items()
            for value in values
        ),
    ]
    print_item(pairs, message.data, letter.as_json(), raw=raw, as_json=as_json)


@dead.command("replay")
@stream_argument
@sequences_argument
@selection_options
@all_option
@click.option("--keep", is_flag=True, help="Do not remove the dead letters.")
@dry_run_option
@force_option
@json_option
def replay_letters(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    keep: bool,
    dry_run: bool,
    force: bool,
    as_json: bool,
    **which: Any,
) -> None:
    """
    Publish the originals of dead letters in STREAM again, and remove the dead letters.

    The messages get their original subjects, payloads and headers. A dead letter is removed after
    its message is stored. If the command is interrupted, call it again: within the duplicate window
    of the original stream, no message is stored twice. SEQUENCES are those of the dead letters.
    """
    selection = Selection(**which)
    selection.check()
    js = jetstream(options)
    found = js.stream(stream)
    if not keep:
        _check_deletable(found)
    chosen = [letter.message.sequence for letter in selection.letters(found)]
    if not _go_on(
        f"Publish {counted(len(chosen), 'message')} again"
        + ("?" if keep else f", and remove {'it' if len(chosen) == 1 else 'them'} from {stream}?"),
        chosen,
        dry_run=dry_run,
        force=force,
        as_json=as_json,
    ):
        return

    def put_back(sequence: int) -> bool:
        message = jetsync.replay(found.get_message(sequence))
        ack = js.publish(
            message.subject, message.data, headers=message.headers, msg_id=message.msg_id
        )
        if not keep:
            found.delete_message(sequence)
        return ack.duplicate

    _each(chosen, put_back, "message", "published again", as_json=as_json)


@dead.command("rm")
@stream_argument
@sequences_argument
@selection_options
@all_option
@dry_run_option
@force_option
@json_option
def remove_letters(
    *,
    options: jetsync.ConnectOptions,
    stream: str,
    dry_run: bool,
    force: bool,
    as_json: bool,
    **which: Any,
) -> None:
    """
    Remove dead letters from STREAM. SEQUENCES are those of the dead letters.
    """
    selection = Selection(**which)
    selection.check()
    found = jetstream(options).stream(stream)
    _check_deletable(found)
    chosen = [letter.message.sequence for letter in selection.letters(found)]
    question = f"Remove {counted(len(chosen), 'dead letter')} from {stream}?"
    if not _go_on(question, chosen, dry_run=dry_run, force=force, as_json=as_json):
        return

    def remove(sequence: int) -> bool:
        found.delete_message(sequence)
        return False

    _each(chosen, remove, "dead letter", "removed", as_json=as_json)


def _messages(stream: jetsync.Stream, subject: str | None) -> Iterator[jetsync.StoredMessage]:
    """
    Yield the messages that a stream has now, also those of a work queue.
    """
    if stream.cached_info.config.allow_direct:
        try:
            yield from stream.scan(subject=subject)
        except jetsync.NotSupportedError:
            # Server 2.10 has no batches of direct reads.
            pass
        else:
            return
    last, after = stream.cached_info.state.last_seq, 0
    while after < last:
        try:
            message = stream.get_next(subject or ">", after + 1)
        except jetsync.MessageNotFoundError:
            return
        after = message.sequence
        if after <= last:
            yield message


def _is_letter(message: jetsync.StoredMessage) -> bool:
    return headers_of.SUBJECT in message.headers and headers_of.SEQUENCE in message.headers


def _check_deletable(stream: jetsync.Stream) -> None:
    config = stream.cached_info.config
    if config.deny_delete or config.sealed:
        why = "is sealed" if config.sealed else "forbids deleting messages"
        raise click.ClickException(f"dead letters cannot be removed: {stream.name} {why}")


def _go_on(question: str, chosen: list[int], *, dry_run: bool, force: bool, as_json: bool) -> bool:
    """
    Show what is chosen or ask, and return whether there is something to do.
    """
    if dry_run or not chosen:
        if as_json:
            print_json({"chosen": chosen, "done": [], "duplicates": 0, "failed": []})
        elif not chosen:
            say("No dead letter matches.")
        else:
            say(f"{counted(len(chosen), 'dead letter')}: {', '.join(map(str, chosen))}")
        return False
    confirm(question, force=force, as_json=as_json)
    return True


def _each(
    chosen: list[int], work: Callable[[int], bool], what: str, done_how: str, *, as_json: bool
) -> None:
    """
    Do something with each dead letter, and print how many are done.

    Args:
        chosen: The sequences.
        work: Works on one, and returns whether its message was stored before.
        what: What is worked on, for people.
        done_how: What happened to it.
        as_json: Whether to print JSON.
    """
    done: list[int] = []
    failed: list[dict[str, Any]] = []
    duplicates = 0
    try:
        with progress("dead letters", len(chosen)) as show_progress:
            for number, sequence in enumerate(chosen, 1):
                try:
                    duplicates += work(sequence)
                    done.append(sequence)
                except REFUSED as error:
                    failed.append({"sequence": sequence, "error": str(error)})
                show_progress(completed=number)
    except BaseException:
        warn(f"{len(done):,} of {counted(len(chosen), what)} {_were(done)} {done_how}")
        raise
    if as_json:
        result = {"chosen": chosen, "done": done, "duplicates": duplicates, "failed": failed}
        print_json(result)
    else:
        if done:
            say(f"{counted(len(done), what)} {_were(done)} {done_how}", style=GOOD)
        if duplicates:
            say(f"{duplicates:,} of them had been stored before", style=WARNING)
        for each in failed:
            warn(f"dead letter {each['sequence']} stays: {each['error']}")
    if failed:
        raise click.exceptions.Exit(1)


def _were(found: list[int]) -> str:
    return "was" if len(found) == 1 else "were"


def _number(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() else None
