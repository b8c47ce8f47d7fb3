-- Numbers and stores that were kept as JSON lists so far.
INSERT INTO ledger_given_up (origin, dataset, partition_key, after_seq, through_seq)
SELECT ledger.origin, ledger.dataset, ledger.partition_key, item.value::bigint - 1, item.value::bigint
FROM ledger CROSS JOIN LATERAL json_array_elements_text(ledger.given_up::json) AS item (value);

UPDATE ledger SET given_up_rows = json_array_length(given_up::json);

INSERT INTO provenance (origin, dataset, store)
SELECT DISTINCT ledger.origin, ledger.dataset, item.value
FROM ledger CROSS JOIN LATERAL json_array_elements_text(ledger.path::json) AS item (value)
WHERE ledger.row_count > 0
ON CONFLICT DO NOTHING;
