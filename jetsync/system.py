"""
The system account: what the servers say about themselves.

A user of the system account sends a request to one server by its id, or to all servers, which all
answer. Source: servers 2.10 to 2.15.
"""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING, Any, TypeVar

from jetsync import errors
from jetsync._base.fields import check_count, whole_number, wrong_type
from jetsync._base.log import get_logger
from jetsync._base.pickling import refuse_copy
from jetsync.consume.request_many import Answers
from jetsync.errors.answers import from_api_error
from jetsync.values.codec import from_wire
from jetsync.values.server_info import decode_json
from jetsync.values.subjects import validate_name
from jetsync.values.system_info import Connz, Healthz, Jsz, ServerReport, Statsz, Subsz, Varz

if TYPE_CHECKING:
    from jetsync._base.deadline import Deadline
    from jetsync._io.connection import Connection

__all__ = ["System"]

_R = TypeVar("_R", bound=ServerReport)

# What servers themselves use for a page of connections or subscriptions.
PAGE = 1024

_logger = get_logger("jetsync.system")


class System:
    """
    Requests of the system account; made by :meth:`Client.system`.

    Each method asks one server by its id, or all servers, and returns a list with one answer for
    each server that answered, by server name. The answers of all servers are complete if *servers*
    of :meth:`Client.system` have answered, or if no further one follows within *stall* seconds.
    Any number of threads may share this object, which needs no closing.

    The methods raise NotSystemAccountError if the user does not belong to the system account, and
    ServerNotFoundError if no server has the id. They raise RequestTimeoutError if no server answers
    in time, and ConnectionLostError if the connection is lost. If all servers that answer refuse
    the request, they raise ApiError. If only some refuse it, the list has the answers of the
    others, and each refusal is logged as ``report_refused`` with the name of the server.
    """

    __slots__ = ("_connection", "_is_member", "_servers", "_stall", "_timeout")

    __reduce__ = refuse_copy

    def __init__(
        self, connection: Connection, *, timeout: float, stall: float, servers: int | None
    ) -> None:
        self._connection = connection
        self._timeout = timeout
        self._stall = stall
        self._servers = servers
        # Whether the user is known to belong to the system account.
        self._is_member = False

    def __repr__(self) -> str:
        return f"<System {self._connection.state}>"

    def varz(self, server_id: str | None = None) -> list[Varz]:
        """
        Return general information: version, load, connections, traffic.

        Args:
            server_id: The server. By default, all servers.
        """
        return self._ask(Varz, "VARZ", server_id, {})

    def statsz(self, server_id: str | None = None) -> list[Statsz]:
        """
        Return the statistics that servers also publish regularly.

        Args:
            server_id: The server. By default, all servers.
        """
        return self._ask(Statsz, "STATSZ", server_id, {})

    def healthz(
        self,
        server_id: str | None = None,
        *,
        account: str | None = None,
        stream: str | None = None,
        consumer: str | None = None,
        js_enabled_only: bool = False,
        js_server_only: bool = False,
    ) -> list[Healthz]:
        """
        Return whether the servers are healthy.

        A server that is not healthy says so in its answer, which raises no error.

        Args:
            server_id: The server. By default, all servers.
            account: Check only this account.
            stream: Check only this stream of the account. A server without it is not healthy.
            consumer: Check only this consumer of the stream.
            js_enabled_only: Only check that JetStream is enabled.
            js_server_only: Do not check accounts, streams and consumers.
        """
        options = _texts(account=account, stream=stream, consumer=consumer)
        flags = {"js-enabled-only": js_enabled_only, "js-server-only": js_server_only}
        return self._ask(Healthz, "HEALTHZ", server_id, {**options, **_flags(**flags)})

    def connz(
        self,
        server_id: str | None = None,
        *,
        account: str | None = None,
        user: str | None = None,
        cid: int | None = None,
        subscriptions: bool = False,
        sort: str | None = None,
        offset: int = 0,
        limit: int = PAGE,
    ) -> list[Connz]:
        """
        Return the client connections.

        Args:
            server_id: The server. By default, all servers.
            account: Only connections of this account.
            user: Only connections of this user.
            cid: Only the connection with this number.
            subscriptions: Whether to list the subjects of their subscriptions.
            sort: The order: ``cid``, ``start``, ``bytes_to``, ``msgs_from``, ``idle`` and others.
            offset: How many connections to leave out, on each server.
            limit: How many connections to return, from each server.
        """
        options = {
            **_texts(acc=account, user=user, sort=sort),
            **_flags(auth=True, subscriptions=subscriptions),
            **_page(offset, limit),
        }
        if cid is not None:
            options["cid"] = whole_number("cid", cid)
        return self._ask(Connz, "CONNZ", server_id, options)

    def subsz(
        self,
        server_id: str | None = None,
        *,
        subscriptions: bool = False,
        account: str | None = None,
        test: str | None = None,
        offset: int = 0,
        limit: int = PAGE,
    ) -> list[Subsz]:
        """
        Return the number of subscriptions and, if asked for, a list of them.

        Args:
            server_id: The server. By default, all servers.
            subscriptions: Whether to list them.
            account: List only those of this account.
            test: List only those that match this subject.
            offset: How many to leave out of the list, on each server.
            limit: How many to list, from each server.
        """
        options = {
            **_texts(account=account, test=test),
            **_flags(subscriptions=subscriptions),
            **_page(offset, limit),
        }
        return self._ask(Subsz, "SUBSZ", server_id, options)

    def jsz(
        self,
        server_id: str | None = None,
        *,
        account: str | None = None,
        accounts: bool = False,
        streams: bool = False,
        consumers: bool = False,
        config: bool = False,
        leader_only: bool = False,
        offset: int = 0,
        limit: int = PAGE,
    ) -> list[Jsz]:
        """
        Return the use of JetStream and, if asked for, its accounts, streams and consumers.

        Args:
            server_id: The server. By default, all servers.
            account: List only this account.
            accounts: Whether to list accounts.
            streams: Whether to list their streams.
            consumers: Whether to list the consumers of their streams.
            config: Whether to add the configurations of streams and consumers.
            leader_only: Whether only the server answers that leads the cluster.
            offset: How many accounts to leave out of the list, on each server.
            limit: How many accounts to list, from each server.
        """
        flags = {"accounts": accounts, "streams": streams, "consumer": consumers}
        options = {
            **_texts(account=account),
            **_flags(**flags, config=config, leader_only=leader_only),
            **_page(offset, limit),
        }
        return self._ask(Jsz, "JSZ", server_id, options)

    def _ask(
        self, model: type[_R], endpoint: str, server_id: str | None, options: dict[str, Any]
    ) -> list[_R]:
        """Send a request and return the answers."""
        connection = self._connection
        connection.check()
        body = json.dumps(options).encode() if options else b""
        deadline = connection.deadline(self._timeout)
        if server_id is not None:
            subject = f"$SYS.REQ.SERVER.{validate_name('server', server_id)}.{endpoint}"
            try:
                frame = connection.exchange(subject.encode(), None, body, deadline)
            except errors.NoRespondersError:
                self._check_member(deadline)
                raise errors.ServerNotFoundError(server_id, subject) from None
            return [_read(model, frame[3])]
        if endpoint == "CONNZ":
            # The servers also answer this request of other accounts, but only with their own
            # connections.
            self._check_member(deadline)
        subject = f"$SYS.REQ.SERVER.PING.{endpoint}"
        found: list[_R] = []
        refusals: list[tuple[errors.JetSyncError, bytes]] = []
        with Answers(
            connection,
            subject,
            None,
            body,
            deadline,
            stall=self._stall,
            max_messages=self._servers,
        ) as answers:
            try:
                for answer in answers:
                    try:
                        found.append(_read(model, answer.data))
                    except (errors.ApiError, errors.ProtocolError) as error:
                        refusals.append((error, answer.data))
            except errors.NoRespondersError:
                raise errors.NotSystemAccountError(subject) from None
        if answers.reason == "disconnected":
            raise errors.ConnectionLostError(subject=subject)
        if answers.reason == "closed":
            raise errors.ConnectionClosedError(sent=True)
        if not found and refusals:
            raise refusals[0][0]
        if not found:
            raise errors.RequestTimeoutError(subject, deadline.total)
        for refusal, data in refusals:
            server = _sender(data)
            _logger.warning("report_refused", subject=subject, server=server, error=str(refusal))
        self._is_member = True
        return sorted(found, key=lambda each: (each.server.name, each.server.id))

    def _check_member(self, deadline: Deadline) -> None:
        """Raise NotSystemAccountError if the user does not belong to the system account."""
        if not self._is_member:
            subject = "$SYS.REQ.SERVER.PING.STATSZ"
            try:
                self._connection.exchange(subject.encode(), None, b"", deadline)
            except errors.NoRespondersError:
                raise errors.NotSystemAccountError(subject) from None
            self._is_member = True


def _read(model: type[_R], payload: bytes) -> _R:
    """Return the report in an answer; raises ApiError if the answer is an error."""
    answer = decode_json(payload)
    error = answer.get("error")
    if error is not None:
        raise from_api_error(error)
    # Only the answer to STATSZ has its data under another name.
    data = answer.get("data", answer.get("statsz"))
    if not isinstance(data, dict):
        raise errors.ProtocolError("a server's report has no data")
    return from_wire(model, {**data, "server": answer.get("server")})


def _sender(payload: bytes) -> str:
    """Return the name of the server that sent an answer; empty if the answer does not have it."""
    with contextlib.suppress(errors.ProtocolError):
        report = from_wire(ServerReport, {"server": decode_json(payload).get("server")})
        return report.server.name
    return ""


def _texts(**given: str | None) -> dict[str, Any]:
    """Return the options that are given; raises InvalidTypeError if one is not text."""
    named = {name: value for name, value in given.items() if value is not None}
    return _checked(str, "text", named)


def _flags(**given: bool) -> dict[str, Any]:
    """Return the options that are true; raises InvalidTypeError if one is no ``bool``."""
    return {name: True for name, value in _checked(bool, "True or False", given).items() if value}


def _checked(kind: type, words: str, given: dict[str, Any]) -> dict[str, Any]:
    for name, value in given.items():
        if not isinstance(value, kind):
            raise wrong_type(name, words, value)
    return given


def _page(offset: int, limit: int) -> dict[str, Any]:
    """Return the options of a page."""
    check_count("offset", offset, 0)
    check_count("limit", limit, 1)
    return {"offset": offset, "limit": limit}
