"""
The clauses of each specification by the servers that can do them.

`python tests/specifications --write` writes this file. Each server is the first version that can do
the clauses, unless the text ends with `only`. The numbers also count the clauses that are about the
client alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

CLAUSES: Final[Mapping[str, tuple[int, Mapping[str, str]]]] = {
    "ADR-50, atomic batches": (
        51,
        {
            "2.12.0": (
                "AB-01 to AB-07, AB-11, AB-14 to AB-18, AB-21, AB-22, AB-24 to AB-31, AB-33, "
                "AB-37 to AB-40, AB-42 to AB-48"
            ),
            "2.12.0 only": "AB-35",
            "2.12.1": "AB-13, AB-19, AB-20, AB-23, AB-34, AB-36, AB-50",
            "2.14.0": "AB-08 to AB-10, AB-12, AB-32, AB-41, AB-49",
        },
    ),
    "ADR-50, fast ingest": (
        72,
        {
            "2.14.0": (
                "FI-01 to FI-05, FI-10 to FI-16, FI-18, FI-20, FI-21, FI-23, FI-26, FI-27, FI-29 "
                "to FI-34, FI-37, FI-39 to FI-43, FI-46, FI-47, FI-52, FI-54 to FI-59, FI-61 to "
                "FI-72"
            ),
        },
    ),
    "ADR-37, consumers": (
        109,
        {
            "2.10": "SC-09, SC-10, SC-36, SC-66 to SC-68, SC-72 to SC-83, SC-89, SC-102",
            "2.11": "SC-70, SC-85",
            "none": "SC-69, SC-84",
        },
    ),
    "ADR-31, direct get": (
        79,
        {
            "2.10": (
                "DG-01 to DG-05, DG-07 to DG-10, DG-12 to DG-14, DG-17, DG-18, DG-20 to DG-22, "
                "DG-24, DG-31 to DG-34, DG-39, DG-67, DG-68, DG-70, DG-71, DG-75, DG-77, DG-79"
            ),
            "2.10, 2.11 only": "DG-78",
            "2.11": (
                "DG-06, DG-19, DG-23, DG-25 to DG-30, DG-35 to DG-38, DG-40 to DG-57, DG-59 to "
                "DG-64, DG-66, DG-69, DG-73, DG-74"
            ),
            "2.12": "DG-58, DG-72",
            "none": "DG-15, DG-65, DG-76",
        },
    ),
    "ADR-43, time-to-live of messages": (
        49,
        {
            "2.11": (
                "TTL-01 to TTL-07, TTL-09 to TTL-13, TTL-15, TTL-16, TTL-21 to TTL-29, TTL-31 to "
                "TTL-47"
            ),
            "none": "TTL-08, TTL-14, TTL-17, TTL-19",
        },
    ),
}
