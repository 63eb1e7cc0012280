"""
Reading with consumers: fetch, next, consume, ordered consumers and core subscriptions (ADR-37).
"""
