"""
The public functions and methods of jetsync.
"""

from __future__ import annotations

import inspect

import jetsync


def public_functions():
    """
    Yield their names and functions; constructors of jetsync's own objects are left out.
    """
    for name in jetsync.__all__:
        value = getattr(jetsync, name)
        if inspect.isfunction(value):
            yield name, value
        elif inspect.isclass(value) and value.__module__ == "jetsync":
            for attribute in dir(value):
                member = inspect.getattr_static(value, attribute)
                function = getattr(member, "__func__", member)
                ours = inspect.isfunction(function) and function.__module__.startswith("jetsync")
                if ours and not attribute.startswith("_"):
                    yield f"{name}.{attribute}", function
