"""
Celery on NATS JetStream: a transport of kombu and a result backend.

Import this package where your Celery app is made. Then ``broker_url`` and ``result_backend`` accept
``jetstream://host:4222``.

Layout:

- ``links`` reads URLs and options, and ``settings`` has the options of the transport, which
  ``hidden`` keeps from being shown.
- ``transport`` and ``channel`` are what kombu calls. ``sources`` are the queues that they read.
- ``topology`` keeps exchanges, queues and bindings in a bucket that all processes share.
- ``envelope`` turns messages of kombu into data and headers.
- ``resending`` recognises tasks that are sent again after an error.
- ``answers`` sends acknowledgements, also after a lost connection.
- ``results`` is the result backend, ``waiting`` waits for results, and ``chords`` counts the parts
  of a chord.
"""

from __future__ import annotations

from kombu.transport import TRANSPORT_ALIASES

from jetsync_celery.transport import SCHEMES

__all__ = ["SCHEMES"]

for _scheme in SCHEMES:
    TRANSPORT_ALIASES[_scheme] = "jetsync_celery.transport:Transport"
