DROP TABLE schedules;
DROP INDEX conversations_queue_request;
ALTER TABLE conversations DROP COLUMN queue_request_id;
DROP TABLE sandbox_requests;
DROP TABLE credit_marks;
DROP TABLE credit_ledger;
ALTER TABLE accounts DROP COLUMN credit_balance;
