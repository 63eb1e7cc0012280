"""
Kinds of contracts: Avro, JSON Schema and pydantic.
"""
