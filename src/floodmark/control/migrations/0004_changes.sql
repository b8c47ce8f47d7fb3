-- Changes of committed rows: the order in which they were made, the table state each was planned against, what each touches.

-- The order of events in this database. Times are for people: a clock may be set back.
INSERT INTO counters (name, value) VALUES ('event', 0);

ALTER TABLE sinks ADD COLUMN number BIGINT NOT NULL DEFAULT 0;

ALTER TABLE operations ADD COLUMN number BIGINT NOT NULL DEFAULT 0;

-- When its rows were gone or changed.
ALTER TABLE operations ADD COLUMN ended BIGINT;

-- The table state that an operation was planned against.
ALTER TABLE operations ADD COLUMN table_uuid TEXT;

ALTER TABLE operations ADD COLUMN base_snapshot BIGINT;

-- The last event at which a change of the dataset's rows began or ended.
ALTER TABLE datasets ADD COLUMN changed BIGINT NOT NULL DEFAULT 0;

-- Older records have nothing but their times. Of two at the same time the removal counts as the earlier one: what it took
-- is then no proof that the sink had it.
UPDATE sinks SET number =
    (SELECT count(*) FROM sinks AS other WHERE other.created_at <= sinks.created_at)
    + (SELECT count(*) FROM operations WHERE operations.begun_at <= sinks.created_at);

UPDATE operations SET number =
    (SELECT count(*) FROM operations AS other WHERE other.begun_at <= operations.begun_at)
    + (SELECT count(*) FROM sinks WHERE sinks.created_at < operations.begun_at);

UPDATE counters SET value = (SELECT count(*) FROM sinks) + (SELECT count(*) FROM operations) WHERE name = 'event';

UPDATE operations SET ended = (SELECT value FROM counters WHERE name = 'event') WHERE state <> 'planned';

UPDATE datasets SET changed = (SELECT value FROM counters WHERE name = 'event');

-- Where the rows lie that an operation removes or changes.
CREATE TABLE touched (
    operation TEXT NOT NULL REFERENCES operations (id),
    dataset TEXT NOT NULL REFERENCES datasets (name),
    partition_key TEXT NOT NULL,
    after_seq BIGINT NOT NULL,
    through_seq BIGINT NOT NULL,
    PRIMARY KEY (operation, partition_key),
    CHECK (after_seq < through_seq)
);

CREATE INDEX touched_partition ON touched (dataset, partition_key, through_seq);

INSERT INTO touched (operation, dataset, partition_key, after_seq, through_seq)
    SELECT operations.id, removals.dataset, removals.partition_key, min(removals.after_seq), max(removals.through_seq)
    FROM operations
    JOIN removals ON removals.operation = operations.id
        OR substr(removals.operation, 1, length(operations.id) + 1) = operations.id || '.'
    GROUP BY operations.id, removals.dataset, removals.partition_key;

-- Of a part of a removal, the rows for which a sink's filter is true, from before the first to the last of them: a
-- destination counts no others, and its own count may end with the last one.
CREATE TABLE filtered_removals (
    operation TEXT NOT NULL,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    partition_key TEXT NOT NULL,
    filter TEXT NOT NULL,
    after_seq BIGINT,
    through_seq BIGINT,
    row_count BIGINT NOT NULL,
    checksum TEXT NOT NULL,
    PRIMARY KEY (operation, dataset, partition_key, filter),
    CHECK (row_count = 0 OR after_seq < through_seq)
);
