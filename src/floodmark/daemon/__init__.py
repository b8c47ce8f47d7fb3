"""`floodmark run`: one process that flushes and delivers automatically."""
