"""
Settings of a Django site with one application.
"""

DEBUG = True
SECRET_KEY = "for tests only"
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "site_urls"
INSTALLED_APPS = ["orders.apps.OrdersConfig"]
DATABASES: dict[str, object] = {}
USE_TZ = True
