"""
Exchanges, queues and bindings, in a bucket that all processes share and that survives restarts.

Queues that live only as long as a process uses them, such as those for replies, are not stored.
"""

from __future__ import annotations

import functools
import time
from typing import TYPE_CHECKING, Any, Final

import attrs
from kombu.utils.json import dumps, loads

import jetsync
from jetsync_queue import token, untoken

if TYPE_CHECKING:
    from collections.abc import Iterator

    from jetsync_celery.settings import Settings

RECHECK: Final = 1.0
"""Seconds after which an exchange without a queue for a message is looked up in the bucket again,
in case the watch has not delivered a new binding yet."""

EMPTY: Final = "-"
"""Stands for an empty name in a key. No token of a name is one hyphen."""


@attrs.frozen
class Binding:
    """
    A queue that gets the messages of an exchange whose routing key matches.
    """

    exchange: str
    queue: str
    routing_key: str


def part(name: str) -> str:
    """
    Return a name of kombu as one token of a key or subject.
    """
    return token(name) if name else EMPTY


def name_of(text: str) -> str:
    """
    Return the name that `part` has encoded.
    """
    return "" if text == EMPTY else untoken(text)


@functools.lru_cache(maxsize=4096)
def is_topic_match(binding_key: str, routing_key: str) -> bool:
    """
    Return whether a topic binding takes a routing key: ``*`` is one word, ``#`` any number.
    """
    return _words_match(_words(binding_key), _words(routing_key))


def matches(kind: str, binding_key: str, routing_key: str) -> bool:
    """
    Return whether a binding of an exchange of this type takes a routing key.
    """
    if kind == "fanout":
        return True
    if kind == "topic":
        return is_topic_match(binding_key, routing_key)
    return binding_key == routing_key


class Topology:
    """
    The declared exchanges, queues and bindings.

    Reads come from memory, which a watch keeps current. Thread-safe.

    Args:
        js: The context of the connection.
        prefix: The prefix of the URL.
        settings: Storage and replicas of the bucket, if it must be created.
    """

    # Threads: any.
    # Locks: `_lock` protects the three dictionaries. No call of jetsync is made under it.

    def __init__(self, js: jetsync.JetStream, prefix: str, settings: Settings) -> None:
        self._bucket = _bucket(js, f"KOMBU_{prefix}", settings)
        self._lock = jetsync.interrupt_safe_lock()
        self._exchanges: dict[str, dict[str, Any]] = {}
        self._queues: dict[str, dict[str, Any]] = {}
        self._bindings: dict[str, set[Binding]] = {}
        self._checked: dict[tuple[str, str], float] = {}
        self._watch = self._bucket.watch()
        for entry in self._watch.initial():
            self._apply(entry.key, None if entry.is_deleted else bytes(entry.value))

    def close(self) -> None:
        """
        Stop watching.
        """
        self._watch.close()

    def exchange(self, name: str) -> dict[str, Any] | None:
        """
        Return the properties of an exchange, or None.
        """
        return self._get("x", self._exchanges, name)

    def queue(self, name: str) -> dict[str, Any] | None:
        """
        Return the arguments of a stored queue, or None.
        """
        return self._get("q", self._queues, name)

    def kind(self, exchange: str) -> str:
        """
        Return the type of an exchange. One that nobody has declared is direct.
        """
        found = self.exchange(exchange) if exchange else None
        return str(found["type"]) if found else "direct"

    def declare_exchange(self, name: str, properties: dict[str, Any]) -> dict[str, Any]:
        """
        Store an exchange unless it exists, and return its properties.
        """
        return self._create("x", self._exchanges, name, properties)

    def declare_queue(self, name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        """
        Store a queue unless it exists, and return its arguments.
        """
        return self._create("q", self._queues, name, arguments)

    def bind(self, binding: Binding) -> None:
        """
        Store a binding.
        """
        with self._lock:
            known = binding in self._bindings.get(binding.exchange, ())
        if not known:
            key = _key(binding)
            self._bucket.put(key, b"{}")
            self._apply(key, b"{}")

    def unbind(self, binding: Binding) -> None:
        """
        Remove a binding. Removing one that does not exist is no error.
        """
        key = _key(binding)
        self._bucket.delete(key)
        self._apply(key, None)

    def remove_queue(self, name: str) -> None:
        """
        Remove a queue and its bindings.
        """
        for binding in list(self.bindings()):
            if binding.queue == name:
                self.unbind(binding)
        self._remove("q", name)

    def remove_exchange(self, name: str) -> None:
        """
        Remove an exchange and its bindings.
        """
        for binding in list(self.bindings()):
            if binding.exchange == name:
                self.unbind(binding)
        self._remove("x", name)

    def bindings(self) -> Iterator[Binding]:
        """
        Return all bindings.
        """
        self._refresh()
        with self._lock:
            return iter([each for group in self._bindings.values() for each in group])

    def exchanges(self) -> list[str]:
        """
        Return the names of all exchanges.
        """
        self._refresh()
        with self._lock:
            return list(self._exchanges)

    def queues(self) -> list[str]:
        """
        Return the names of all stored queues.
        """
        self._refresh()
        with self._lock:
            return list(self._queues)

    def route(self, exchange: str, routing_key: str) -> list[str]:
        """
        Return the stored queues that get a message.
        """
        if not exchange:
            # Every queue is bound to the default exchange with its name.
            return [] if self.queue(routing_key) is None else [routing_key]
        found = self._matching(exchange, routing_key)
        if not found and self._may_ask(exchange, routing_key):
            for entry in self._bucket.get_many([f"b.{part(exchange)}.>"]).values():
                self._apply(entry.key, bytes(entry.value))
            found = self._matching(exchange, routing_key)
        return found

    def _matching(self, exchange: str, routing_key: str) -> list[str]:
        kind = self.kind(exchange)
        with self._lock:
            group = list(self._bindings.get(exchange, ()))
        return sorted({b.queue for b in group if matches(kind, b.routing_key, routing_key)})

    def _may_ask(self, exchange: str, routing_key: str) -> bool:
        now = time.monotonic()
        key = (exchange, routing_key)
        with self._lock:
            if now - self._checked.get(key, -RECHECK) < RECHECK:
                return False
            if len(self._checked) > 1000:
                self._checked.clear()
            self._checked[key] = now
        return True

    def _get(self, kind: str, known: dict[str, dict[str, Any]], name: str) -> dict[str, Any] | None:
        self._refresh()
        with self._lock:
            found = known.get(name)
        if found is None and self._may_ask(kind, name):
            entry = self._bucket.get(f"{kind}.{part(name)}", default=None)
            if entry is not None:
                self._apply(entry.key, bytes(entry.value))
                found = known.get(name)
        return found

    def _create(
        self, kind: str, known: dict[str, dict[str, Any]], name: str, value: dict[str, Any]
    ) -> dict[str, Any]:
        self._refresh()
        with self._lock:
            found = known.get(name)
        if found is not None:
            return found
        key = f"{kind}.{part(name)}"
        data = dumps(value).encode()
        try:
            self._bucket.create(key, data)
        except jetsync.KeyExistsError:
            entry = self._bucket.get(key, default=None)
            data = data if entry is None else bytes(entry.value)
        self._apply(key, data)
        return dict(loads(data.decode()))

    def _remove(self, kind: str, name: str) -> None:
        key = f"{kind}.{part(name)}"
        self._bucket.delete(key)
        self._apply(key, None)

    def _refresh(self) -> None:
        while (entry := self._watch.next(timeout=0)) is not None:
            self._apply(entry.key, None if entry.is_deleted else bytes(entry.value))

    def _apply(self, key: str, data: bytes | None) -> None:
        kind, *names = key.split(".")
        with self._lock:
            if kind == "b":
                binding = Binding(*map(name_of, names))
                group = self._bindings.setdefault(binding.exchange, set())
                (group.discard if data is None else group.add)(binding)
                return
            known = self._exchanges if kind == "x" else self._queues
            if data is None:
                known.pop(name_of(names[0]), None)
            else:
                known[name_of(names[0])] = dict(loads(data.decode()))


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split(".")) if text else ()


def _words_match(pattern: tuple[str, ...], words: tuple[str, ...]) -> bool:
    if not pattern:
        return not words
    first, rest = pattern[0], pattern[1:]
    if first == "#":
        return any(_words_match(rest, words[skip:]) for skip in range(len(words) + 1))
    return bool(words) and first in {"*", words[0]} and _words_match(rest, words[1:])


def _key(binding: Binding) -> str:
    return "b." + ".".join(map(part, attrs.astuple(binding)))


def _bucket(js: jetsync.JetStream, name: str, settings: Settings) -> jetsync.KeyValue[bytes]:
    try:
        return js.key_value(name)
    except jetsync.BucketNotFoundError:
        try:
            return js.create_key_value(
                name,
                description="Exchanges, queues and bindings of kombu",
                storage=settings.storage,
                num_replicas=settings.num_replicas,
            )
        except jetsync.StreamNameInUseError:
            # Another process has created it with other settings.
            return js.key_value(name)
