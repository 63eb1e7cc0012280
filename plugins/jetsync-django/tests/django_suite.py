"""
Run Django's own tests of caches and sessions on the cache of this plugin.

    python django_suite.py FOLDER URL [NAME ...]

FOLDER is `tests` of Django's sdist, which is not part of this repository, and URL the server.
"""

from __future__ import annotations

import sys
import unittest

import django
from django.conf import settings

CACHE = {"BACKEND": "jetsync_django.cache.JetStreamCache", "LOCATION": sys.argv[2]}


def main() -> int:
    """
    Run the tests, and return the exit status.
    """
    sys.path.insert(0, sys.argv[1])
    settings.configure(
        CACHES={"default": CACHE},
        DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
        DEFAULT_AUTO_FIELD="django.db.models.AutoField",
        INSTALLED_APPS=[
            "django.contrib.contenttypes",
            "django.contrib.sessions",
            "cache",
            "sessions_tests",
        ],
        ROOT_URLCONF="",
        SECRET_KEY="not secret",
        USE_TZ=False,
    )
    django.setup()

    from cache.tests import BaseCacheTests, caches_setting_for_tests
    from django.test import TestCase, override_settings
    from django.test.runner import DiscoverRunner
    from sessions_tests.tests import CacheDBSessionTests, CacheSessionTests

    # As for Redis, which does not limit the number of entries either.
    caches = caches_setting_for_tests(base=CACHE, exclude={"cull", "zero_cull"})

    @override_settings(CACHES=caches)
    class JetStreamCacheTests(BaseCacheTests, TestCase):
        pass

    names = sys.argv[3:]
    classes = [JetStreamCacheTests, CacheSessionTests, CacheDBSessionTests]
    suite = unittest.TestSuite()
    for each in classes:
        suite.addTests(
            test
            for test in unittest.defaultTestLoader.loadTestsFromTestCase(each)
            if not names or test._testMethodName in names
        )
    runner = DiscoverRunner(verbosity=2)
    runner.setup_test_environment()
    old = runner.setup_databases(aliases={"default": False})
    result = runner.run_suite(suite)
    runner.teardown_databases(old)
    return len(result.failures) + len(result.errors)


if __name__ == "__main__":
    sys.exit(main())
