"""
Compare brokers of Celery: JetStream, Redis and RabbitMQ, each with the same worker.
"""
