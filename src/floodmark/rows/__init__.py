"""The one parser: rows fitted to a schema, the landing log's envelope, content hashes. Pure.

Nothing is imported here: what reads JSON or checks a single row does not need Arrow.
"""
