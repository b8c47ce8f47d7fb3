"""The hub: rows into a store over HTTP, from other stores and from any client. Never starts a JVM."""
