-- What is one row, and what cannot be a row.

-- What a row whose identity is null is compared by. Datasets of before compare nothing, as they did.
ALTER TABLE datasets ADD COLUMN identity_null TEXT NOT NULL DEFAULT 'keep' CHECK (identity_null IN ('content', 'keep', 'quarantine'));

-- Whether rows of one identity and different event times are one row.
ALTER TABLE datasets ADD COLUMN identity_scope TEXT NOT NULL DEFAULT 'event_time' CHECK (identity_scope IN ('event_time', 'all'));

-- What an entry came from: the place in its source and the content, as a hash.
ALTER TABLE quarantine ADD COLUMN source_key TEXT;

CREATE UNIQUE INDEX quarantine_source ON quarantine (dataset, source_key) WHERE source_key IS NOT NULL;
