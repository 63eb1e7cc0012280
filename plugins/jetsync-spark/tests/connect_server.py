"""
A server of Spark Connect in a process of its own, and sessions on it.
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
from pathlib import Path
from unittest import mock

import pyspark
from standalone import end_session
from waiting import eventually

__all__ = ["ConnectServer", "connected"]


class ConnectServer:
    """
    A server on two threads; a context manager.
    """

    def __init__(self, folder, **config):
        self._log = folder / "connect.log"
        self._config = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": "0",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.memory": "1g",
            "spark.master": "local[2,2]",
            "spark.sql.session.timeZone": "UTC",
            "spark.sql.shuffle.partitions": "2",
            "spark.sql.warehouse.dir": str(folder / "warehouse"),
            "spark.ui.enabled": "false",
            **{name.replace("__", "."): value for name, value in config.items()},
        }
        self._process = None
        self.url = None

    def __enter__(self):
        home = Path(pyspark.__file__).parent
        settings = [
            each for name, value in self._config.items() for each in ("--conf", f"{name}={value}")
        ]
        with self._log.open("wb") as file:
            self._process = subprocess.Popen(
                [
                    *(str(home / "bin" / "spark-submit"), "--class"),
                    "org.apache.spark.sql.connect.service.SparkConnectServer",
                    *settings,
                ],
                env={**os.environ, "SPARK_HOME": str(home), "SPARK_LOCAL_IP": "127.0.0.1"},
                cwd=self._log.parent,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            port = eventually(self._port, 240)
        except BaseException:
            self.kill()
            raise
        self.url = f"sc://127.0.0.1:{port}"
        return self

    def __exit__(self, *_):
        self.kill()

    def _port(self):
        assert self._process.poll() is None, self._log.read_text()[-4000:]
        said = re.search(r"Connect server started at:? .*?:(\d+)", self._log.read_text())
        return said and said.group(1)

    def kill(self):
        """
        Kill the server, its executor and its Pythons, as a crash would.
        """
        if self._process is None:
            return
        process, self._process = self._process, None
        process.kill()
        end_session(process)


@contextlib.contextmanager
def connected(server):
    """
    Open a session; a context manager.

    PySpark's functions take the kind of session from the environment, which is restored.
    """
    from pyspark.sql import SparkSession

    with mock.patch.dict(os.environ):
        session = SparkSession.builder.remote(server.url).create()
        try:
            yield session
        finally:
            session.stop()
