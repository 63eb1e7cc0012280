from __future__ import annotations

import importlib
import subprocess
import sys
import threading

import nats.aio.transport
import pytest

from jetsync._io.deferred import Deferred, deferred


@pytest.fixture
def package(tmp_path, monkeypatch):
    """The name of a package that was not imported yet, with a module `inner`."""
    name = "package_of_a_test"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("VALUE = 1\n")
    (tmp_path / name / "inner.py").write_text("VALUE = 2\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield name
    for module in [name, f"{name}.inner"]:
        sys.modules.pop(module, None)


def take(package):
    """Import the package as a module would, inside the block."""
    with deferred(package):
        return importlib.import_module(package)


class TestDeferred:
    def test_a_deferred_package_is_imported_by_its_first_use(self, package):
        """The package is imported by the first use of an attribute, not by the import statement."""
        taken = take(package)

        assert package not in sys.modules
        assert taken.VALUE == 1
        assert sys.modules[package].VALUE == 1

    def test_attributes_are_those_of_the_package(self, package):
        """An attribute that is set on the package is seen, and one that is missing raises."""
        taken = take(package)
        importlib.import_module(package).VALUE = 3

        assert taken.VALUE == 3
        with pytest.raises(AttributeError):
            _ = taken.missing

    def test_others_get_the_package(self, package):
        """An import after the block gets the package itself."""
        taken = take(package)

        assert not isinstance(importlib.import_module(package), Deferred)
        assert isinstance(taken, Deferred)

    @pytest.mark.parametrize(
        "statement", ["import {}.inner as found", "from {} import inner as found"]
    )
    def test_a_module_of_the_package_during_the_block(self, package, statement):
        """Another thread that imports a module of the package during the block gets it."""
        names = {}
        with deferred(package):
            thread = threading.Thread(target=exec, args=(statement.format(package), names))
            thread.start()
            thread.join(60)

        assert names["found"].VALUE == 2
        assert not isinstance(sys.modules[package], Deferred)

    def test_a_module_in_a_package(self, package):
        """A module in a package is an attribute of it, and imported by its first use."""
        inner = f"{package}.inner"
        with deferred(inner):
            exec(f"import {inner}")

        assert inner not in sys.modules
        assert sys.modules[package].inner.VALUE == 2
        assert sys.modules[package].inner is sys.modules[inner]

    def test_a_module_in_a_package_that_is_used_during_the_block(self, package):
        """Its package keeps the module itself, not the Deferred."""
        inner = f"{package}.inner"
        with deferred(inner):
            exec(f"from {package} import inner; inner.VALUE")

        assert sys.modules[package].inner is sys.modules[inner]
        assert not isinstance(sys.modules[inner], Deferred)

    def test_use_during_the_block(self, package):
        """A use during the block imports the package for good."""
        with deferred(package):
            exec(f"from {package} import VALUE")

        assert not isinstance(sys.modules[package], Deferred)

    def test_a_deferred_package_that_is_missing_raises_import_error(self):
        """A package that is not installed still raises ImportError."""
        with pytest.raises(ImportError), deferred("no_such_package"):
            importlib.import_module("no_such_package")

    def test_imported_before(self, package):
        """A package that was imported before is used as it is."""
        before = importlib.import_module(package)

        assert take(package) is before
        assert sys.modules[package] is before

    def test_failed_block(self, package):
        """A block that fails leaves no trace."""
        with pytest.raises(ValueError, match="broken"), deferred(package):
            raise ValueError("broken")

        assert package not in sys.modules


def test_nats_py_has_its_jetstream():
    """
    After jetsync has imported nats-py without its JetStream client, nats-py imports and uses it.
    """
    program = """if True:
        import sys
        import jetsync
        print("nats.js" in sys.modules)
        import nats
        print(type(nats.NATS().jetstream()).__name__, nats.js.api.StreamConfig.__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.stdout.split() == ["False", "JetStreamContext", "StreamConfig"]


def test_nats_py_has_its_websocket():
    """
    After jetsync has imported nats-py without aiohttp, nats-py's own WebSocket imports and uses it.
    """
    pytest.importorskip("aiohttp")
    if not hasattr(nats.aio.transport, "multidict"):
        pytest.skip("before 2.12, nats-py sends no headers of the user over WebSocket")
    program = """if True:
        import asyncio, sys
        import jetsync
        jetsync.Client
        before = "aiohttp" in sys.modules
        from nats.aio.transport import WebSocketTransport

        async def main():
            transport = WebSocketTransport({"name": ["value"]})
            headers = transport._get_custom_headers()
            print(before, type(transport._client).__module__, headers["name"])
            await transport._client.close()

        asyncio.run(main())
        import aiohttp
        print(aiohttp.ClientSession.__name__)
    """
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )

    assert done.stderr == ""
    assert done.stdout.split() == ["False", "aiohttp.client", "value", "ClientSession"]
