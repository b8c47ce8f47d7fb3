-- What a row may never do, held by the database itself: the code's own guards are the first line, these the last.

CREATE FUNCTION floodmark_refuse() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN RAISE EXCEPTION ''floodmark: %'', TG_ARGV[0] USING ERRCODE = ''23514''; END';

CREATE TRIGGER block_decided_once BEFORE UPDATE OF state ON blocks FOR EACH ROW
WHEN (OLD.state <> 'reserved' AND NEW.state <> OLD.state)
EXECUTE FUNCTION floodmark_refuse('a decided block keeps its verdict');

CREATE TRIGGER horizon_never_back BEFORE UPDATE OF horizon ON datasets FOR EACH ROW
WHEN (NEW.horizon < OLD.horizon) EXECUTE FUNCTION floodmark_refuse('a horizon never goes back');

CREATE TRIGGER watermark_never_back BEFORE UPDATE OF seq ON watermarks FOR EACH ROW
WHEN (NEW.seq < OLD.seq) EXECUTE FUNCTION floodmark_refuse('a watermark never goes back');

CREATE TRIGGER counter_never_back BEFORE UPDATE OF value ON counters FOR EACH ROW
WHEN (NEW.value < OLD.value) EXECUTE FUNCTION floodmark_refuse('a counter never goes back');

CREATE TRIGGER landing_never_back BEFORE UPDATE OF sealed ON landing FOR EACH ROW
WHEN (NEW.sealed < OLD.sealed) EXECUTE FUNCTION floodmark_refuse('a sealed offset never goes back');

CREATE FUNCTION floodmark_open_intent() RETURNS trigger LANGUAGE plpgsql AS
'BEGIN
    IF NOT EXISTS (SELECT 1 FROM intents WHERE id = NEW.intent AND state = ''open'') THEN
        RAISE EXCEPTION ''floodmark: a chunk is acknowledged only while its intent is open'' USING ERRCODE = ''23514'';
    END IF;
    RETURN NEW;
END';

CREATE TRIGGER chunk_needs_open_intent BEFORE UPDATE OF state ON chunks FOR EACH ROW
WHEN (NEW.state = 'acknowledged') EXECUTE FUNCTION floodmark_open_intent();
