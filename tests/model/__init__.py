"""All interleavings of small cases: the protocols as state machines, and a checker that walks through every state."""
