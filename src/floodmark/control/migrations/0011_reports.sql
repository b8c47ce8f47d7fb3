-- What is looked at while nothing is wrong: the last result of each task, and when rows were last delivered.

-- The last result of each task of maintenance, and of each audit. One row per task and what it was about: a dataset, a
-- sink, or nothing in particular ('').
CREATE TABLE reports (
    task TEXT NOT NULL,
    subject TEXT NOT NULL,
    ended_at TEXT NOT NULL,
    message TEXT NOT NULL,
    details TEXT NOT NULL,
    failures BIGINT NOT NULL CHECK (failures >= 0),
    failing_since TEXT,
    PRIMARY KEY (task, subject)
);

-- When a watermark was moved by a delivery. Null: not since this column is here.
ALTER TABLE watermarks ADD COLUMN moved_at TEXT;
