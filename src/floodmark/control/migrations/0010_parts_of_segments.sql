-- A segment that does not fit the heap alone is replaced by its parts.

-- Of a part: the registration number of the segment that it was made of, in whose place it waits.
ALTER TABLE segments ADD COLUMN part_of BIGINT;

CREATE INDEX segments_parts ON segments (part_of) WHERE part_of IS NOT NULL;
