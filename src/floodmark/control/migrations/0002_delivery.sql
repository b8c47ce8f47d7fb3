-- What delivery and the hub need beyond the first version.

-- Where a chunk came from, if it is part of one that was split: the whole chunk it began as, and its rows.
ALTER TABLE chunks ADD COLUMN root_after BIGINT;

ALTER TABLE chunks ADD COLUMN root_rows BIGINT;

-- Table sinks: the target as it stood before the first attempt, as JSON.
ALTER TABLE chunks ADD COLUMN base TEXT;

CREATE INDEX chunks_of_root ON chunks (intent, root_after);

CREATE INDEX intents_of_channel ON intents (sink, dataset, partition_key, through_seq);

-- Rows that a destination refused: which slice they belong to, and their part of its checksum.
ALTER TABLE quarantine ADD COLUMN partition_key TEXT;

ALTER TABLE quarantine ADD COLUMN checksum TEXT;

-- When a sink's last scheduled tick was due: a missed one is caught up.
ALTER TABLE sinks ADD COLUMN ticked_at TEXT;

-- The stores that a channel's rows have passed through on their way here, as a JSON list: loops are refused.
ALTER TABLE ledger ADD COLUMN path TEXT NOT NULL DEFAULT '[]';

ALTER TABLE ledger ADD COLUMN updated_at TEXT;

-- Who may send to the hub. The token itself is never stored; origins and datasets are JSON lists, null means any.
CREATE TABLE tokens (
    name TEXT PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    origins TEXT,
    datasets TEXT,
    created_at TEXT NOT NULL,
    revoked_at TEXT
);

-- Captures over HTTP that carried a key of their client's: the same key again gets the same receipt, and stores nothing.
CREATE TABLE requests (
    dataset TEXT NOT NULL REFERENCES datasets (name),
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    receipt TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (dataset, key)
);
