"""
A Celery application. Its broker is a folder.
"""

import os

from celery import Celery
from clients import store

app = Celery("tasks", broker="filesystem://")
app.conf.broker_transport_options = {
    "data_folder_in": os.environ["BROKER"],
    "data_folder_out": os.environ["BROKER"],
    "control_folder": os.environ["BROKER"],
}


@app.task
def keep(number: int) -> None:
    """
    Store a number.
    """
    store(str(number))
