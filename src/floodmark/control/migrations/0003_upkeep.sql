-- What upkeep records.

-- Rows with an older event time were pruned once, and do not come back (microseconds since 1970).
ALTER TABLE datasets ADD COLUMN event_cutoff BIGINT;

-- How the tables of a dataset are laid out, as JSON: bucket width, format version, warehouse.
ALTER TABLE datasets ADD COLUMN layout TEXT NOT NULL DEFAULT '{}';

-- Rows of a block that were too old to come back, and rows that its settle function dropped.
ALTER TABLE blocks ADD COLUMN expired BIGINT NOT NULL DEFAULT 0;

ALTER TABLE blocks ADD COLUMN dropped BIGINT NOT NULL DEFAULT 0;

-- A removal is recorded before its rows go, and is done when they are gone.
ALTER TABLE removals ADD COLUMN state TEXT NOT NULL DEFAULT 'done' CHECK (state IN ('planned', 'done'));

-- A removal of rows, by retention, by purge or because they turned out to be others: what it removes is fixed before the first row goes.
CREATE TABLE operations (
    id TEXT PRIMARY KEY,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    kind TEXT NOT NULL CHECK (kind IN ('retain', 'purge', 'settle')),
    state TEXT NOT NULL CHECK (state IN ('planned', 'removed', 'done')),
    selection TEXT NOT NULL,
    begun_at TEXT NOT NULL,
    ended_at TEXT
);

-- One at a time: whoever finds another's continues it first.
CREATE UNIQUE INDEX one_removal_at_a_time ON operations (dataset) WHERE state <> 'done';

CREATE INDEX removals_of_partition ON removals (dataset, partition_key, through_seq);

-- What a sink will never get, because somebody said so.
CREATE TABLE forfeits (
    operation TEXT NOT NULL,
    sink TEXT NOT NULL REFERENCES sinks (instance),
    dataset TEXT NOT NULL REFERENCES datasets (name),
    partition_key TEXT NOT NULL,
    after_seq BIGINT NOT NULL,
    through_seq BIGINT NOT NULL,
    row_count BIGINT NOT NULL,
    checksum TEXT NOT NULL,
    recorded_at TEXT NOT NULL,
    PRIMARY KEY (operation, sink, dataset, partition_key),
    CHECK (after_seq < through_seq)
);

-- Identities that were purged, hashed: no backfill brings them back.
CREATE TABLE purged (
    dataset TEXT NOT NULL REFERENCES datasets (name),
    identity_hash TEXT NOT NULL,
    operation TEXT NOT NULL,
    PRIMARY KEY (dataset, identity_hash)
);

-- The tables of a dataset, past and present; a name is never used again.
CREATE TABLE generations (
    dataset TEXT NOT NULL REFERENCES datasets (name),
    generation BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('staging', 'current', 'retired', 'removed')),
    location TEXT,
    retired_at TEXT,
    PRIMARY KEY (dataset, generation)
);

ALTER TABLE rebuilds ADD COLUMN generation BIGINT;

ALTER TABLE rebuilds ADD COLUMN started_at TEXT;

-- When a landing file was removed: its row is needed for a while, and then goes too.
ALTER TABLE landing ADD COLUMN removed_at TEXT;
