import subprocess
import sys

import pyspark
import pytest

from jetsync_spark.common import errors
from jetsync_spark.common.clients import client_for, forget
from jetsync_spark.common.errors import JetStreamSparkError, OptionError, java_missing
from jetsync_spark.common.options import ConnectSettings


@pytest.mark.parametrize(
    ("module", "check"),
    [("pyarrow", errors.require_pyarrow), ("pandas", errors.require_pandas)],
)
def test_a_package_that_is_missing_is_named(monkeypatch, module, check):
    """
    The error says how to install it; Spark's own error would be that a worker crashed.
    """
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(OptionError, match=f"{module} cannot be imported .*pip install {module}"):
        check()


def test_no_java_is_one_sentence(monkeypatch, tmp_path):
    """
    The sentence names what to install.
    """
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "apt install openjdk-17-jre-headless" in java_missing()

    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    assert f"JAVA_HOME is {tmp_path}, which has no bin/java" in java_missing()


@pytest.mark.skipif(pyspark.__version__ >= "4", reason="newer ones have them")
def test_an_old_spark_has_no_data_sources():
    """
    The error names the alternatives.
    """
    from jetsync_spark.registration import register

    with pytest.raises(OptionError, match=r"PySpark 3\.5.* JetStreamSink and publish_arrow"):
        register(None)


def test_a_password_that_is_wrong_is_not_shown(monkeypatch):
    """
    The error lists the accepted options.
    """
    from jetsync.devserver import DevServer

    config = 'authorization { user: "me", password: "right" }'
    with DevServer(config=config, jetstream=False) as server:
        monkeypatch.setenv("A_USER", "me")
        monkeypatch.setenv("A_PASSWORD", "wr0ng")
        host = server.url.rpartition("@")[2].removeprefix("nats://")
        settings = ConnectSettings(
            servers=f"nats://{host}", user_env="A_USER", password_env="A_PASSWORD"
        )

        with pytest.raises(JetStreamSparkError, match="credsFile, userEnv and passwordEnv") as bad:
            client_for(settings)
        assert "wr0ng" not in str(bad.value)

        monkeypatch.setenv("A_PASSWORD", "right")
        assert client_for(settings).is_connected
        forget(settings)


@pytest.mark.parametrize("missing", ["pyspark.sql.datasource", "pyarrow", "jetsync", "attrs"])
def test_discovery_breaks_no_other_data_source(missing):
    """
    Importing the package that Spark looks for never fails, whichever module is missing.
    """
    code = f"import sys; sys.modules[{missing!r}] = None; import pyspark_jetsync"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(pyspark.__version__ < "4", reason="PySpark 3.5 has no Python data sources")
@pytest.mark.parametrize("missing", ["jetsync", "attrs"])
def test_a_format_that_cannot_be_imported_says_why(missing):
    """
    The format is found although a package is missing, and using it says which one, and where.
    """
    code = (
        f"import sys; sys.modules[{missing!r}] = None; import pyspark_jetsync;"
        "print(pyspark_jetsync.DefaultSource.name()); pyspark_jetsync.DefaultSource({})"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert done.stdout.split() == ["jetstream"]
    assert f"(ModuleNotFoundError: import of {missing} halted" in done.stderr
    assert "install jetsync-spark in this Python" in done.stderr


def test_the_facade_imports_nothing_of_spark():
    """
    The modules of names are imported on first use.
    """
    code = (
        "import sys, jetsync_spark; dir(jetsync_spark); "
        "assert not {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules)"
    )

    subprocess.run([sys.executable, "-c", code], check=True)


def test_no_pyspark():
    """
    The error says how to get PySpark, which is not installed with the plugin.
    """
    code = "import sys; sys.modules['pyspark'] = None; from jetsync_spark import register"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "ModuleNotFoundError: jetsync_spark needs PySpark" in done.stderr
    assert "pip install 'jetsync-spark[pyspark]'" in done.stderr


def test_an_unknown_name():
    """
    An unknown name raises AttributeError, as in any module.
    """
    import jetsync_spark

    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        jetsync_spark.nothing  # noqa: B018 - it must fail.
