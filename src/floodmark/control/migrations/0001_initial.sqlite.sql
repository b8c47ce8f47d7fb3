-- What a row may never do, held by the database itself: the code's own guards are the first line, these the last.

CREATE TRIGGER block_decided_once BEFORE UPDATE OF state ON blocks
WHEN OLD.state <> 'reserved' AND NEW.state <> OLD.state
BEGIN SELECT RAISE(ABORT, 'floodmark: a decided block keeps its verdict'); END;

CREATE TRIGGER horizon_never_back BEFORE UPDATE OF horizon ON datasets WHEN NEW.horizon < OLD.horizon
BEGIN SELECT RAISE(ABORT, 'floodmark: a horizon never goes back'); END;

CREATE TRIGGER watermark_never_back BEFORE UPDATE OF seq ON watermarks WHEN NEW.seq < OLD.seq
BEGIN SELECT RAISE(ABORT, 'floodmark: a watermark never goes back'); END;

CREATE TRIGGER counter_never_back BEFORE UPDATE OF value ON counters WHEN NEW.value < OLD.value
BEGIN SELECT RAISE(ABORT, 'floodmark: a counter never goes back'); END;

CREATE TRIGGER landing_never_back BEFORE UPDATE OF sealed ON landing WHEN NEW.sealed < OLD.sealed
BEGIN SELECT RAISE(ABORT, 'floodmark: a sealed offset never goes back'); END;

CREATE TRIGGER chunk_needs_open_intent BEFORE UPDATE OF state ON chunks
WHEN NEW.state = 'acknowledged' AND NOT EXISTS (SELECT 1 FROM intents WHERE id = NEW.intent AND state = 'open')
BEGIN SELECT RAISE(ABORT, 'floodmark: a chunk is acknowledged only while its intent is open'); END;
