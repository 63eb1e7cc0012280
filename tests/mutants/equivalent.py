"""
Mutants that no test can kill, because they behave as the original.

Each is named by file, innermost function, and the first changed line before and after. A tuning
constant is not equivalent, and neither is code that only makes something faster.
"""

from __future__ import annotations

EQUIVALENT: dict[tuple[str, str, str, str], str] = {
    (
        "jetsync/_io/replies.py",
        "ReplyRouter.denied",
        'if operation == "subscribe" and subject == self.interest:',
        'if operation <= "subscribe" and subject == self.interest:',
    ): 'The other operation is "publish", and nobody publishes to a subject with a wildcard.',
    (
        "jetsync/_io/replies.py",
        "Waiter.may_be_refused",
        'denied = isinstance(failure, PermissionDeniedError) and failure.operation == "publish"',
        'denied = isinstance(failure, PermissionDeniedError) and failure.operation <= "publish"',
    ): 'The other operation is "subscribe", which is larger.',
    (
        "jetsync/_proto/ack_runs.py",
        "AckRuns.take",
        "if last < 0:",
        "if last < 1:",
    ): "At position 0 no frame ends before the last one, and the next check refuses that.",
    (
        "jetsync/_proto/batch.py",
        "AtomicBatchEngine._next_ask",
        "ask = min(ask, USUAL_LIMIT + 1)",
        "ask = min(ask, USUAL_LIMIT ^ 1)",
    ): "The usual limit is even, so both operators give the next number.",
    (
        "jetsync/_proto/direct_last.py",
        "LastRead",
        "_page_bytes: int = attrs.field(kw_only=True)",
        "_page_bytes: int = attrs.field(kw_only=False)",
    ): "All callers name the argument.",
    (
        "jetsync/_proto/direct_last.py",
        "chunks",
        "if part and (len(part) == MAX_SUBJECTS or size + cost > room):",
        "if part and (len(part) >= MAX_SUBJECTS or size + cost > room):",
    ): "A part grows by one name and is closed at the limit, so it is never longer.",
    (
        "jetsync/_proto/keys.py",
        "check_key",
        "if type(key) is str and _KEY.fullmatch(key):",
        "if type(key) is not str and _KEY.fullmatch(key):",
    ): "The first test is a short cut for the last one, which accepts the same keys.",
    (
        "jetsync/consume/consumer.py",
        "Consumer.next",
        "batch.close()",
        "pass",
    ): "Nothing else holds the iterator, so it has ended and closed the batch already.",
    (
        "jetsync/publish/atomic_attempt.py",
        "BatchAttempt._cause",
        "self.engine.answered(Part(1, []), opening.reply)",
        "self.engine.answered(Part( 2, []), opening.reply)",
    ): "The engine does not use the numbers of a part that has been answered.",
    (
        "jetsync/read/last.py",
        "LastPlan._new_subjects",
        "if self._counts.get(name, 0) <= counts[name] and not 0 < most <= counts[name]",
        "if self._counts.get(name, -1) <= counts[name] and not 0 < most <= counts[name]",
    ): "A listed subject has at least one message, so 0 and -1 are both lower.",
    (
        "jetsync/read/last.py",
        "_common_wildcard",
        "common = itertools.takewhile(lambda tokens: len({*tokens}) == 1, levels)",
        "common = itertools.takewhile(lambda tokens: len({*tokens}) <= 1, levels)",
    ): "There is at least one name, so a level has at least one token.",
    (
        "jetsync/values/stored.py",
        "StoredPage.data",
        "found += [data[a:b] for a, b in zip(bounds[1::3], bounds[2::3], strict=True)]",
        "found += [data[a:b] for a, b in zip(bounds[1::3], bounds[2::3], strict=False)]",
    ): "The bounds have three positions for each frame, so both slices have the same length.",
}
