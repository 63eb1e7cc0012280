"""
Errors of the plugin, and the advice that their messages end with.

Spark passes only the text of an error from a task or planner to the user, not its class or cause.
Each message therefore names the stream, the subject and the server's error code, and says what to
do.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, Final

import jetsync

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "BehindError",
    "JetStreamSparkError",
    "OptionError",
    "RowError",
    "explain",
    "java_missing",
    "renamed",
    "require_pandas",
    "require_pyarrow",
]


class JetStreamSparkError(jetsync.JetSyncError):
    """
    Reading or writing failed. The message says what failed, where and what to do.
    """

    def __init__(
        self,
        what: str,
        *,
        stream: str | None = None,
        bucket: str | None = None,
        subject: str | None = None,
        err_code: int | None = None,
        cure: str | None = None,
    ) -> None:
        places = [
            f"{name} {value}"
            for name, value in (
                ("stream", stream if bucket is None else None),
                ("bucket", bucket),
                ("subject", subject),
                ("err_code", err_code),
            )
            if value is not None
        ]
        text = what.rstrip(". ") + (f" ({', '.join(places)})" if places else "")
        super().__init__(f"{text}: {cure}" if cure else text)
        self.what = what
        self.stream = stream
        self.subject = subject
        self.err_code = err_code
        self.cure = cure

    def rename(self, names: Mapping[str, str]) -> None:
        """
        Replace whole words of the text.

        Args:
            names: The new word for each old one.
        """
        self.args = (renamed(str(self), names),)
        self.cure = self.cure and renamed(self.cure, names)


class BehindError(JetStreamSparkError):
    """
    A replica lags behind the leader. The read is retried.
    """


class OptionError(JetStreamSparkError, ValueError):
    """
    An option or a column is invalid. Nothing was read or written.
    """

    def __init__(self, what: str, *, option: str | None = None, cure: str | None = None) -> None:
        super().__init__(what, cure=cure)
        self.option = option


class RowError(JetStreamSparkError, ValueError):
    """
    A row cannot be converted to a message.
    """

    def __init__(
        self,
        what: str,
        *,
        partition: int,
        row: int,
        column: str | None = None,
        subject: str | None = None,
        cure: str | None = None,
    ) -> None:
        super().__init__(f"row {row} of partition {partition}: {what}", subject=subject, cure=cure)
        self.reason = what
        self.partition = partition
        self.row = row
        self.column = column


def renamed(text: str, names: Mapping[str, str]) -> str:
    """
    Return a text with other names of options. Parts of paths and subjects stay as they are.
    """
    return re.sub(
        rf"(?<![\w./\\-])({'|'.join(names)})(?![\w/\\-]|\.\w)",
        lambda found: names[found[0]],
        text,
    )


_CURES: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (jetsync.BucketNotFoundError, "create the bucket, or correct the option bucket"),
    (jetsync.StreamNotFoundError, "create the stream, or correct the option stream"),
    (
        jetsync.JetStreamNotEnabledError,
        "enable JetStream on the server and for the account, or give another server or user",
    ),
    (
        jetsync.AuthenticationError,
        "give a valid credsFile, userEnv and passwordEnv, tokenEnv or nkeySeedFile on each node",
    ),
    (
        jetsync.PermissionDeniedError,
        "allow the user of this connection to use that subject, and the inbox prefix",
    ),
    (
        jetsync.ConnectError,
        "check that the driver and every executor can reach the servers",
    ),
    (
        jetsync.AtomicPublishDisabledError,
        "set allow_atomic on the stream, or use mode atleastonce",
    ),
    (
        jetsync.FastPublishDisabledError,
        "set allow_batched on the stream, or leave out fastIngest",
    ),
    (jetsync.DirectNotSupportedError, "set allow_direct on the stream"),
    (
        jetsync.MessageTtlDisabledError,
        "set allow_msg_ttl on the stream, or drop the column ttl",
    ),
    (jetsync.InvalidTtlError, "give a time-to-live of at least one second, or 'never'"),
    (
        jetsync.MaxPayloadError,
        "drop or split rows of that size, or raise max_payload of the server",
    ),
    (
        jetsync.MessageTooLargeError,
        "drop or split rows of that size, or raise max_msg_size of the stream",
    ),
    (
        jetsync.DuplicateMessageIdError,
        "drop rows with equal msg_id, or use mode atleastonce, which stores an id once",
    ),
    (jetsync.StreamFullError, "raise the limits of the stream, or let it discard old messages"),
    (
        jetsync.InsufficientResourcesError,
        "raise the storage limits of the account or the server",
    ),
    (jetsync.StreamSealedError, "write to another stream: a sealed one takes no messages"),
    (
        jetsync.WrongLastSequenceError,
        "read the subject again and write with the sequence that it has now",
    ),
    (
        jetsync.NoStreamResponseError,
        "add the subject to the stream, or check that the stream has a leader",
    ),
    (
        jetsync.NotSupportedError,
        "use a newer nats-server, or a mode that this one supports",
    ),
    (
        jetsync.PublishOutcomeUnknownError,
        "let Spark run the task again; only mode exactlyonce then stores no row twice",
    ),
    (
        jetsync.DisconnectedError,
        "check that the servers are up, and raise retryTimeoutMs to wait longer for them",
    ),
    (
        TimeoutError,
        "check that the servers are up, and raise requestTimeoutMs or retryTimeoutMs",
    ),
)


def explain(
    error: BaseException,
    doing: str,
    *,
    stream: str | None = None,
    subject: str | None = None,
    cure: str | None = None,
) -> JetStreamSparkError:
    """
    Convert an error of jetsync to the error that Spark users see.

    Args:
        error: The error of jetsync.
        doing: The operation that failed, such as ``writing failed``.
        stream: The stream of the operation.
        subject: The subject, if the error does not name it.
        cure: What to do. None selects the advice for the class of the error.
    """
    if isinstance(error, JetStreamSparkError):
        return error
    if cure is None:
        cure = next((text for kind, text in _CURES if isinstance(error, kind)), None)
    if subject is None:
        subject = getattr(error, "subject", None)
    said = str(error) or type(error).__name__
    code = getattr(error, "err_code", None)
    made = JetStreamSparkError(
        f"{doing} on {socket.gethostname()}: {said}",
        # Omit what the text already names.
        stream=None if _is_said(stream, said) else stream,
        subject=None if _is_said(subject, said) else subject,
        err_code=None if _is_said(code, said) else code,
        cure=cure,
    )
    made.stream, made.subject, made.err_code = stream, subject, code
    return made


def _is_said(word: object, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(str(word))}(?!\w)", text) is not None


def require_pyarrow() -> None:
    """
    Raise unless pyarrow is installed.

    Without it Spark's own text is "Python worker exited unexpectedly".
    """
    try:
        import pyarrow  # noqa: F401, ICN001
    except ImportError as error:
        raise OptionError(
            f"pyarrow cannot be imported on {socket.gethostname()} ({error})",
            cure="install it on the driver and on every executor: python -m pip install pyarrow",
        ) from None


def require_pandas() -> None:
    """
    Raise unless pandas is installed, which PySpark needs for ``mapInArrow``.
    """
    try:
        import pandas  # noqa: F401, ICN001
    except ImportError as error:
        raise OptionError(
            f"pandas cannot be imported on {socket.gethostname()} ({error}), and PySpark "
            "needs it for mapInArrow",
            cure="install it on the driver: python -m pip install pandas; or use JetStreamSink or "
            'format("jetstream"), which do without it',
        ) from None


def java_missing() -> str | None:
    """
    Return what to do if Java is missing, or None if it is installed.
    """
    home = os.environ.get("JAVA_HOME")
    if home:
        if (Path(home) / "bin" / "java").exists():
            return None
        return f"JAVA_HOME is {home}, which has no bin/java: Spark needs Java 17 or newer"
    if shutil.which("java") is None:
        return (
            "Spark needs Java 17 or newer, which is not installed: install it (Debian, Ubuntu: "
            "apt install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME"
        )
    return None
