-- Debts (RUL-L-3): when the lease of an operation ended, when a probe came after it, when the last look was.
ALTER TABLE operations ADD COLUMN lease_until TIMESTAMP;
ALTER TABLE operations ADD COLUMN probed_at TIMESTAMP;
ALTER TABLE operations ADD COLUMN settled_at TIMESTAMP;
ALTER TABLE operations ADD COLUMN closed_at TIMESTAMP;
-- The settle pass tries again then.
ALTER TABLE operations ADD COLUMN next_attempt_at TIMESTAMP;
-- No lease was ever longer than a build's; what was settled before is not looked at again.
UPDATE operations SET lease_until = started_at + interval '30 minutes' WHERE outcome IS NULL OR outcome IN ('unknown', 'superseded');
UPDATE operations SET settled_at = finished_at, closed_at = finished_at
    WHERE finished_at IS NOT NULL AND outcome IN ('unknown', 'superseded');
CREATE INDEX operations_debts ON operations (machine_id)
    WHERE closed_at IS NULL AND (outcome IS NULL OR outcome IN ('unknown', 'superseded'));
-- For retention.
CREATE INDEX operations_started ON operations (started_at);

-- How often a row was tried in vain (RUL-L-55).
ALTER TABLE machines ADD COLUMN attempts BIGINT NOT NULL DEFAULT 0;
-- For names of a provider's listing, terminal rows included.
CREATE INDEX machines_provider_name ON machines (provider, name);

-- What the passes look for: few rows of many.
CREATE INDEX machines_building ON machines (inserted_at) WHERE status IN ('pending', 'starting');
CREATE INDEX machines_ephemeral ON machines (updated_at) WHERE mode = 'ephemeral' AND status IN ('ready', 'suspended');

-- Which process runs a pass, and until when nobody else does (RUL-L-56).
CREATE TABLE pass_leases (
    name TEXT PRIMARY KEY NOT NULL,
    holder TEXT,
    epoch BIGINT NOT NULL,
    until TIMESTAMP
);
