"""Real kills, with more around them than `floodmark torture` has: a hub of our own, servers that go away underneath."""
