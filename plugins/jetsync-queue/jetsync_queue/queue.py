"""
A work queue: where programs put jobs, and where workers take them.
"""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, Final

import jetsync
from jetsync_queue import dead, names, records
from jetsync_queue.arguments import check_handler, check_storage, checked_headers, checked_name
from jetsync_queue.content import BYTES, Objects, encode, to_fields
from jetsync_queue.core import Core
from jetsync_queue.job import Job
from jetsync_queue.names import Names, check_prefix, checked_token, untoken
from jetsync_queue.opening import open_bucket, open_stream
from jetsync_queue.receiver import Receiver
from jetsync_queue.records import Records
from jetsync_queue.statistics import QueueStatistics, count_jobs
from jetsync_queue.times import LONGEST_TTL, count, seconds, start_at
from jetsync_queue.worker import Worker, WorkerOptions, WorkerStatistics

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterable, Mapping

    from typing_extensions import Self

    from jetsync_queue.dead import DeadJob
    from jetsync_queue.delivery import Delivery
    from jetsync_queue.records import JobStatus

__all__ = ["WorkQueue"]

MOST_THREADS: Final = 1000
LEAST_AHEAD: Final = 4
"""Jobs of a priority that a worker fetches ahead by default, or as many as it has threads."""


class WorkQueue:
    """
    A durable queue of jobs; made by :meth:`open`.

    Thread-safe. A queue holds no thread and no connection of its own, so there is nothing to close.
    """

    # Threads: any. Locks: none; nothing is changed.

    def __init__(self, core: Core) -> None:
        self._core = core

    def __repr__(self) -> str:
        return f"<WorkQueue {self._core.name!r} in stream {self._core.names.stream!r}>"

    @classmethod
    def open(
        cls,
        js: jetsync.JetStream,
        name: str,
        *,
        prefix: str = "app",
        priorities: int = 10,
        results: bool = True,
        result_ttl: float | dt.timedelta = 86_400.0,
        track: bool = False,
        ack_wait: float | dt.timedelta = 20.0,
        duplicate_window: float | dt.timedelta = 120.0,
        storage: str = "file",
        num_replicas: int = 1,
    ) -> Self:
        """
        Open a queue. The first program makes its stream and its bucket.

        Needs server 2.12 or later. All queues with the same *prefix* share the stream and the
        bucket ``QUEUE_<prefix>``. If they exist, they stay as they are.

        Args:
            js: The JetStream context.
            name: The name of the queue: any text of up to about 200 characters.
            prefix: The name of the application: letters, digits, ``-`` and ``_``.
            priorities: The number of priorities, 1 to 10. All programs should use the same number:
                a worker takes no job whose priority is too high for its number.
            results: Whether workers store what handlers return.
            result_ttl: Seconds for which results and records are kept, from 1 to 31 years.
            track: Whether ``put`` stores a record of each job, which workers update. Then
                ``status`` also knows jobs that wait or run, and an id is used only once as long as
                its record is kept. This costs one more write for ``put`` and one for each attempt.
            ack_wait: Seconds after which the job of a worker that died is run again, at least 1.
                Workers report progress after three eighths of it, as long as they live. The program
                that first works on a priority of a queue decides.
            duplicate_window: Seconds for which the server remembers the ids of jobs.
            storage: ``file`` or ``memory``.
            num_replicas: On how many servers the jobs are stored.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid. Nothing was sent.
            NotSupportedError: The server is older than 2.12.
            QueueError: There is a stream of that name that is no work queue.
            ApiError, RequestTimeoutError: The stream or the bucket could not be made.
        """
        found = Names(check_prefix(prefix), checked_token("name", name))
        count("priorities", priorities, 1, names.MOST_PRIORITIES)
        keep = seconds("result_ttl", result_ttl, least=1.0, most=LONGEST_TTL, most_is="31 years")
        wait = seconds("ack_wait", ack_wait, least=1.0)
        window = seconds("duplicate_window", duplicate_window, least=0.1)
        count("num_replicas", num_replicas, 1, 5)
        check_storage(storage)
        for what, value in (("results", results), ("track", track)):
            if not isinstance(value, bool):
                raise jetsync.InvalidTypeError(f"{what} must be True or False", argument=what)
        stream = open_stream(js, found.prefix, window, storage, num_replicas)
        bucket = open_bucket(js, found.stream, stream.config)
        large_results = Objects(js, f"{found.stream}_results", stream.config, keep)
        return cls(
            Core(
                js=js,
                name=name,
                names=found,
                stream=stream,
                bucket=bucket,
                records=Records(bucket, found, large_results, keep),
                objects=Objects(js, f"{found.stream}_jobs", stream.config, None),
                priorities=priorities,
                results=results,
                track=track,
                result_ttl=keep,
                ack_wait=wait,
            )
        )

    @staticmethod
    def names(js: jetsync.JetStream, *, prefix: str = "app") -> list[str]:
        """
        Return the names of the queues that have jobs or had a worker, in alphabetical order.

        Raises:
            StreamNotFoundError: There is no queue with this prefix.
        """
        stream = js.stream(names.stream_name(check_prefix(prefix)))
        found = {name.rpartition("-")[0] for name in stream.consumer_names()}
        info = stream.info(subjects_filter=">")
        found |= {subject.split(".")[2] for subject in info.state.subjects or ()}
        return sorted(map(untoken, found))

    @property
    def name(self) -> str:
        """The name."""
        return self._core.name

    @property
    def prefix(self) -> str:
        """The prefix."""
        return self._core.names.prefix

    @property
    def priorities(self) -> int:
        """The number of priorities."""
        return self._core.priorities

    @property
    def results(self) -> bool:
        """Whether workers store what handlers return."""
        return self._core.results

    @property
    def is_tracked(self) -> bool:
        """Whether ``put`` stores records."""
        return self._core.track

    @property
    def stream(self) -> jetsync.Stream:
        """The stream, which all queues of the prefix share."""
        return self._core.stream

    @property
    def bucket(self) -> jetsync.KeyValue:
        """The bucket with the results and records, which all queues of the prefix share."""
        return self._core.bucket

    # Submitting

    def put(
        self,
        data: Any,
        *,
        delay: float | dt.timedelta | None = None,
        at: dt.datetime | None = None,
        priority: int = 0,
        job_id: str | None = None,
        expires: float | dt.timedelta | None = None,
        headers: Mapping[str, str] | None = None,
        msg_id: str | None = None,
    ) -> Job:
        """
        Store a job, and return its handle once the server has confirmed it.

        Args:
            data: Bytes, which stay as they are, or a value that JSON can express. If it is larger
                than the server's ``max_payload``, it goes to an object store.
            delay: Seconds until the job becomes available. The server waits, not a worker.
            at: An aware datetime at which the job becomes available. A past one means now.
            priority: From 0 to ``priorities - 1``. Workers take jobs of a higher one first.
            job_id: The id. Default: a random one. If the server has stored a job of the queue under
                this id within ``duplicate_window``, or one is scheduled, nothing is stored, and
                ``job.duplicate`` is true.
            expires: Seconds from now after which no worker starts the job.
            headers: Headers of your own.
            msg_id: Id for the duplicate detection instead of *job_id*, so that jobs with the same
                id can follow each other.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid. Nothing was sent.
            PublishOutcomeUnknownError: The job may be stored or not. If you gave an id, put it
                again.
            PublishError, ApiError, DisconnectedError, ...: The job was not stored.
        """
        core = self._core
        now = records.now()
        new = self._new(
            data, now, delay=delay, at=at, priority=priority, expires=expires, headers=headers
        )
        job_id = uuid.uuid4().hex if job_id is None else job_id
        token = checked_token("job_id", job_id)
        new["headers"][names.ID] = job_id
        given: object = msg_id
        if given == "" or not isinstance(given, (str, type(None))):
            raise jetsync.InvalidTypeError("msg_id must be text, and not empty", argument="msg_id")
        unique = msg_id or job_id
        # Checked before the record of a tracked job is stored.
        jetsync.Headers({**new["headers"], "Nats-Msg-Id": unique})
        if core.track and not self._record(token, data, now, new):
            return Job(core, job_id, token, None, duplicate=True)
        try:
            ack = core.publish(**new, job=token, msg_id=f"{core.names.queue}/{unique}", is_new=True)
        except jetsync.WrongLastSequenceError:
            return Job(core, job_id, token, None, duplicate=True)
        return Job(core, job_id, token, ack, duplicate=bool(ack.duplicate))

    def put_many(
        self,
        items: Iterable[Any],
        *,
        delay: float | dt.timedelta | None = None,
        at: dt.datetime | None = None,
        priority: int = 0,
        expires: float | dt.timedelta | None = None,
    ) -> list[Job]:
        """
        Store a job for each item, with many in flight; return their handles in order.

        The arguments are those of :meth:`put`, for all jobs. Each item must fit into a message. The
        jobs of a tracked queue are put one by one.

        Raises:
            PublishManyError: Some jobs were not stored, or it is not known whether they were.
                ``error.report`` lists their messages, whose header ``Jetsync-Job-Id`` is the id.
            InvalidArgumentError, InvalidTypeError: An argument or an item is invalid.
        """
        core = self._core
        if core.track:
            return [
                self.put(item, delay=delay, at=at, priority=priority, expires=expires)
                for item in items
            ]
        jobs: list[str] = []
        now = records.now()

        def messages() -> Iterable[jetsync.OutboundMessage]:
            for item in items:
                new = self._new(
                    item, now, delay=delay, at=at, priority=priority, expires=expires, headers=None
                )
                job_id = uuid.uuid4().hex
                new["headers"][names.ID] = job_id
                jobs.append(job_id)
                yield core.message(**new, job=job_id, msg_id=f"{core.names.queue}/{job_id}")

        stored: dict[str, jetsync.PubAck] = {}

        def note(message: jetsync.OutboundMessage, ack: jetsync.PubAck) -> None:
            stored[str(dict(message.headers or {})[names.ID])] = ack

        core.js.publish_many(messages(), on_ack=note)
        return [Job(core, job_id, job_id, stored[job_id], duplicate=False) for job_id in jobs]

    def _new(
        self,
        data: Any,
        now: float,
        *,
        delay: object,
        at: object,
        priority: int,
        expires: object,
        headers: Mapping[str, str] | None,
    ) -> dict[str, Any]:
        """Check the arguments of a put, and return those of ``Core.publish``."""
        body, kind = encode(data)
        start = start_at(delay, at, now)
        count("priority", priority, 0, self._core.priorities - 1)
        found = {} if headers is None else checked_headers(headers)
        if kind != BYTES:
            found[names.TYPE] = kind
        if start is not None:
            found[names.ENQUEUED] = f"{now:.3f}"
        if self._core.track:
            found[names.TRACKED] = "1"
        end = None
        if expires is not None:
            end = now + seconds("expires", expires)
            if end <= (start or now):
                raise jetsync.InvalidArgumentError(
                    "expires must be later than the start of the job", argument="expires"
                )
            found[names.EXPIRES] = f"{end:.3f}"
        return {"data": body, "headers": found, "priority": priority, "at": start, "expires": end}

    def _record(self, token: str, data: Any, now: float, new: Mapping[str, Any]) -> bool:
        """Record a new job; return False if there was one with this id that has started."""
        record: dict[str, Any] = {
            "state": records.WAITING,
            "enqueued": now,
            "priority": new["priority"],
            "data": to_fields(data),
        }
        own = {
            name: value
            for name, value in new["headers"].items()
            if not name.lower().startswith(names.RESERVED)
        }
        if own:
            record["headers"] = own
        if new["at"] is not None:
            record["run_after"] = new["at"]
        wait = max((new["at"] or now) - now, 0.0)
        if self._core.records.create(token, record, extra=wait):
            return True
        # The program that made the record may have died before it stored the job. The server drops
        # the job if it has it, and a worker if the job has started.
        found = self._core.records.read(token, latest=True)
        return found is None or found["state"] == records.WAITING

    def job(self, job_id: str) -> Job:
        """
        Return the handle of a job by its id. This sends no request.
        """
        return Job(self._core, job_id, checked_token("job_id", job_id), None, duplicate=False)

    def status(self, job_id: str) -> JobStatus | None:
        """
        Return what is known about a job; see :meth:`Job.status`.
        """
        return self.job(job_id).status()

    def cancel(self, job: Job | str, *, scheduled_only: bool = False) -> bool:
        """
        Remove a job from the server, so that no worker starts it; return whether there was one.

        A job with a delay, and one that waits for its next attempt, is found by its id. A job that
        is available is found at once with the handle that ``put`` returned. With its id alone, the
        available jobs of the queue are read. A worker that has taken the job already may still run
        it, once.

        Args:
            job: The job or its id.
            scheduled_only: Remove it only if it has a delay, or waits for its next attempt. This
                takes as long for a long queue as for a short one.

        Raises:
            RequestTimeoutError, DisconnectedError: The server did not answer. You can repeat it.
        """
        handle = job if isinstance(job, Job) else self.job(job)
        return handle.cancel(scheduled_only=scheduled_only)

    # Working

    def receive(
        self,
        *,
        prefetch: int | None = None,
        ahead: int = 1,
        on_ready: Callable[[], object] | None = None,
    ) -> Receiver:
        """
        Return a receiver, which takes jobs one by one. :meth:`work` is simpler.

        Args:
            prefetch: How many jobs may be taken and not settled. Default: no limit.
            ahead: How many jobs of each priority are fetched before they are asked for.
            on_ready: Called without arguments whenever a job is available, in a thread of the
                receiver. It must be quick.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid.
        """
        if prefetch is not None:
            count("prefetch", prefetch, 0)
        count("ahead", ahead, 1)
        return Receiver(self._core, prefetch=prefetch, ahead=ahead, on_ready=on_ready)

    def worker(
        self,
        handler: Callable[[Delivery], object],
        *,
        threads: int = 1,
        retries: int = 0,
        wait: float | dt.timedelta | Iterable[float | dt.timedelta] = (1.0, 10.0, 60.0),
        timeout: float | dt.timedelta | None = None,
        grace: float | dt.timedelta = 10.0,
        crashes: int = 3,
        ahead: int | None = None,
        name: str | None = None,
    ) -> Worker:
        """
        Return a worker, which runs jobs in threads once it is started; see :meth:`work`.
        """
        check_handler(handler)
        waits = wait if not isinstance(wait, (int, float)) and hasattr(wait, "__iter__") else [wait]
        options = WorkerOptions(
            handler=handler,
            threads=count("threads", threads, 1, MOST_THREADS),
            retries=count("retries", retries, 0),
            waits=tuple(seconds("wait", each) for each in waits) or (0.0,),
            timeout=None if timeout is None else seconds("timeout", timeout, least=0.01),
            grace=seconds("grace", grace),
            crashes=count("crashes", crashes, 0),
            ahead=max(threads, LEAST_AHEAD) if ahead is None else count("ahead", ahead, 1),
            name=None if name is None else checked_name(name),
        )
        return Worker(self._core, options)

    def work(
        self,
        handler: Callable[[Delivery], object],
        *,
        threads: int = 1,
        retries: int = 0,
        wait: float | dt.timedelta | Iterable[float | dt.timedelta] = (1.0, 10.0, 60.0),
        timeout: float | dt.timedelta | None = None,
        grace: float | dt.timedelta = 10.0,
        crashes: int = 3,
        ahead: int | None = None,
        name: str | None = None,
    ) -> WorkerStatistics:
        """
        Run jobs until the worker is stopped; return the counts.

        It stops after a signal in a block of ``client.stop_on_signal()``, after Ctrl-C, or if the
        client is closed. Then it starts no further job, gives back the jobs that it has not
        started, and waits for those that run. After Ctrl-C, it raises KeyboardInterrupt then, and a
        second Ctrl-C ends the wait.

        Args:
            handler: Called with a :class:`Delivery` in one of the threads. The job has succeeded if
                it returns, and what it returns is the result. If it raises ``jetsync.DeadLetter``,
                the job is given up. If it raises :class:`Retry`, the job gets another attempt.
                After any other exception, it gets one if it has *retries* left.
            threads: How many jobs run at the same time.
            retries: How many further attempts a job gets after its handler failed. Deliveries that
                only reached a worker do not count.
            wait: Seconds before the second attempt, the third one, and so on. The last number
                repeats.
            timeout: Seconds for one attempt. Then :class:`JobTimeoutError` is raised in the thread
                of the handler, at the next step of Python code. Default: no limit.
            grace: Seconds after the timeout. If the handler has not ended then, its attempt counts
                as failed, and another thread takes its place. What it returns is ignored.
            crashes: How many workers may die while they run one attempt of a job, after the first
                one. After that, the job is given up, so that a job that kills its workers does not
                kill all of them. A worker that is stopped before the job has ended counts, too.
            ahead: How many jobs of each priority are fetched before a thread is free. Those that
                wait for a second go back to the server. Default: *threads*, but at least 4.
            name: The name of the worker in records. Default: host name and process id.

        Raises:
            InvalidArgumentError, InvalidTypeError: An argument is invalid.
            StreamNotFoundError, ...: The error that ended the work.
        """
        return self.worker(
            handler,
            threads=threads,
            retries=retries,
            wait=wait,
            timeout=timeout,
            grace=grace,
            crashes=crashes,
            ahead=ahead,
            name=name,
        ).run()

    # Looking and repairing

    def statistics(self) -> QueueStatistics:
        """
        Count the jobs of the queue by their states.
        """
        return count_jobs(self._core)

    def dead(self, *, limit: int | None = None) -> list[DeadJob]:
        """
        Return the dead jobs, oldest first.

        Args:
            limit: At most this many. Default: all.
        """
        return dead.dead_jobs(self._core, limit if limit is None else count("limit", limit, 1))

    def retry_dead(self, job_id: str | None = None) -> int:
        """
        Put dead jobs back; return how many. Their attempts begin at 1.

        Args:
            job_id: Only the jobs with this id. Default: all.
        """
        return dead.retry_dead(self._core, job_id)

    def delete_dead(self, job_id: str | None = None) -> int:
        """
        Remove dead jobs for good; return how many.

        Args:
            job_id: Only the jobs with this id. Default: all.
        """
        return dead.delete_dead(self._core, job_id)

    def purge(self) -> int:
        """
        Remove all jobs of the queue that wait, run, or have a delay; return how many.

        Dead jobs and results stay. Jobs that run are finished by their workers.
        """
        core = self._core
        wanted = (core.names.all_waiting, core.names.scheduled("*"), core.names.retrying("*"))
        return sum(core.stream.purge(subject) for subject in wanted)

    def delete(self) -> None:
        """
        Remove all jobs of the queue, also dead ones, and its consumers. Results stay.
        """
        core = self._core
        for priority in range(names.MOST_PRIORITIES):
            try:
                core.stream.delete_consumer(core.names.consumer(priority))
            except jetsync.ConsumerNotFoundError:
                continue
        self.purge()
        core.stream.purge(core.names.dead("*"))
