"""Backfill: history is loaded beside live capture, without a duplicate and without a hole, however often it is run."""
