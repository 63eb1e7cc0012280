"""
The plugin, which checks published messages, and optionally received ones, against the contract of
their subject.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

import attrs

import jetsync
from jetsync_schema.contract import Contract
from jetsync_schema.errors import MismatchError, Violation, ViolationError
from jetsync_schema.messages import (
    SCHEDULE_SOURCE,
    SCHEDULE_TARGET,
    SCHEMA_ID,
    bytes_of,
    header_of,
    is_empty_on_purpose,
    is_forged,
    is_message,
    is_tombstone,
    marked,
)
from jetsync_schema.registry.bucket import BucketSource, Problem
from jetsync_schema.registry.definitions import (
    Definition,
    DefinitionContract,
    Surroundings,
    read_directory,
)
from jetsync_schema.registry.patterns import check_pattern
from jetsync_schema.registry.table import Table

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping

    from typing_extensions import Self

    from jetsync.typing import HeadersInput, Payload
    from jetsync_schema.registry.bucket import Loaded
    from jetsync_schema.registry.table import Bound

__all__ = ["SchemaStatistics", "Schemas"]

TIMEOUT: Final = 10.0
"""Default seconds to connect and to read a bucket for the first time."""

Receive = Literal["off", "raise", "term", "mark"]
Unlisted = Literal["allow", "refuse"]


@attrs.frozen
class SchemaStatistics:
    """
    The counts of a `Schemas`.
    """

    refused: int
    """Messages that were not published."""

    raised: int
    """Received messages for which the call failed, except terminated ones."""

    terminated: int
    """Received messages that were terminated."""

    marked: int
    """Received messages that were delivered with a mark."""


class Schemas:
    """
    A plugin that checks messages against the contracts of their subjects.

    Pass it to `jetsync.connect(plugins=[...])`. Clients and threads may share one object. A message
    that violates its contract is not sent. The call fails with `jetsync.PluginError`, whose
    ``__cause__`` is a `ViolationError`.

    The most specific pattern that matches a subject applies. Patterns are compared token by token
    from the left: a literal token precedes ``*``, and ``*`` precedes ``>``.

    Args:
        contracts: Contracts by subject pattern.
        directory: A directory whose ``index.json`` defines more contracts; see `reload`.
        bucket: A key-value bucket that defines more contracts and is watched for changes. Pass a
            handle, or a name to open a separate connection. *contracts* and *directory* take
            precedence.
        options: How to connect to a bucket given by name. None uses the environment.
        models: pydantic models by their names in definitions.
        publish: Whether published messages are checked.
        receive: What happens to a received message that violates its contract. ``"off"``: it is not
            checked. ``"raise"``: the call that takes it fails, and it is redelivered. ``"term"``:
            the call fails, and the message is terminated. ``"mark"``: it is delivered, and
            `violation_of` returns the error.
        unlisted: Whether messages whose subject has no contract may be published: ``"allow"`` or
            ``"refuse"``.
        on_problem: Called with each `Problem` of the bucket, in the thread that detects it.
        timeout: Seconds to connect and to read the bucket.
        name: The plugin's name in errors and `$JETSYNC_BLOCK_PLUGINS`.

    Raises:
        DefinitionError: A contract of the directory is invalid, or two have the same pattern.
        InvalidSubjectError: A pattern is invalid.
        ConfigurationError: There is nothing to check, or a library is missing.
        BucketNotFoundError, TransportError, RequestTimeoutError: The bucket cannot be read.
    """

    def __init__(
        self,
        contracts: Mapping[str, Contract] | None = None,
        *,
        directory: str | os.PathLike[str] | None = None,
        bucket: jetsync.KeyValue | str | None = None,
        options: jetsync.ConnectOptions | None = None,
        models: Mapping[str, Any] | None = None,
        publish: bool = True,
        receive: Receive = "off",
        unlisted: Unlisted = "allow",
        on_problem: Callable[[Problem], None] | None = None,
        timeout: float = TIMEOUT,
        name: str = "schema",
    ) -> None:
        _check_options(publish=publish, receive=receive, unlisted=unlisted)
        if contracts is None and directory is None and bucket is None:
            raise jetsync.ConfigurationError(
                "there is nothing to check: give contracts, a directory or a bucket"
            )
        self.name = name
        self._receive = receive
        self._refuses_unlisted = unlisted == "refuse"
        self._models = dict(models or {})
        self._directory = None if directory is None else Path(directory)
        self._own = _definitions(contracts or {})
        self._lock = jetsync.interrupt_safe_lock()
        """Guards the counts and the sources of the table. Never held while a hook waits."""

        self._counts = {"refused": 0, "raised": 0, "terminated": 0, "marked": 0}
        self._files: list[Definition] = []
        self._kept: dict[str, Loaded] = {}
        self._guard: Definition | None = None
        self._source: BucketSource | None = None
        self._client: jetsync.Client | None = None
        self._table = Table([])
        # pluggy ignores attributes that are not functions. Without the hook, the client takes its
        # shorter path.
        if not publish:
            vars(self)["jetsync_prepare_message"] = None
        if receive == "off":
            vars(self)["jetsync_message_received"] = None
        self.reload()
        if bucket is not None:
            self._follow(bucket, options, on_problem, timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return (
            f"<Schemas {self.name} contracts={len(self._table.names)} problems={len(self.problems)}"
            f" receive={self._receive}>"
        )

    def __getstate__(self) -> dict[str, Any]:
        if self._source is not None:
            raise TypeError("a Schemas with a bucket cannot be pickled")
        return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._lock = jetsync.interrupt_safe_lock()

    # Sources of contracts.

    def reload(self) -> None:
        """
        Read the directory again. If a definition is invalid, the contracts do not change.

        Raises:
            DefinitionError: A definition is invalid.
        """
        found = [] if self._directory is None else read_directory(self._directory, self._models)
        with self._lock:
            table = Table([*self._own, *found])
            if table.conflicts:
                _, pattern, other = table.conflicts[0]
                raise jetsync.ConfigurationError(f"{pattern!r} already has a contract: {other!r}")
            self._files = found
            conflicts = self._rebuild()
        if self._source is not None:
            self._source.note_conflicts(conflicts)

    def close(self) -> None:
        """
        Stop watching the bucket, and close the connection that was opened for it.

        The known contracts stay in effect. Thread-safe. Repeated calls have no effect.
        """
        if self._source is not None:
            self._source.stop()
        if self._client is not None:
            self._client.close()

    @property
    def problems(self) -> tuple[Problem, ...]:
        """
        The current problems: invalid definitions in the bucket, or a bucket that cannot be read.
        """
        return () if self._source is None else self._source.problems

    @property
    def contracts(self) -> dict[str, str]:
        """
        The names of the current contracts, by pattern.
        """
        return dict(self._table.names)

    @property
    def revision(self) -> int:
        """
        The last revision of the bucket that has taken effect, or 0.
        """
        return 0 if self._source is None else self._source.revision

    def wait_revision(self, revision: int, timeout: float = TIMEOUT) -> bool:
        """
        Wait until a revision of the bucket has taken effect. Return False after the timeout.

        Args:
            revision: The revision, as ``put`` on the bucket returns it.
            timeout: Seconds to wait.
        """
        return self._source is not None and self._source.wait_revision(revision, timeout)

    def statistics(self) -> SchemaStatistics:
        """
        Return the current counts.
        """
        with self._lock:
            return SchemaStatistics(**self._counts)

    # Use of contracts.

    def check(self, subject: str, data: Payload, headers: HeadersInput | None = None) -> None:
        """
        Check a message without publishing it.

        Raises:
            ViolationError: The message violates its contract, or it has none and ``unlisted`` is
                ``"refuse"``.
        """
        self._checked(jetsync.OutboundMessage(subject, data, headers))

    def encode(self, subject: str, document: Any) -> jetsync.OutboundMessage:
        """
        Convert a document to a message, with the contract of the subject.

        Raises:
            ViolationError: The document violates the contract.
            InvalidArgumentError: The subject has no contract.
        """
        bound = self._contract_of(subject)
        try:
            data = bound.contract.dump(document)
        except MismatchError as error:
            raise ViolationError(subject, bound.name, error.violations) from error.__cause__
        return jetsync.OutboundMessage(subject, data, bound.label and jetsync.Headers(bound.label))

    def decode(self, message: jetsync.Message | jetsync.StoredMessage) -> Any:
        """
        Convert a message to a document.

        For JSON Schema the document is the result of `json.loads`, for pydantic an object of the
        model, and for Avro a document of the newest schema.

        Raises:
            ViolationError: The message violates its contract.
            InvalidArgumentError: The subject has no contract.
        """
        bound = self._contract_of(message.subject)
        return _load(bound, message.subject, message.data, _id_in(bound, message.headers))

    # The hooks.

    @jetsync.hookimpl(trylast=True)
    def jetsync_prepare_message(
        self, message: jetsync.OutboundMessage
    ) -> jetsync.OutboundMessage | None:
        """
        Refuse a message that violates its contract, after all other plugins have run.
        """
        try:
            return self._checked(message)
        except ViolationError:
            self._count("refused")
            raise

    @jetsync.hookimpl(tryfirst=True)
    def jetsync_message_received(
        self, message: jetsync.Message | jetsync.StoredMessage
    ) -> jetsync.Message | jetsync.StoredMessage | None:
        """
        Check a received message before other plugins change it.
        """
        if self._receive == "mark" and is_forged(message.headers):
            message = marked(message, None)
        subject = message.subject
        bound = self._table.find(subject)
        if bound is None or bound.published_only or is_empty_on_purpose(message):
            return message
        try:
            _load(bound, subject, message.data, _id_in(bound, message.headers))
        except ViolationError as error:
            return self._received_broken(message, error)
        return message

    # Implementation.

    def _follow(
        self,
        bucket: jetsync.KeyValue | str,
        options: jetsync.ConnectOptions | None,
        on_problem: Callable[[Problem], None] | None,
        timeout: float,
    ) -> None:
        """Read the bucket and watch it."""
        try:
            if isinstance(bucket, str):
                chosen = jetsync.ConnectOptions.from_env() if options is None else options
                # Without the plugins of the program, because this is one of them.
                self._client = jetsync.connect(options=attrs.evolve(chosen, plugins=()))
                bucket = self._client.jetstream().key_value(bucket, timeout=timeout)
            around = Surroundings(self._models)
            self._guard = Definition(
                f"definitions in {bucket.bucket}",
                (f"$KV.{bucket.bucket}.>",),
                DefinitionContract(around),
            )
            self._source = BucketSource(bucket, around, self._changed, on_problem)
            self._source.start(timeout)
        except BaseException:
            self.close()
            raise

    def _changed(self, kept: dict[str, Loaded]) -> list[Problem]:
        """Apply the bucket's definitions. Return those that conflict with another contract."""
        with self._lock:
            self._kept = kept
            return self._rebuild()

    def _rebuild(self) -> list[Problem]:
        """Rebuild the table, and return conflicts of the bucket. The lock is held."""
        # In the order of the keys, so that all clients choose the same of two.
        kept = [self._kept[key] for key in sorted(self._kept)]
        definitions = [each.definition for each in kept]
        self._table = Table([*self._own, *self._files, *definitions], self._guard)
        return [
            each.problem(f"{pattern!r} already has a contract: {other!r}")
            for definition, pattern, other in self._table.conflicts
            for each in kept
            if each.definition is definition
        ]

    def _contract_of(self, subject: str) -> Bound:
        bound = self._table.find(subject)
        if bound is None:
            raise jetsync.InvalidArgumentError(
                f"subject {subject!r} has no contract", argument="subject"
            )
        return bound

    def _checked(self, message: jetsync.OutboundMessage) -> jetsync.OutboundMessage | None:
        """Return the message with the header that it needs, or None if it needs no change."""
        subject, headers = message.subject, message.headers
        if not is_message(subject, headers):
            # The client rejects it with its own error.
            return None
        data = bytes_of(message.data)
        if data is None or (not data and headers and is_tombstone(headers)):
            return None
        label = self._label(subject, data, headers)
        if headers:
            target = header_of(headers, SCHEDULE_TARGET)
            source = header_of(headers, SCHEDULE_SOURCE) or ""
            if target is not None and (data or not source.strip()):
                # The server publishes the payload to the target later, without plugins. With a
                # source, it does so while the source has no message.
                label = self._label(target, data, headers) or label
        if label is None:
            return None
        if not headers:
            # Headers are never changed in place, so one object serves all messages.
            return attrs.evolve(message, headers=label)
        return attrs.evolve(
            message, headers=jetsync.Headers([*jetsync.Headers(headers).items(), *label.items()])
        )

    def _label(
        self, subject: str, data: bytes | bytearray, headers: HeadersInput | None
    ) -> Mapping[str, str] | None:
        """Check a payload, and return the header that its message lacks."""
        bound = self._table.find(subject)
        if bound is None:
            if self._refuses_unlisted:
                violation = Violation("$", "has no contract, and needs one to be published")
                raise ViolationError(subject, None, [violation])
            return None
        schema_id = _id_in(bound, headers)
        _load(bound, subject, data, schema_id)
        return bound.label if schema_id is None else None

    def _received_broken(
        self, message: jetsync.Message | jetsync.StoredMessage, error: ViolationError
    ) -> jetsync.Message | jetsync.StoredMessage:
        if self._receive == "mark":
            self._count("marked")
            return marked(message, error)
        if self._receive == "term" and isinstance(message, jetsync.Message):
            try:
                message.term(f"contract {error.contract}: {error.violations[0]}")
            except jetsync.JetSyncError as failure:
                # Without a connection, the message is redelivered and checked again.
                error.__context__ = failure
            else:
                self._count("terminated")
                raise error
        self._count("raised")
        raise error

    def _count(self, what: str) -> None:
        with self._lock:
            self._counts[what] += 1


def _check_options(*, publish: bool, receive: object, unlisted: object) -> None:
    for argument, value, known in (
        ("receive", receive, ("off", "raise", "term", "mark")),
        ("unlisted", unlisted, ("allow", "refuse")),
    ):
        if value not in known:
            choice = ", ".join(map(repr, known))
            raise jetsync.InvalidArgumentError(
                f"{argument} must be one of {choice}, not {value!r}", argument=argument
            )
    if not publish and receive == "off":
        raise jetsync.ConfigurationError(
            "there is nothing to check: publish is False and receive is 'off'"
        )


def _definitions(contracts: Mapping[str, Contract]) -> list[Definition]:
    found = []
    for pattern, contract in contracts.items():
        if not isinstance(contract, Contract):
            raise jetsync.InvalidTypeError(
                f"the contract of {pattern!r} is a {type(contract).__name__}: use JsonSchema,"
                " PydanticModel or AvroSchema",
                argument="contracts",
            )
        found.append(Definition(pattern, (check_pattern(pattern),), contract))
    return found


def _load(bound: Bound, subject: str, data: bytes | bytearray, schema_id: str | None) -> Any:
    try:
        return bound.contract.load(data, schema_id)
    except MismatchError as error:
        raise ViolationError(subject, bound.name, error.violations) from error.__cause__


def _id_in(bound: Bound, headers: HeadersInput | None) -> str | None:
    return header_of(headers, SCHEMA_ID) if bound.label is not None and headers else None
