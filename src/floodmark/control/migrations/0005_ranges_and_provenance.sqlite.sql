-- Numbers and stores that were kept as JSON lists so far.
INSERT INTO ledger_given_up (origin, dataset, partition_key, after_seq, through_seq)
SELECT ledger.origin, ledger.dataset, ledger.partition_key, item.value - 1, item.value
FROM ledger, json_each(ledger.given_up) AS item;

UPDATE ledger SET given_up_rows = json_array_length(given_up);

INSERT INTO provenance (origin, dataset, store)
SELECT DISTINCT ledger.origin, ledger.dataset, item.value
FROM ledger, json_each(ledger.path) AS item
WHERE ledger.row_count > 0
ON CONFLICT DO NOTHING;
