"""Delivery: every sink receives every row exactly once, in sequence order, at a cost that follows the new rows."""
