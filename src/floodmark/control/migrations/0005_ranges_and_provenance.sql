-- What a hub knows of rows that never came, of where rows came from, and of who may say so.

-- How many rows of a channel were given up and have not come since. Where they are stands in `ledger_given_up`.
ALTER TABLE ledger ADD COLUMN given_up_rows BIGINT NOT NULL DEFAULT 0;

-- Ranges of a channel of which every row was given up. A row that comes later is cut out of its range.
CREATE TABLE ledger_given_up (
    origin TEXT NOT NULL,
    dataset TEXT NOT NULL,
    partition_key TEXT NOT NULL,
    after_seq BIGINT NOT NULL,
    through_seq BIGINT NOT NULL,
    PRIMARY KEY (origin, dataset, partition_key, after_seq),
    CHECK (after_seq < through_seq)
);

-- The stores that rows have passed through on their way here, as the origin says that sent them: each once.
CREATE TABLE provenance (
    origin TEXT NOT NULL,
    dataset TEXT NOT NULL,
    store TEXT NOT NULL,
    PRIMARY KEY (origin, dataset, store)
);

CREATE INDEX provenance_of_dataset ON provenance (dataset, store);

INSERT INTO provenance (origin, dataset, store) SELECT DISTINCT origin, dataset, origin FROM ledger WHERE row_count > 0;

-- Whether a token may bring rows that passed through stores which it is not bound to.
ALTER TABLE tokens ADD COLUMN relay BIGINT NOT NULL DEFAULT 1;

-- The store behind a forward sink's address, by its id: asked at first contact, and no other is delivered to.
ALTER TABLE sinks ADD COLUMN hub TEXT;
