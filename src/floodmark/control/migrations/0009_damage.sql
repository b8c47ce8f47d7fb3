-- Damage that stays where it is: what is wrong with one dataset, and what was given up of it.

-- What the last flush of a dataset could not do, until one does it. One row per dataset.
CREATE TABLE problems (
    dataset TEXT PRIMARY KEY REFERENCES datasets (name),
    message TEXT NOT NULL,
    gist TEXT NOT NULL,
    failures BIGINT NOT NULL,
    segments_max BIGINT,
    first_at TEXT NOT NULL,
    last_at TEXT NOT NULL
);

-- How large the rows of a segment are when they are read; the file is compressed. Null: it was not measured.
ALTER TABLE segments ADD COLUMN unfolded_bytes BIGINT;

-- Why flush leaves a segment out, until somebody decides about it. Null: it does not.
ALTER TABLE segments ADD COLUMN set_aside TEXT;

-- Segments that somebody gave up: acknowledged rows that will never be committed.
CREATE TABLE losses (
    segment BIGINT PRIMARY KEY,
    dataset TEXT NOT NULL REFERENCES datasets (name),
    row_count BIGINT NOT NULL,
    after_seq BIGINT,
    through_seq BIGINT,
    kept_at TEXT,
    reason TEXT NOT NULL,
    recorded_at TEXT NOT NULL
);

CREATE INDEX losses_of_dataset ON losses (dataset);
