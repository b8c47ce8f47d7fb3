-- What the last tick of a sink met, and when it is tried again; both are null after one that got through.

ALTER TABLE sinks ADD COLUMN problem TEXT;

ALTER TABLE sinks ADD COLUMN next_attempt_at TEXT;
