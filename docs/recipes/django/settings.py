"""
The settings of the site.
"""

SECRET_KEY = "change me"  # noqa: S105 - a site without logins
ALLOWED_HOSTS = ["*"]
ROOT_URLCONF = "urls"
USE_TZ = True
