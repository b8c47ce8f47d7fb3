"""The kinds of destinations, one file each."""
