"""
Store the orders that are posted.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from django.http import JsonResponse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

import jetsync

if TYPE_CHECKING:
    from django.http import HttpRequest


@functools.cache
def jetstream() -> jetsync.JetStream:
    """
    Return the JetStream context of this process. The first call connects.
    """
    return jetsync.connect().jetstream()


@csrf_exempt
@require_POST
def create_order(request: HttpRequest, region: str) -> JsonResponse:
    """
    Publish the body of the request, once for each idempotency key.
    """
    key = request.headers.get("Idempotency-Key")
    try:
        ack = jetstream().publish(f"orders.{region}", request.body, msg_id=key)
    except jetsync.InvalidArgumentError as error:
        return JsonResponse({"error": str(error)}, status=400)
    except (ConnectionError, TimeoutError, jetsync.NoStreamResponseError) as error:
        # The order may be stored. With the same key, a second request does not store it again.
        return JsonResponse({"error": str(error)}, status=503)
    return JsonResponse({"sequence": ack.sequence, "duplicate": ack.duplicate}, status=201)
