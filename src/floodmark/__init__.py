"""Floodmark."""
