-- Credit (lifecycle 8). In thousandths of a cent; the sum of the account's ledger rows.
ALTER TABLE accounts ADD COLUMN credit_balance BIGINT NOT NULL DEFAULT 0;

CREATE TABLE credit_ledger (
    id BIGSERIAL PRIMARY KEY,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('grant_opening', 'grant_admin', 'burn_turn', 'expiry')),
    amount BIGINT NOT NULL,
    -- What makes a row unique of its kind: the turn, the grant that ended, the account of an opening grant.
    reference TEXT NOT NULL,
    expires_at TIMESTAMP,
    note TEXT,
    inserted_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX credit_ledger_reference ON credit_ledger (kind, reference);
CREATE INDEX credit_ledger_account ON credit_ledger (account_id, id);

-- Since when turns are billed, and up to which usage row all of them are.
CREATE TABLE credit_marks (
    name TEXT PRIMARY KEY NOT NULL,
    since TIMESTAMP NOT NULL,
    usage_id BIGINT NOT NULL
);

-- Launches that wait for a slot (lifecycle 2.7). `launch` holds the prompt and is empty in every final status (INV-106).
CREATE TABLE sandbox_requests (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    agent_id TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    kind TEXT NOT NULL CHECK (kind IN ('start', 'schedule_run')),
    status TEXT NOT NULL CHECK (status IN ('queued', 'starting', 'started', 'failed', 'cancelled', 'expired')),
    source TEXT NOT NULL CHECK (source IN ('api', 'agent', 'schedule')),
    schedule_id TEXT,
    launch TEXT,
    conversation_id TEXT,
    error TEXT,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL,
    CHECK ((status IN ('queued', 'starting')) = (launch IS NOT NULL))
);
CREATE INDEX sandbox_requests_active ON sandbox_requests (account_id, inserted_at, id)
    WHERE status IN ('queued', 'starting');
CREATE UNIQUE INDEX sandbox_requests_schedule ON sandbox_requests (schedule_id)
    WHERE status IN ('queued', 'starting');

-- The request that started a conversation: one request, one conversation (RUL-L-58).
ALTER TABLE conversations ADD COLUMN queue_request_id TEXT;
CREATE UNIQUE INDEX conversations_queue_request ON conversations (queue_request_id);

CREATE TABLE schedules (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    agent_id TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    name TEXT,
    cron TEXT NOT NULL,
    prompt TEXT NOT NULL,
    one_off BOOLEAN NOT NULL,
    enabled BOOLEAN NOT NULL,
    next_run_at TIMESTAMP,
    last_run_at TIMESTAMP,
    last_conversation_id TEXT,
    last_error TEXT,
    -- The fire time in work, when it was taken, and when it may be tried (again).
    firing_at TIMESTAMP,
    firing_since TIMESTAMP,
    firing_not_before TIMESTAMP,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE INDEX schedules_account ON schedules (account_id, agent_id);
CREATE INDEX schedules_due ON schedules (next_run_at) WHERE next_run_at IS NOT NULL;
CREATE INDEX schedules_firing ON schedules (firing_not_before) WHERE firing_not_before IS NOT NULL;
