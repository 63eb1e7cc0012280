"""
Store each line of a file in the stream IMPORT once, and continue where an earlier run stopped.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import jetsync

BLOCK = int(os.environ.get("BLOCK", "50000"))
SUBJECT = "import.lines"


class Checkpoint:
    """
    Where to continue: a line of the file, and the last sequence before the message of this line.

    The run is part of the message ids, so that files do not share ids.
    """

    def __init__(self, path: Path, stream: jetsync.Stream) -> None:
        self.path = path
        if path.exists():
            self.run, self.offset, self.line, self.sequence = json.loads(path.read_text())
        else:
            self.run = uuid.uuid4().hex
            self.save(0, 0, stream.info().state.last_seq)

    def save(self, offset: int, line: int, sequence: int) -> None:
        """
        Replace the file in one step, so that a crash leaves the old one or the new one.
        """
        new = Path(f"{self.path}.new")
        new.write_text(json.dumps([self.run, offset, line, sequence]))
        new.replace(self.path)
        self.offset, self.line, self.sequence = offset, line, sequence


def messages(
    file: BinaryIO, checkpoint: Checkpoint, places: list[tuple[int, int]], stored: set[str]
) -> Iterator[jetsync.OutboundMessage]:
    """
    Yield the lines that are not stored yet, and note where each of them begins.
    """
    lines = itertools.islice(iter(file.readline, b""), BLOCK)
    for number, line in enumerate(lines, start=checkpoint.line):
        msg_id = f"{checkpoint.run}-{number}"
        if msg_id not in stored:
            places.append((file.tell() - len(line), number))
            yield jetsync.OutboundMessage(SUBJECT, line.rstrip(b"\n"), msg_id=msg_id)


def run(js: jetsync.JetStream, source: Path) -> None:
    """
    Import the rest of the file.
    """
    stream = js.stream("IMPORT")
    checkpoint = Checkpoint(Path(f"{source}.checkpoint"), stream)
    # What an earlier run stored after its checkpoint: at most one block.
    later = stream.scan(start=checkpoint.sequence + 1, subject=SUBJECT)
    stored = {message.headers.get("Nats-Msg-Id", "") for message in later}
    with source.open("rb") as file:
        file.seek(checkpoint.offset)
        while checkpoint.offset < source.stat().st_size:
            places: list[tuple[int, int]] = []
            try:
                report = js.publish_many(messages(file, checkpoint, places, stored))
            except BaseException as error:
                # Ctrl-C, or messages that failed. An error before the first message has no report.
                known: jetsync.PublishReport | None = getattr(error, "report", None)
                if known is not None and known.resume_at < len(places):
                    offset, line = places[known.resume_at]
                    checkpoint.save(offset, line, checkpoint.sequence)
                raise
            # The last block may have fewer lines. Then no line needs the number.
            line = checkpoint.line + BLOCK
            checkpoint.save(file.tell(), line, report.last_sequence or checkpoint.sequence)
            print(f"{checkpoint.offset:,} bytes", flush=True)
    print("complete", flush=True)


def main() -> None:
    """
    Import the file that the command line names.
    """
    with jetsync.connect() as client:
        try:
            run(client.jetstream(), Path(sys.argv[1]))
        except KeyboardInterrupt:
            sys.exit("interrupted: start it again to continue")


if __name__ == "__main__":
    main()
