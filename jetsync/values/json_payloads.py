"""
JSON in payloads and values.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from jetsync.errors import JetSyncError


def parse_json(data: bytes | str, refusal: Callable[[str], JetSyncError]) -> Any:
    """
    Return the value of a JSON document.

    Args:
        data: The document.
        refusal: Returns the error to raise, for a reason that quotes nothing of the document.
    """
    try:
        return json.loads(data)
    except UnicodeDecodeError:
        reason = "it is not UTF-8"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:
        reason = f"it is not JSON: {error}" if data else "it is empty"
    # Not chained, because errors of `json` keep the whole document, which may be secret.
    raise refusal(reason)
