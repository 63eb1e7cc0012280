"""
The settings of Celery.
"""

broker_url = "redis://localhost"
