"""
The set-up of the application.
"""

from clients import client
from django.apps import AppConfig


class OrdersConfig(AppConfig):
    """
    Connect when Django is ready. Under the development server, the reloader connects too.
    """

    name = "orders"

    def ready(self) -> None:
        """
        Connect.
        """
        client()
