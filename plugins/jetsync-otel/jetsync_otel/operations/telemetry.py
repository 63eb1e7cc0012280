"""
The parts of the plugin that all operations use.
"""

from __future__ import annotations

import attrs
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.trace import Tracer

from jetsync_otel.errors import Faults
from jetsync_otel.metrics.instruments import Instruments
from jetsync_otel.settings import Settings


@attrs.frozen(eq=False)
class Telemetry:
    """
    How one plugin creates spans, records metrics and reports its own errors.
    """

    tracer: Tracer
    instruments: Instruments
    propagator: TextMapPropagator
    settings: Settings
    faults: Faults
