"""The hub: rows into a store over HTTP, from other stores and from anybody else. Never starts a JVM."""
