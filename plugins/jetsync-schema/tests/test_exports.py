from __future__ import annotations

import subprocess
import sys

import pytest

import jetsync
import jetsync_schema


def test_everything_public_is_on_the_facade():
    """
    All public names are exported, sorted and documented.
    """
    assert len(set(jetsync_schema.__all__)) == len(jetsync_schema.__all__)
    for name in jetsync_schema.__all__:
        assert getattr(jetsync_schema, name).__doc__


def test_errors_of_jetsync_schema_are_those_of_jetsync():
    """
    Errors of the plugin are caught as errors of jetsync.
    """
    for name in ("DefinitionError", "MismatchError", "ViolationError"):
        assert issubclass(getattr(jetsync_schema, name), jetsync.JetSyncError)
    assert issubclass(jetsync_schema.ViolationError, ValueError)


def test_importing_it_imports_no_validator():
    """
    Only the libraries of the kinds in use need to be installed.
    """
    code = (
        "import sys, jetsync_schema;"
        "print(sorted({'fastavro', 'pydantic', 'jsonschema_rs'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("module", "extra", "make"),
    [
        ("jsonschema_rs", "json", lambda: jetsync_schema.JsonSchema(True)),
        ("pydantic", "pydantic", lambda: jetsync_schema.PydanticModel(int)),
        ("fastavro", "avro", lambda: jetsync_schema.AvroSchema("null")),
    ],
)
def test_a_missing_library_is_named(monkeypatch, module, extra, make):
    """
    The error names the library to install.
    """
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(jetsync.ConfigurationError, match=rf"install jetsync-schema\[{extra}\]"):
        make()
