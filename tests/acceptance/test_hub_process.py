"""A hub of real processes, killed for real while a client sends: every row is stored exactly once."""
