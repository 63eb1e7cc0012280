"""
Codecs, which convert the keys and values of a bucket to those that its stream stores (ADR-54).

:class:`Codecs` is the only place that calls them. Every method of a bucket takes the keys that your
code uses, converts them here once, and shows the stored ones converted back.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar

import attrs

from jetsync._base.fields import wrong_type
from jetsync._proto.keys import check_key, check_pattern
from jetsync.errors import (
    DecodeError,
    InvalidArgumentError,
    InvalidKeyError,
    InvalidNameError,
    JetSyncError,
)
from jetsync.values.json_payloads import parse_json
from jetsync.values.outbound import payload_bytes

if TYPE_CHECKING:
    from collections.abc import Iterable

    from jetsync.values.outbound import Payload

__all__ = ["Base64Codec", "ChainCodec", "JsonCodec", "KeyCodec", "PathCodec", "ValueCodec"]

DecodedT_co = TypeVar("DecodedT_co", covariant=True)

# Padding is not written, but read, because the text of ADR-54 shows it.
_BASE64: Final = re.compile(rb"[A-Za-z0-9_-]*={0,2}")

# What stands for the leading slash of a path, because a key cannot begin with a dot.
ROOT: Final = "_root_"


class KeyCodec(Protocol):
    """
    Converts keys. Pass it to ``KeyValue.with_codec(keys=...)``.

    Add a method ``encode_filter(pattern)`` if patterns can be converted, too. It keeps the parts
    ``*`` and ``>``. Raise ``InvalidArgumentError`` to give the reason why a key is refused. Of
    other errors, jetsync shows only the class, because their texts may quote secrets.
    """

    def encode_key(self, key: str) -> str:
        """Encode a key. Servers have to accept the result as a key."""

    def decode_key(self, key: str) -> str:
        """Decode a stored key."""


class ValueCodec(Protocol[DecodedT_co]):
    """
    Converts values. Pass it to ``KeyValue.with_codec(values=...)``.

    It gets the key as your code uses it, for example to bind an encrypted value to its key. Errors
    are treated as those of a :class:`KeyCodec`.
    """

    def encode(self, key: str, value: Any) -> Payload:
        """Encode a value as bytes or text."""

    def decode(self, key: str, value: bytes) -> DecodedT_co:
        """Decode a stored value. Not called for markers, which have none."""


@attrs.frozen
class Base64Codec:
    """
    Store keys and values as unpadded URL-safe base64, as orbit.go and orbit.net do.

    Keys may have any characters. Dots still separate their parts, and each part is encoded by
    itself, so patterns work. A part must not be empty. Values are bytes.
    """

    def encode_key(self, key: str) -> str:
        """Return the key with each part encoded."""
        return ".".join(map(_encode_part, key.split(".")))

    def encode_filter(self, pattern: str) -> str:
        """Return the pattern with each part encoded, except ``*`` and ``>``."""
        parts = pattern.split(".")
        return ".".join([part if part in {"*", ">"} else _encode_part(part) for part in parts])

    def decode_key(self, key: str) -> str:
        """Decode a stored key."""
        try:
            return ".".join([_decode(part.encode()).decode() for part in key.split(".")])
        except UnicodeError:
            raise InvalidKeyError(key, "it is not base64 of UTF-8") from None

    def encode(self, key: str, value: Payload) -> bytes:  # noqa: ARG002
        """Return the value encoded; text is encoded as UTF-8."""
        return base64.urlsafe_b64encode(payload_bytes(value)).rstrip(b"=")

    def decode(self, key: str, value: bytes) -> bytes:  # noqa: ARG002
        """Return the value of stored base64, with or without padding."""
        return _decode(value)


def _encode_part(part: str) -> str:
    try:
        return base64.urlsafe_b64encode(part.encode()).decode().rstrip("=")
    except UnicodeEncodeError:
        raise InvalidKeyError(part, "it cannot be encoded as UTF-8") from None


def _decode(data: bytes) -> bytes:
    # Python's decoder skips characters that are not base64.
    if _BASE64.fullmatch(data) is not None:
        digits = data.rstrip(b"=")
        try:
            return base64.urlsafe_b64decode(digits + b"=" * (-len(digits) % 4))
        except ValueError:
            pass
    raise InvalidArgumentError("it is not URL-safe base64")


@attrs.frozen
class PathCodec:
    """
    Use keys such as ``/users/123``, and store ``_root_.users.123``, as orbit.go does.

    Slashes become dots, so that patterns and permissions see the parts. A path must not contain a
    dot, end with a slash or have two slashes in a row, because decoding would return another one.
    The other characters are those of all keys.
    """

    def encode_key(self, key: str) -> str:
        """Replace the slashes of a path with dots."""
        if "." in key:
            raise InvalidKeyError(key, "a path cannot contain a dot, which stands for a slash")
        if key == "/":
            return ROOT
        if "//" in key or key.endswith("/"):
            raise InvalidKeyError(key, "a path cannot end with a slash, or have two in a row")
        return (ROOT + key if key.startswith("/") else key).replace("/", ".")

    def encode_filter(self, pattern: str) -> str:
        """Replace the slashes of a pattern with dots."""
        return self.encode_key(pattern)

    def decode_key(self, key: str) -> str:
        """Decode a stored key as a path."""
        if key == ROOT:
            return "/"
        return key.removeprefix(ROOT if key.startswith(f"{ROOT}.") else "").replace(".", "/")


@attrs.frozen
class JsonCodec:
    """
    Store values as JSON, and return them as ``json.loads`` does.

    Use it for values that other clients read and write as JSON. Tuples come back as lists, and the
    keys of a mapping as text. ``NaN`` and infinite numbers are refused, because they are not JSON.
    """

    def encode(self, key: str, value: Any) -> bytes:  # noqa: ARG002
        """Return the value as a JSON document in UTF-8, without spaces."""
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            return text.encode()
        except UnicodeEncodeError:
            reason = "it cannot be encoded as UTF-8"
        except (TypeError, ValueError, RecursionError) as error:
            reason = str(error)
        # Not chained, because some of these errors keep the value.
        raise InvalidArgumentError(f"it cannot be written as JSON: {reason}", argument="value")

    def decode(self, key: str, value: bytes) -> Any:  # noqa: ARG002
        """Return the value of a JSON document."""
        return parse_json(value, InvalidArgumentError)


class ChainCodec:
    """
    Apply several codecs: to encode from first to last, to decode from last to first.

    ``ChainCodec(PathCodec(), Base64Codec())`` is for keys, and ``ChainCodec(JsonCodec(), zipped)``
    for values. Patterns work if all codecs support them. Errors say which codec failed, from 0.
    """

    __slots__ = ("codecs",)

    codecs: tuple[Any, ...]
    """The codecs, from first to last."""

    def __init__(self, *codecs: Any) -> None:
        if not codecs:
            raise InvalidArgumentError("at least one codec is needed", argument="codecs")
        self.codecs = codecs

    def __repr__(self) -> str:
        return f"ChainCodec({', '.join(map(repr, self.codecs))})"

    def encode_key(self, key: str) -> str:
        """Encode a key with all codecs, from first to last."""
        stored: str = self._run(enumerate(self.codecs), "encode_key", key)
        return stored

    def encode_filter(self, pattern: str) -> str:
        """Encode a pattern with all codecs, from first to last."""
        stored: str = self._run(enumerate(self.codecs), "encode_filter", pattern)
        return stored

    def decode_key(self, key: str) -> str:
        """Decode a stored key."""
        shown: str = self._run(self._backwards(), "decode_key", key)
        return shown

    def encode(self, key: str, value: Any) -> Any:
        """Encode a value with all codecs, from first to last."""
        return self._run(enumerate(self.codecs), "encode", value, key)

    def decode(self, key: str, value: bytes) -> Any:
        """Decode a stored value."""
        return self._run(self._backwards(), "decode", value, key)

    def _backwards(self) -> Iterable[tuple[int, Any]]:
        return [*enumerate(self.codecs)][::-1]

    def _run(self, codecs: Iterable[tuple[int, Any]], method: str, data: Any, *key: str) -> Any:
        for index, codec in codecs:
            try:
                data = _method(codec, method)(*key, data)
            except Exception as error:
                name = type(codec).__name__
                raise InvalidArgumentError(
                    f"codec {index}, {name}: {reason_of(error)}", argument="codecs"
                ) from error
        return data


def _method(codec: object, name: str) -> Callable[..., Any]:
    """
    Return a method of a codec.

    Raises:
        InvalidArgumentError: It has no such method. Only `encode_filter` is optional.
    """
    found: Callable[..., Any] | None = getattr(codec, name, None)
    if found is None:
        raise InvalidArgumentError(
            f"{type(codec).__name__} has no {name}, so it takes only keys without '*' and '>'"
        )
    return found


def reason_of(error: Exception) -> str:
    """
    Return why a codec failed, for the text of another error.

    Texts of other libraries may quote the data, so only the class of their errors is named.
    """
    if isinstance(error, (DecodeError, InvalidNameError)):
        return error.reason
    return str(error) if isinstance(error, JetSyncError) else f"{type(error).__name__} in its codec"


def check_codec(argument: str, codec: object, *methods: str) -> None:
    """
    Check that an argument is a codec with these methods.

    Raises:
        InvalidTypeError: It is something else, for example a class.
    """
    if isinstance(codec, ChainCodec):
        for each in codec.codecs:
            check_codec(argument, each, *methods)
    elif isinstance(codec, type) or not all(callable(getattr(codec, m, None)) for m in methods):
        wanted = f"an object with {' and '.join(methods)}"
        if isinstance(codec, type):
            wanted += f", such as {codec.__name__}()"
        raise wrong_type(argument, wanted, codec, argument)


@attrs.frozen
class Codecs:
    """
    The codecs of one handle of a bucket. Thread-safe if the codecs are.
    """

    keys: KeyCodec | None = None
    values: ValueCodec[Any] | None = None
    on_undecodable: Callable[[DecodeError], object] | None = None
    """Called with the error of each entry that a read of many leaves out. None raises it."""

    def stored_key(self, key: str) -> str:
        """
        Return the stored key of *key*.

        Raises:
            InvalidTypeError, InvalidKeyError: The key is invalid, or decoding would not return it.
        """
        codec = self.keys
        if codec is None:
            return check_key(key)
        if not isinstance(key, str):
            raise wrong_type("a key", "text", key, "key")
        stored = self._encoded("encode_key", check_key, key)
        try:
            returned = codec.decode_key(stored)
        except Exception as error:
            reason = f"its codec stores {stored!r} and cannot read that: {reason_of(error)}"
            raise InvalidKeyError(key, reason) from error
        if returned != key:
            raise InvalidKeyError(key, f"its codec would return it as {returned!r}")
        return stored

    def stored_pattern(self, pattern: str) -> str:
        """
        Return the stored form of a key or a pattern.

        Raises:
            InvalidTypeError, InvalidKeyError: It is invalid, or the codec supports no patterns.
        """
        if self.keys is None:
            return check_pattern(pattern)
        if not isinstance(pattern, str):
            raise wrong_type("a pattern of keys", "text", pattern, "keys")
        if pattern == ">":
            return pattern
        if "*" not in pattern and ">" not in pattern:
            return self.stored_key(pattern)
        return self._encoded("encode_filter", check_pattern, pattern)

    def _encoded(self, method: str, check: Callable[[str], str], given: str) -> str:
        """Return what the codec makes of a key or pattern, if servers accept it."""
        try:
            stored = _method(self.keys, method)(given)
        except Exception as error:
            raise InvalidKeyError(given, reason_of(error)) from error
        try:
            return check(stored)
        except InvalidKeyError as error:
            reason = f"its codec makes {stored!r} of it: {error.reason}"
            raise InvalidKeyError(given, reason) from error

    def stored_value(self, key: str, value: Any) -> Any:
        """
        Return the payload of a value.

        Raises:
            InvalidArgumentError: The codec cannot encode it.
        """
        if self.values is None:
            return value
        try:
            return self.values.encode(key, value)
        except Exception as error:
            raise InvalidArgumentError(
                f"cannot encode the value of key {key!r}: {reason_of(error)}", argument="value"
            ) from error

    def shown_key(self, stored: str) -> str:
        """
        Return the key of a stored one.

        Raises:
            Exception: The codec cannot decode it, or would store the key under another one, so that
                no method would find it.
        """
        codec = self.keys
        if codec is None:
            return stored
        key = codec.decode_key(stored)
        again = codec.encode_key(key)
        if again != stored:
            raise InvalidKeyError(stored, f"its codec reads {key!r}, and stores that as {again!r}")
        return key
