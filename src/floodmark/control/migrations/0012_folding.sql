-- Records of the past that stand for many.

-- How many blocks a block stands for, and how many of those were committed although their settle function failed.
ALTER TABLE blocks ADD COLUMN folded BIGINT NOT NULL DEFAULT 1;

ALTER TABLE blocks ADD COLUMN unsettled BIGINT NOT NULL DEFAULT 0;

-- How many chunks a chunk stands for.
ALTER TABLE chunks ADD COLUMN folded BIGINT NOT NULL DEFAULT 1;
