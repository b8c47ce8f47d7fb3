-- Who may do what at the hub, for how long; whose a key is; and quarantine entries of many rows.

-- What a token may do beside sending chunks, as a JSON list of `capture` and `metrics`.
ALTER TABLE tokens ADD COLUMN rights TEXT NOT NULL DEFAULT '[]';

-- Tokens that were bound to no store were made for clients that capture.
UPDATE tokens SET rights = '["capture"]' WHERE origins IS NULL;

ALTER TABLE tokens ADD COLUMN expires_at TEXT;

-- Keys belong to the token that they came with. Whose the keys before were is not known: `*` stands for anybody.
CREATE TABLE keyed_requests (
    dataset TEXT NOT NULL REFERENCES datasets (name),
    token TEXT NOT NULL,
    key TEXT NOT NULL,
    digest TEXT NOT NULL,
    receipt TEXT NOT NULL,
    created_at TEXT NOT NULL,
    PRIMARY KEY (dataset, token, key)
);

INSERT INTO keyed_requests (dataset, token, key, digest, receipt, created_at)
SELECT dataset, '*', key, digest, receipt, created_at FROM requests;

DROP TABLE requests;

CREATE INDEX keyed_requests_by_age ON keyed_requests (created_at);

-- Rows of one request that do not fit for the same reason are one entry.
ALTER TABLE quarantine ADD COLUMN row_count BIGINT NOT NULL DEFAULT 1;

-- The token that they came with, if they came over HTTP.
ALTER TABLE quarantine ADD COLUMN token TEXT;
