"""The dashboard: pages about a store, served by `run` and by the hub. Read-only; never starts a JVM."""
