"""
Reading by sequence or subject without a consumer (ADR-31).
"""
