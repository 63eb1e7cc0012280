"""
Streams that are moved while a query reads them.
"""

from __future__ import annotations

from backups import restore
from streams_to_read import numbered


def kept(js, count, **config):
    """Make a stream that can be backed up."""
    return numbered(js, count, storage="file", **config)


def restored(client, stream, backup):
    """Replace a stream by its backup."""
    stream.delete()
    restore(client, backup)


def again(query, **options):
    """Restart a query from its checkpoint, with more options."""
    query.options.update(options)
    query.start()
    return query


def first_ranges(query):
    """Return what the first batch of a run reads in PySpark 4.0 and 4.1."""
    reader = query.reader
    parts = reader.partitions(query.ends[-1], query.through_json(reader.latestOffset()))
    return [(each.stream, each.start, each.end) for part in parts for each in part.value]
