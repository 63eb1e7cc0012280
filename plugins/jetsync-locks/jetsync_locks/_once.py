"""
Jobs that run once per period, on one of many machines.
"""

from __future__ import annotations

import json
import secrets
import time
from typing import TYPE_CHECKING, Any, Final

import jetsync
from jetsync_locks._lease import Lease
from jetsync_locks._record import check_name
from jetsync_locks._settings import LEASE, check_function, check_handle, seconds_of, settings_of
from jetsync_locks._term import Term
from jetsync_locks._ticket import TRANSIENT, pauses

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync import KeyValue
    from jetsync.typing import Seconds
    from jetsync_locks._errors import LeaseLostError

__all__ = ["Once"]


LONGEST_KEEP: Final = 1e9
"""Seconds from which jetsync refuses a time-to-live, because it looks like nanoseconds."""


class Once:
    """
    Run a job once per period, on one of many machines.

    Each machine makes a Once of the same name and calls :meth:`run` with the same period, such as a
    date. One of them runs the job. The others wait until it has finished, and take over if the
    machine crashes or the job raises an error. So a job may be started more than once, but two
    machines do not run it at the same time, and it is not started again after it has finished.

    Args:
        bucket: A key-value bucket with ``history=1`` and a ``limit_marker_ttl``.
        name: The name of the job, as for :class:`Lock`.
        lease: As for :class:`Lock`.
        margin: As for :class:`Lock`.
        keep: Seconds for which the bucket remembers that a period is done. The default is no limit.
        on_lost: As for :class:`Lock`.

    Raises:
        jetsync.InvalidArgumentError, jetsync.InvalidTypeError: A value is invalid.
    """

    # Threads: any. There is no state.

    def __init__(
        self,
        bucket: KeyValue,
        name: str,
        *,
        lease: Seconds = LEASE,
        margin: Seconds | None = None,
        keep: Seconds | None = None,
        on_lost: Callable[[LeaseLostError], object] | None = None,
    ) -> None:
        check_handle(bucket)
        settings_of(lease, margin, on_lost)
        self._bucket = bucket
        self._name = check_name("name", name)
        self._keep = None if keep is None else seconds_of("keep", keep)
        if self._keep is not None and not 1 <= self._keep < LONGEST_KEEP:
            # Checked here, because the time-to-live is not sent before the job has run.
            raise jetsync.InvalidArgumentError(
                f"keep must be at least 1 second and at most 31 years, not {keep!r}",
                argument="keep",
            )
        self._options: dict[str, Any] = {"lease": lease, "margin": margin, "on_lost": on_lost}

    def __repr__(self) -> str:
        return f"<Once {self._name!r} in {self._bucket.bucket!r}>"

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._name

    def is_done(self, period: str) -> bool:
        """
        Ask the server whether the job has finished for a period.

        Raises:
            jetsync.InvalidArgumentError: The period is invalid.
        """
        return self._done_key(period) in self._bucket

    def run(
        self, period: str, job: Callable[[Term], object], *, timeout: Seconds | None = None
    ) -> bool:
        """
        Run the job unless it has finished for this period. Return whether this call ran it.

        The job should stop when ``term.lost`` is set. If it raises an error, the period is not
        done, and another machine or a later call runs it again.

        Args:
            period: Names the period, such as ``"2026-11-28"``: letters, digits and ``-_=/``.
            job: A function of the :class:`Term`.
            timeout: Seconds to wait while another machine runs the job. The default is no limit.

        Raises:
            AcquireTimeoutError: Another machine runs the job until the timeout.
            LeaseLostError: The job has run, but the lease was lost before the server recorded it.
                Another machine may run it again.
            Exception: What the job raises.
        """
        check_function("job", job)
        key = self._done_key(period)
        lease = Lease(
            self._bucket,
            f"{self._name}.{period}",
            kind="once",
            limit=1,
            timeout=timeout,
            **self._options,
        )
        # A replica may answer: it never says that a job has finished if it has not.
        if key in self._bucket:
            return False
        with lease:
            # The leader answers, so this cannot be older than the lease.
            if self._bucket.get(key, default=None, direct=False) is not None:
                return False
            term = Term(lease)
            job(term)
            self._record(key, lease)
        return True

    def _done_key(self, period: str) -> str:
        check_name("period", period, parts=False)
        return f"done.{self._name}.{period}"

    def _record(self, key: str, lease: Lease) -> None:
        """
        Record that the job has finished, with as many attempts as the lease has time for.
        """
        value = json.dumps({"fence": lease.fence, "nonce": secrets.token_hex(8)}).encode()
        pause = pauses()
        while True:
            lease.check()
            try:
                self._bucket.create(
                    key, value, ttl=self._keep, timeout=max(min(lease.remaining, 5.0), 0.001)
                )
            except jetsync.KeyExistsError:
                # An earlier attempt was stored, or the job has also run elsewhere.
                return
            except TRANSIENT:
                time.sleep(next(pause))
            else:
                return
