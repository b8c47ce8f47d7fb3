-- What a person changes: pauses, sinks that begin again, datasets that are removed.

-- Since when nothing of it is delivered, or committed and delivered. Null: it is not paused.
ALTER TABLE sinks ADD COLUMN paused_at TEXT;

ALTER TABLE datasets ADD COLUMN paused_at TEXT;

-- Of a sink that was rewound: the name under which the destination knows it, which is that of the first one.
ALTER TABLE sinks ADD COLUMN known_as TEXT;

-- Datasets that were removed. Their records are gone, their names are not used again; `leftovers` are still to remove.
CREATE TABLE removed_datasets (
    name TEXT PRIMARY KEY,
    removed_at TEXT NOT NULL,
    leftovers TEXT
);
