"""
The requests of a query that reads through a durable consumer.

A consumer that the query creates has ``headers_only``, so that payloads do not pass through the
planner. Messages are acknowledged by their stream sequence: the server finds a delivered message by
this number alone, and ignores the other numbers of an acknowledgement's subject. A restarted
planner can therefore acknowledge a batch of which only the sequences are known.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, TypeVar

import attrs

import jetsync
from jetsync_spark.common.clients import lend
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, explain
from jetsync_spark.common.retry import retry_with_client
from jetsync_spark.common.subjects import without_covered
from jetsync_spark.read.deliveries import Delivered
from jetsync_spark.read.origin import Origin, check_filters, origin_of

if TYPE_CHECKING:
    from array import array
    from collections.abc import Callable, Sequence

    from jetsync_spark.common.options import ConnectSettings
    from jetsync_spark.read.options import ReadOptions

__all__ = ["Durable", "Keeper", "Source"]

T = TypeVar("T")

ACK_WAIT: Final = 60.0
"""
Default seconds until the server redelivers a message. A killed query waits that long for messages
that it had received and not yet planned.
"""

AT_ONCE: Final = 5000
"""Maximum messages per pull. With headers of 10 kB, they need 50 MB."""

PULL: Final = 30.0
"""Seconds for which the server keeps the pull of an idle query."""

LIMITED: Final = 1 << 20
"""Bytes per pull if payloads pass through the planner, unless a message is larger."""

RENEWALS: Final = 3
"""How often the wait for redelivery is restarted before it can end."""

_GONE: Final = (
    jetsync.ConsumerDeletedError,
    jetsync.ConsumerNotFoundError,
    jetsync.StreamNotFoundError,
)

_logger = jetsync.get_logger("jetsync.spark.durable")


@attrs.frozen(kw_only=True)
class Source:
    """
    The stream and the consumer, as the server describes them.
    """

    origin: Origin
    """The stream."""

    is_queue: bool
    """Whether the stream keeps each message until it is acknowledged."""

    made: str
    """When the consumer was created."""

    filters: tuple[str, ...]
    """The subjects of the consumer. Empty for all."""

    skips_others: bool
    """Whether the consumer skips only messages that match no filter."""

    most: int | None
    """Maximum messages that may be unacknowledged. None for no limit."""

    at_once: int
    """Maximum messages per pull."""

    expires: float
    """Seconds for which the server keeps a pull."""

    headers_only: bool
    """Whether messages are delivered without payloads."""

    renew: float
    """Seconds after which the wait for redelivery has to be restarted."""

    gives_up: int
    """After how many deliveries the server gives up a message. 0 for never."""

    available: int
    """The number of messages that can be delivered now, or were delivered to a client."""


class Durable:
    """
    The consumer of a query.

    Not thread-safe.

    Args:
        settings: How to connect.
        options: What to read.
        most: Maximum messages of a micro-batch.
        connection: The name of the connection.
    """

    def __init__(
        self, settings: ConnectSettings, options: ReadOptions, most: int, connection: str
    ) -> None:
        self._settings = settings
        self._options = options
        self._most = most
        self._connection = connection
        self._stream = options.source
        self._name = options.consumer or ""
        self._handle: tuple[jetsync.Client, jetsync.Consumer] | None = None
        self._waiting: tuple[jetsync.Client, jetsync.Consumption] | None = None

    def look(self) -> Source | None:
        """
        Ask for the stream and the consumer. Return None if there is no such consumer.

        Raises:
            JetStreamSparkError: The stream does not exist, or the consumer cannot be used.
        """

        def ask(client: jetsync.Client) -> Source | None:
            stream = client.jetstream().stream(self._stream)
            try:
                consumer = stream.consumer(self._name)
            except jetsync.ConsumerNotFoundError:
                self._handle = None
                return None
            self._handle = client, consumer
            return self._checked(stream, consumer.cached_info)

        return self._ask(ask, "planning to read failed")

    def create(self) -> Source:
        """
        Create the consumer, or return the one that another query has created meanwhile.

        Raises:
            JetStreamSparkError: The server refused it.
        """
        options = self._options

        def ask(client: jetsync.Client) -> None:
            js = client.jetstream()
            stream = js.stream(self._stream)
            origin = origin_of(stream.cached_info)
            check_filters({self._stream: stream}, [origin], options.subject_filter)
            try:
                stream.create_consumer(
                    self._name,
                    ack_policy="explicit",
                    ack_wait=options.ack_wait or ACK_WAIT,
                    filter_subjects=list(without_covered(options.subject_filter)) or None,
                    headers_only=True,
                    # A killed query leaves up to one batch unacknowledged.
                    max_ack_pending=2 * self._most,
                )
            except jetsync.ConsumerExistsError:
                return
            except jetsync.ApiError as error:
                raise explain(
                    error,
                    f"creating consumer {self._name} failed",
                    stream=self._stream,
                    cure="name an existing consumer, or give a subjectFilter that overlaps with no "
                    "other consumer of the stream",
                ) from error
            _logger.info("consumer_created", stream=self._stream, consumer=self._name)

        self._ask(ask, "creating the consumer failed")
        found = self.look()
        if found is None:
            raise self._missing()
        return found

    def fetch(self, source: Source, most: int) -> list[Delivered] | None:
        """
        Return messages that are available now. None if the consumer no longer exists.

        Args:
            source: The consumer.
            most: The maximum number of messages.
        """
        most = min(most, source.at_once)

        def ask(client: jetsync.Client) -> list[Delivered] | None:
            try:
                consumer = self._consumer(client)
                if source.headers_only:
                    return _taken(consumer.fetch(most, no_wait=True))
                found = _taken(consumer.fetch(most, max_bytes=LIMITED, no_wait=True))
                # The next message may be larger than the limit.
                return found or _taken(consumer.fetch(1, no_wait=True))
            except _GONE:
                self._handle = None
                return None

        return self._ask(ask, "fetching from the consumer failed")

    def wait(self, source: Source, seconds: float) -> list[Delivered] | None:
        """
        Wait for the next message. The pull stays open for the next call if none arrives.

        Returns:
            The message, or nothing. None if the consumer no longer exists.
        """

        def ask(client: jetsync.Client) -> list[Delivered] | None:
            try:
                if self._waiting is None or self._waiting[0] is not client:
                    reading = self._consumer(client).consume(
                        max_messages=1, stop_after=1, expires=source.expires
                    )
                    self._waiting = client, reading
                message = self._waiting[1].next(timeout=seconds)
            except jetsync.ConsumptionClosedError:
                self._waiting = None
                return []
            except _GONE:
                self._waiting = self._handle = None
                return None
            except BaseException:
                # A message that an open pull brings later would wait to be redelivered.
                if self._waiting is not None:
                    self._waiting[1].close()
                self._waiting = None
                raise
            if message is None:
                return []
            self._waiting = None
            return [_delivered(message)]

        return self._ask(ask, "waiting for messages failed")

    def acknowledge(self, source: Source, which: Callable[[], Sequence[int]]) -> bool:
        """
        Acknowledge messages, and wait until the server has confirmed that.

        Messages that the consumer has not delivered are left out: the server would ignore them.

        Args:
            source: The consumer.
            which: Returns the sequences. It is only called if something is unacknowledged.

        Returns:
            Whether it is done. False if the consumer no longer exists or was created again.
        """

        def ask(client: jetsync.Client) -> bool:
            try:
                consumer = self._consumer(client)
                info = consumer.info()
            except _GONE:
                self._handle = None
                return False
            if _made(info) != source.made:
                return False
            if not info.num_ack_pending and (info.config.max_deliver or 0) <= 0:
                return True
            known = [each for each in which() if each <= info.delivered.stream_seq]
            while known:
                before = client.statistics().reconnects
                *others, last = known
                for each in others:
                    client.publish(self.subject(each), b"+ACK")
                client.flush()
                # The consumer handles acknowledgements in order, so the last answer is enough.
                client.request(self.subject(last), b"+ACK")
                if client.statistics().reconnects == before:
                    break
                # Some were perhaps lost with the connection.
            return True

        return self._ask(ask, "acknowledging failed")

    def subject(self, sequence: int) -> str:
        """
        Return the subject for acknowledgements of a message.
        """
        return _ack_subject(self._stream, self._name, sequence)

    def _consumer(self, client: jetsync.Client) -> jetsync.Consumer:
        if self._handle is None or self._handle[0] is not client:
            self._handle = client, client.jetstream().consumer(self._stream, self._name)
        return self._handle[1]

    def _ask(self, call: Callable[[jetsync.Client], T], doing: str) -> T:
        return retry_with_client(
            self._settings,
            self._connection,
            call,
            self._options.retry_timeout,
            doing,
            self._stream,
        )

    def _missing(self) -> JetStreamSparkError:
        return JetStreamSparkError(
            f"there is no consumer {self._name}",
            stream=self._stream,
            cure="create it, or leave out createConsumer=false",
        )

    def _checked(self, stream: jetsync.Stream, info: jetsync.ConsumerInfo) -> Source:
        """Return what the query needs to know of the consumer. Reject one that it cannot use."""
        config, options, name = info.config, self._options, self._name
        for wrong, what, cure in (
            (config.deliver_subject, "pushes messages", "name a pull consumer"),
            (config.ack_policy != "explicit", "has no explicit acknowledgements", None),
            (not config.durable_name, "is ephemeral: the server deletes it when idle", None),
            (config.priority_groups, "has priority groups", None),
        ):
            if wrong:
                raise OptionError(
                    f"consumer {name} of stream {self._stream} {what}",
                    option="consumer",
                    cure=cure or "name a durable pull consumer with ack_policy explicit",
                )
        single = [config.filter_subject] if config.filter_subject else []
        filters = tuple(sorted(config.filter_subjects or single))
        if options.subject_filter and set(filters) != set(without_covered(options.subject_filter)):
            raise OptionError(
                f"consumer {name} has the filters {', '.join(filters) or 'none'}, and "
                f"subjectFilter is {', '.join(options.subject_filter)}",
                option="subjectFilter",
                cure="leave it out, name another consumer, or change the filters of this one",
            )
        if options.ack_wait is not None and options.ack_wait != config.ack_wait:
            raise OptionError(
                f"consumer {name} has an ack_wait of {config.ack_wait} s, and ackWait is "
                f"{options.ack_wait} s",
                option="ackWait",
                cure="leave it out, or change the consumer",
            )
        limit = config.max_ack_pending or 0
        retention = stream.config.retention
        return Source(
            origin=origin_of(stream.cached_info),
            is_queue=retention is not None and retention.value == "workqueue",
            made=_made(info),
            filters=filters,
            skips_others=config.deliver_policy != "last_per_subject",
            most=limit if limit > 0 else None,
            at_once=min(AT_ONCE, config.max_batch or AT_ONCE),
            expires=min(PULL, config.max_expires or PULL),
            headers_only=bool(config.headers_only),
            renew=min([config.ack_wait or ACK_WAIT, *(config.backoff or ())]) / RENEWALS,
            gives_up=max(0, config.max_deliver or 0),
            available=info.num_pending + info.num_ack_pending,
        )


class Keeper:
    """
    Restarts the server's wait for redelivery while a batch runs.

    Without that, other clients of the consumer would get the messages of a batch that takes longer
    than ``ack_wait``. A thread sends it, which ends with the process.

    Thread-safe. A pickled copy is not needed and not possible.

    Args:
        settings: How to connect.
        connection: The name of the connection.
        stream: The stream.
        consumer: The consumer.
    """

    def __init__(
        self, settings: ConnectSettings, connection: str, stream: str, consumer: str
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._stream = stream
        self._consumer = consumer
        # Replaced in one step, so no lock is needed.
        self._wanted: tuple[Sequence[int], float] = ((), 0.0)
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, sequences: array[int], every: float) -> None:
        """
        Replace the messages whose wait is restarted.

        Args:
            sequences: The messages. Empty to stop.
            every: Seconds between two restarts.
        """
        self._wanted = sequences, every
        self._changed.set()
        if self._thread is None and sequences:
            self._thread = threading.Thread(
                target=self._run, name="jetsync-spark-keeper", daemon=True
            )
            self._thread.start()

    def _run(self) -> None:
        while True:
            self._changed.clear()
            sequences, every = self._wanted
            if not self._changed.wait(every if sequences else None):
                self._send(sequences)

    def _send(self, sequences: Sequence[int]) -> None:
        try:
            with lend(self._settings, self._connection) as client:
                for each in sequences:
                    if self._changed.is_set():
                        return
                    subject = _ack_subject(self._stream, self._consumer, each)
                    client.publish(subject, b"+WPI")
                client.flush()
        except (JetStreamSparkError, jetsync.JetSyncError) as error:
            # The next one may succeed in time. If not, the messages are redelivered.
            _logger.warning("not_renewed", stream=self._stream, reason=str(error))


def _taken(batch: jetsync.MessageBatch) -> list[Delivered]:
    """Return what a pull has brought. An error counts only if nothing has arrived."""
    found: list[Delivered] = []
    try:
        for message in batch:
            found.append(_delivered(message))  # noqa: PERF401 - an error keeps what has arrived.
    except jetsync.JetSyncError:
        if not found:
            raise
    return found


def _delivered(message: jetsync.Message) -> Delivered:
    said = message.metadata
    return Delivered(said.stream_sequence, said.consumer_sequence, said.delivered == 1)


def _made(info: jetsync.ConsumerInfo) -> str:
    return "" if info.created is None else info.created.isoformat()


def _ack_subject(stream: str, consumer: str, sequence: int) -> str:
    # Servers that use the longer form of these subjects accept this one too.
    return f"$JS.ACK.{stream}.{consumer}.1.{sequence}.{sequence}.0.0"
