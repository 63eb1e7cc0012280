"""
kombu's own integration tests, from its source distribution, which `tox run -e celery` fetches.

They are not part of this project. ``KOMBU_SOURCE`` is the unpacked source distribution.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Any

import pytest

SOURCE = os.environ.get("KOMBU_SOURCE", "")

if not SOURCE:
    pytest.skip("KOMBU_SOURCE names no source of kombu", allow_module_level=True)

pytestmark = pytest.mark.live


def _load() -> Any:
    # By its path, because the installed kombu must be the one that is tested.
    spec = importlib.util.spec_from_file_location(
        "kombu_integration", Path(SOURCE) / "t" / "integration" / "common.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


common = _load()


class TestBasicFunctionality(common.BasicFunctionality):
    pass


class TestExchangeTypes(common.BaseExchangeTypes):
    pass


class TestTimeToLive(common.BaseTimeToLive):
    pass


class TestPriority(common.BasePriority):
    PRIORITY_ORDER = "asc"


class TestMessage(common.BaseMessage):
    pass


class TestEventLoop(common.BaseEventLoop):
    pass


class TestFailover(common.BaseFailover):
    pass
