-- The control database, first version. Plain SQL that SQLite and PostgreSQL both take; triggers stand in the
-- file of each dialect beside this one. Times are ISO 8601 texts in UTC; checksums are 16 hex digits.
-- A blank line ends a statement.

CREATE TABLE counters (
    name TEXT PRIMARY KEY,
    value BIGINT NOT NULL CHECK (value >= 0)
);

INSERT INTO counters (name, value) VALUES ('sequence', 0), ('registration', 0);

CREATE TABLE datasets (
    name TEXT PRIMARY KEY,
    identity_columns TEXT NOT NULL,
    event_time TEXT,
    partition_by TEXT NOT NULL,
    columns TEXT NOT NULL,
    settle TEXT,
    generation BIGINT NOT NULL CHECK (generation >= 1),
    fenced BOOLEAN NOT NULL,
    horizon BIGINT NOT NULL CHECK (horizon >= 0),
    synced_snapshot BIGINT,
    created_at TEXT NOT NULL
);

CREATE TABLE landing (
    file TEXT PRIMARY KEY,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    sealed BIGINT NOT NULL CHECK (sealed >= 0),
    state TEXT NOT NULL CHECK (state IN ('open', 'removed'))
);

CREATE TABLE blocks (
    id TEXT PRIMARY KEY,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    after_seq BIGINT NOT NULL UNIQUE,
    through_seq BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('reserved', 'committed', 'void')),
    generation BIGINT NOT NULL,
    table_uuid TEXT NOT NULL,
    base_snapshot BIGINT,
    snapshot BIGINT,
    row_count BIGINT NOT NULL DEFAULT 0,
    duplicates BIGINT NOT NULL DEFAULT 0,
    reserved_at TEXT NOT NULL,
    decided_at TEXT,
    reason TEXT,
    CHECK (after_seq >= 0 AND after_seq < through_seq)
);

-- At most one undecided block per dataset: whoever finds it settles it before reserving another.
CREATE UNIQUE INDEX one_undecided_block ON blocks (dataset) WHERE state = 'reserved';

CREATE INDEX blocks_in_order ON blocks (dataset, through_seq);

CREATE TABLE block_partitions (
    block TEXT NOT NULL REFERENCES blocks (id),
    partition_key TEXT NOT NULL,
    row_count BIGINT NOT NULL,
    checksum TEXT NOT NULL,
    first_seq BIGINT NOT NULL,
    last_seq BIGINT NOT NULL,
    PRIMARY KEY (block, partition_key)
);

CREATE TABLE partitions (
    dataset TEXT NOT NULL REFERENCES datasets (name),
    partition_key TEXT NOT NULL,
    row_count BIGINT NOT NULL,
    checksum TEXT NOT NULL,
    last_seq BIGINT NOT NULL,
    PRIMARY KEY (dataset, partition_key)
);

CREATE TABLE segments (
    id BIGINT PRIMARY KEY,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    state TEXT NOT NULL CHECK (state IN ('writing', 'sealed', 'consumed', 'dropped')),
    registered BIGINT UNIQUE,
    path TEXT NOT NULL,
    owner TEXT NOT NULL,
    row_count BIGINT NOT NULL DEFAULT 0,
    byte_count BIGINT NOT NULL DEFAULT 0,
    event_min BIGINT,
    event_max BIGINT,
    block TEXT REFERENCES blocks (id),
    block_offset BIGINT,
    landing_file TEXT,
    landing_from BIGINT,
    landing_through BIGINT,
    source TEXT,
    ordinal BIGINT,
    created_at TEXT NOT NULL,
    UNIQUE (landing_file, landing_from),
    UNIQUE (source, ordinal),
    CHECK (state <> 'sealed' OR registered IS NOT NULL)
);

CREATE INDEX segments_waiting ON segments (dataset, registered) WHERE state = 'sealed';

CREATE INDEX segments_of_block ON segments (block);

CREATE INDEX segments_unfinished ON segments (dataset) WHERE state = 'writing';

CREATE TABLE segment_partitions (
    segment BIGINT NOT NULL REFERENCES segments (id),
    partition_key TEXT NOT NULL,
    row_count BIGINT NOT NULL,
    checksum TEXT NOT NULL,
    first_row BIGINT NOT NULL,
    last_row BIGINT NOT NULL,
    PRIMARY KEY (segment, partition_key)
);

CREATE TABLE sinks (
    instance TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    settings TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('active', 'blocked', 'removed')),
    reason TEXT,
    created_at TEXT NOT NULL
);

CREATE UNIQUE INDEX one_sink_of_a_name ON sinks (name) WHERE state <> 'removed';

CREATE TABLE watermarks (
    sink TEXT NOT NULL REFERENCES sinks (instance),
    dataset TEXT NOT NULL REFERENCES datasets (name),
    partition_key TEXT NOT NULL,
    seq BIGINT NOT NULL CHECK (seq >= 0),
    row_count BIGINT NOT NULL DEFAULT 0,
    checksum TEXT NOT NULL DEFAULT '0000000000000000',
    PRIMARY KEY (sink, dataset, partition_key)
);

CREATE TABLE intents (
    id TEXT PRIMARY KEY,
    sink TEXT NOT NULL REFERENCES sinks (instance),
    dataset TEXT NOT NULL REFERENCES datasets (name),
    partition_key TEXT NOT NULL,
    after_seq BIGINT NOT NULL,
    through_seq BIGINT NOT NULL,
    settings TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'closed')),
    pinned_at TEXT NOT NULL,
    CHECK (after_seq >= 0 AND after_seq < through_seq)
);

CREATE UNIQUE INDEX one_open_intent ON intents (sink, dataset, partition_key) WHERE state = 'open';

CREATE TABLE chunks (
    intent TEXT NOT NULL REFERENCES intents (id),
    after_seq BIGINT NOT NULL,
    through_seq BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'acknowledged', 'quarantined')),
    row_count BIGINT,
    checksum TEXT,
    acknowledged_at TEXT,
    PRIMARY KEY (intent, after_seq),
    UNIQUE (intent, through_seq),
    CHECK (after_seq < through_seq)
);

CREATE TABLE ledger (
    origin TEXT NOT NULL,
    dataset TEXT NOT NULL,
    partition_key TEXT NOT NULL,
    through_seq BIGINT NOT NULL CHECK (through_seq >= 0),
    row_count BIGINT NOT NULL,
    checksum TEXT NOT NULL,
    given_up TEXT NOT NULL,
    version BIGINT NOT NULL,
    PRIMARY KEY (origin, dataset, partition_key)
);

CREATE TABLE quarantine (
    id TEXT PRIMARY KEY,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    state TEXT NOT NULL CHECK (state IN ('held', 'replayed', 'discarded')),
    reason TEXT NOT NULL,
    payload TEXT,
    payload_path TEXT,
    sink TEXT,
    seq BIGINT,
    landing_file TEXT,
    landing_offset BIGINT,
    landing_row BIGINT,
    created_at TEXT NOT NULL,
    decided_at TEXT,
    UNIQUE (sink, dataset, seq),
    UNIQUE (landing_file, landing_offset, landing_row)
);

CREATE INDEX quarantine_held ON quarantine (dataset, state);

CREATE TABLE rebuilds (
    id TEXT PRIMARY KEY,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    state TEXT NOT NULL CHECK (state IN ('open', 'done', 'abandoned')),
    epoch BIGINT NOT NULL,
    settings TEXT NOT NULL
);

CREATE UNIQUE INDEX one_open_rebuild ON rebuilds (dataset) WHERE state = 'open';

CREATE TABLE sources (
    id TEXT PRIMARY KEY,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    position TEXT NOT NULL,
    next_ordinal BIGINT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('open', 'done'))
);

CREATE TABLE removals (
    operation TEXT NOT NULL,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    partition_key TEXT NOT NULL,
    after_seq BIGINT NOT NULL,
    through_seq BIGINT NOT NULL,
    row_count BIGINT NOT NULL,
    checksum TEXT NOT NULL,
    reason TEXT NOT NULL,
    removed_at TEXT NOT NULL,
    PRIMARY KEY (operation, dataset, partition_key)
);
