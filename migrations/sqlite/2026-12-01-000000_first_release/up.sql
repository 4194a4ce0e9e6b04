-- The entities of the first release (lifecycle 1). Ids are text, JSON is text, times are UTC without zone (RUL-20).

CREATE TABLE accounts (
    id TEXT PRIMARY KEY NOT NULL,
    email TEXT,
    email_verified_at TIMESTAMP,
    is_admin BOOLEAN NOT NULL,
    comped BOOLEAN NOT NULL,
    sandbox_limit_override BIGINT,
    suspended_at TIMESTAMP,
    deleting_at TIMESTAMP,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX accounts_email ON accounts (lower(email));

-- One data key an account, wrapped by the master key. Deleting the row shreds every secret of the account.
CREATE TABLE data_keys (
    account_id TEXT PRIMARY KEY NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    wrapped_key BLOB NOT NULL,
    nonce BLOB NOT NULL,
    inserted_at TIMESTAMP NOT NULL
);

CREATE TABLE api_keys (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    prefix TEXT NOT NULL,
    sha256 BLOB NOT NULL,
    scope TEXT NOT NULL CHECK (scope IN ('full', 'sprite', 'runner')),
    conversation_id TEXT,
    runner_name TEXT,
    expires_at TIMESTAMP,
    revoked_at TIMESTAMP,
    last_used_at TIMESTAMP,
    inserted_at TIMESTAMP NOT NULL,
    -- A runner key carries exactly one name, and no other key does; likewise a sandbox key and its conversation.
    CHECK ((scope = 'runner') = (runner_name IS NOT NULL)),
    CHECK ((scope = 'sprite') = (conversation_id IS NOT NULL))
);
CREATE UNIQUE INDEX api_keys_sha256 ON api_keys (sha256);
CREATE INDEX api_keys_account ON api_keys (account_id);

CREATE TABLE environments (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    packages TEXT NOT NULL,
    env_vars TEXT NOT NULL,
    setup_script TEXT NOT NULL,
    setup_timeout_seconds BIGINT NOT NULL,
    networking_type TEXT NOT NULL,
    networking_config TEXT NOT NULL,
    repositories TEXT NOT NULL,
    metadata TEXT NOT NULL,
    checkpoint TEXT,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX environments_name ON environments (account_id, name);

CREATE TABLE vaults (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    description TEXT NOT NULL,
    metadata TEXT NOT NULL,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX vaults_name ON vaults (account_id, name);

-- Values are AES-256-GCM under the account's data key; the row's own identity is the additional data.
CREATE TABLE secrets (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    environment_id TEXT REFERENCES environments (id) ON DELETE CASCADE,
    vault_id TEXT REFERENCES vaults (id) ON DELETE CASCADE,
    key TEXT NOT NULL,
    sealed BLOB NOT NULL,
    nonce BLOB NOT NULL,
    expires_at TIMESTAMP,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL,
    CHECK ((environment_id IS NULL) <> (vault_id IS NULL))
);
CREATE UNIQUE INDEX secrets_environment_key ON secrets (environment_id, key) WHERE environment_id IS NOT NULL;
CREATE UNIQUE INDEX secrets_vault_key ON secrets (vault_id, key) WHERE vault_id IS NOT NULL;
CREATE INDEX secrets_account ON secrets (account_id);

CREATE TABLE agents (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    runtime TEXT NOT NULL,
    environment_id TEXT REFERENCES environments (id) ON DELETE SET NULL,
    version_id TEXT NOT NULL,
    version BIGINT NOT NULL,
    -- The whole configuration but the columns above, as JSON.
    config TEXT NOT NULL,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX agents_name ON agents (account_id, name);
CREATE INDEX agents_environment ON agents (environment_id);

CREATE TABLE agent_versions (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    agent_id TEXT NOT NULL REFERENCES agents (id) ON DELETE CASCADE,
    version BIGINT NOT NULL,
    config TEXT NOT NULL,
    inserted_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX agent_versions_number ON agent_versions (agent_id, version);

CREATE TABLE runners (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    hostname TEXT,
    os TEXT,
    arch TEXT,
    version TEXT,
    root TEXT,
    root_id TEXT,
    features TEXT NOT NULL,
    connected_at TIMESTAMP,
    last_seen_at TIMESTAMP,
    forgotten_at TIMESTAMP,
    inserted_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX runners_name ON runners (account_id, name);

CREATE TABLE machines (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT REFERENCES accounts (id) ON DELETE SET NULL,
    name TEXT NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('pending', 'starting', 'ready', 'suspended', 'terminated', 'failed')),
    mode TEXT NOT NULL CHECK (mode IN ('ephemeral', 'persistent')),
    runtime TEXT,
    provider TEXT NOT NULL,
    provider_meta TEXT NOT NULL,
    provider_instance_id TEXT,
    transition TEXT CHECK (transition IN ('provisioning', 'resuming', 'parking', 'destroying')),
    transition_reason TEXT,
    transition_at TIMESTAMP,
    lease_epoch BIGINT NOT NULL,
    lease_holder TEXT,
    lease_until TIMESTAMP,
    woken_at TIMESTAMP,
    cleanup_pending BOOLEAN NOT NULL,
    next_attempt_at TIMESTAMP,
    build_fingerprint TEXT,
    applied_skills TEXT,
    departed_conversations TEXT NOT NULL,
    agent_id TEXT REFERENCES agents (id) ON DELETE SET NULL,
    environment_id TEXT REFERENCES environments (id) ON DELETE SET NULL,
    vault_id TEXT REFERENCES vaults (id) ON DELETE SET NULL,
    last_resumed_at TIMESTAMP,
    terminated_at TIMESTAMP,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL,
    CHECK ((lease_holder IS NULL) = (lease_until IS NULL)),
    CHECK ((transition IS NULL) = (transition_at IS NULL))
);
-- A row that still owes a delete keeps its name (RUL-L-21).
CREATE UNIQUE INDEX machines_live_name ON machines (provider, name)
    WHERE status NOT IN ('terminated', 'failed') OR cleanup_pending;
-- One live home an identity; expressions, because SQLite has no NULLS NOT DISTINCT (RUL-21). A home whose environment
-- or vault was deleted loses that id with it and would collide with the home of no environment: it is doomed for good
-- and holds no identity any more.
CREATE UNIQUE INDEX machines_home_identity ON machines (
    account_id, agent_id, coalesce(environment_id, ''), coalesce(vault_id, ''), coalesce(runtime, '')
) WHERE mode = 'persistent' AND status NOT IN ('terminated', 'failed')
    AND coalesce(transition_reason, '') NOT IN ('environment_deleted', 'vault_deleted');
CREATE INDEX machines_account ON machines (account_id, inserted_at);
-- What the sweeps look for: few rows of many.
CREATE INDEX machines_counted ON machines (account_id)
    WHERE status IN ('pending', 'starting', 'ready') OR transition IN ('resuming', 'destroying') OR cleanup_pending;
CREATE INDEX machines_doomed ON machines (next_attempt_at) WHERE transition = 'destroying' OR cleanup_pending;
CREATE INDEX machines_ready ON machines (updated_at) WHERE status = 'ready';
-- For the deletes that set these columns to null; few rows have a vault or an override.
CREATE INDEX machines_agent ON machines (agent_id) WHERE agent_id IS NOT NULL;
CREATE INDEX machines_environment ON machines (environment_id) WHERE environment_id IS NOT NULL;
CREATE INDEX machines_vault ON machines (vault_id) WHERE vault_id IS NOT NULL;
CREATE INDEX machines_leased ON machines (lease_holder) WHERE lease_holder IS NOT NULL;

CREATE TABLE conversations (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'idle', 'failed', 'terminated')),
    runtime TEXT NOT NULL,
    configuration_revision BIGINT NOT NULL,
    runtime_session_id TEXT,
    machine_id TEXT NOT NULL REFERENCES machines (id),
    agent_id TEXT REFERENCES agents (id) ON DELETE SET NULL,
    agent_version_id TEXT,
    vault_id TEXT REFERENCES vaults (id) ON DELETE SET NULL,
    environment_id TEXT REFERENCES environments (id) ON DELETE SET NULL,
    parent_conversation_id TEXT REFERENCES conversations (id) ON DELETE SET NULL,
    source TEXT NOT NULL,
    channel_id TEXT,
    title TEXT,
    labels TEXT NOT NULL,
    model TEXT,
    sandbox_api_access TEXT NOT NULL,
    permission_policy TEXT,
    callback_key_id TEXT,
    server_epoch BIGINT NOT NULL,
    output_bytes BIGINT NOT NULL,
    usage_input_tokens BIGINT NOT NULL,
    usage_output_tokens BIGINT NOT NULL,
    last_active_at TIMESTAMP,
    last_read_at TIMESTAMP,
    inserted_at TIMESTAMP NOT NULL,
    updated_at TIMESTAMP NOT NULL
);
CREATE INDEX conversations_account ON conversations (account_id, updated_at);
CREATE INDEX conversations_machine ON conversations (machine_id);
CREATE INDEX conversations_agent ON conversations (agent_id);
CREATE INDEX conversations_environment ON conversations (environment_id) WHERE environment_id IS NOT NULL;
CREATE INDEX conversations_vault ON conversations (vault_id) WHERE vault_id IS NOT NULL;
CREATE INDEX conversations_channel ON conversations (account_id, channel_id) WHERE channel_id IS NOT NULL;
CREATE INDEX conversations_parent ON conversations (parent_conversation_id) WHERE parent_conversation_id IS NOT NULL;

CREATE TABLE turns (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    -- The machine it was admitted on; a pending turn has none yet.
    machine_id TEXT REFERENCES machines (id) ON DELETE SET NULL,
    number BIGINT NOT NULL,
    prompt TEXT NOT NULL,
    origin TEXT NOT NULL CHECK (origin IN ('user', 'autonomous')),
    client_request_id TEXT,
    status TEXT NOT NULL CHECK (status IN ('pending', 'running', 'completed', 'failed', 'interrupted')),
    started_at TIMESTAMP,
    ended_at TIMESTAMP,
    exit_code BIGINT,
    limit_reason TEXT,
    orphaned_at TIMESTAMP,
    acp_prompt_id BIGINT,
    spawn_id TEXT,
    pending_permission TEXT,
    permission_deadline TIMESTAMP,
    waiting BOOLEAN NOT NULL,
    pending_until TIMESTAMP,
    reattach_deadline TIMESTAMP,
    reattach_first_loss TIMESTAMP,
    usage TEXT,
    model_selection TEXT,
    reply_text TEXT,
    image_count BIGINT NOT NULL,
    inserted_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX turns_number ON turns (conversation_id, number);
-- One open turn a conversation (RUL-27): the last word on two prompts at once.
CREATE UNIQUE INDEX turns_open ON turns (conversation_id) WHERE status IN ('pending', 'running');
CREATE INDEX turns_waiting_for_a_server ON turns (inserted_at) WHERE status IN ('pending', 'running');
CREATE INDEX turns_machine ON turns (machine_id) WHERE status IN ('pending', 'running');
CREATE INDEX turns_permission ON turns (permission_deadline) WHERE permission_deadline IS NOT NULL;

CREATE TABLE turn_images (
    turn_id TEXT NOT NULL REFERENCES turns (id) ON DELETE CASCADE,
    position BIGINT NOT NULL,
    media_type TEXT NOT NULL,
    bytes BLOB NOT NULL,
    PRIMARY KEY (turn_id, position)
);

-- One spawn: how far each of its pipes is durable (RUL-40).
CREATE TABLE processes (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT NOT NULL REFERENCES accounts (id) ON DELETE CASCADE,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    machine_id TEXT NOT NULL REFERENCES machines (id),
    spawn_id TEXT NOT NULL,
    session_id TEXT,
    stdout_consumed BIGINT NOT NULL,
    stdout_digest TEXT,
    stderr_consumed BIGINT NOT NULL,
    stderr_digest TEXT,
    stop_requested BOOLEAN NOT NULL,
    ended_at TIMESTAMP,
    inserted_at TIMESTAMP NOT NULL
);
CREATE UNIQUE INDEX processes_spawn ON processes (spawn_id);
CREATE INDEX processes_conversation ON processes (conversation_id, inserted_at);
CREATE INDEX processes_to_stop ON processes (machine_id) WHERE stop_requested AND ended_at IS NULL;

-- The id is the cursor of every stream; it never comes back, not even that of a deleted row (RUL-22, INV-84).
CREATE TABLE log_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    -- No reference: its conversation has one, deletes come that way, and a check a row is a sixth of an append.
    account_id TEXT NOT NULL,
    conversation_id TEXT NOT NULL REFERENCES conversations (id) ON DELETE CASCADE,
    turn_id TEXT,
    kind TEXT NOT NULL CHECK (kind IN ('output', 'stage')),
    stream TEXT,
    data TEXT NOT NULL,
    stage TEXT,
    state TEXT,
    duration_ms BIGINT,
    -- Which raw bytes of which pipe of which process the row came from.
    process_id TEXT,
    raw_stream TEXT,
    raw_from BIGINT,
    raw_to BIGINT,
    gap_stream TEXT,
    gap_from BIGINT,
    gap_to BIGINT,
    inserted_at TIMESTAMP NOT NULL
);
CREATE INDEX log_events_conversation ON log_events (conversation_id, id);
CREATE INDEX log_events_account ON log_events (account_id, id);
CREATE INDEX log_events_turn ON log_events (turn_id, id) WHERE turn_id IS NOT NULL;

-- The operation journal: the transaction that stamps an intent inserts, the one that writes the outcome completes.
CREATE TABLE operations (
    id TEXT PRIMARY KEY NOT NULL,
    account_id TEXT REFERENCES accounts (id) ON DELETE SET NULL,
    machine_id TEXT NOT NULL REFERENCES machines (id),
    machine_name TEXT NOT NULL,
    verb TEXT NOT NULL,
    reason TEXT,
    actor TEXT NOT NULL,
    epoch BIGINT NOT NULL,
    started_at TIMESTAMP NOT NULL,
    finished_at TIMESTAMP,
    outcome TEXT,
    provider_call TEXT,
    provider_answer TEXT,
    evidence TEXT
);
CREATE INDEX operations_machine ON operations (machine_id, started_at);
CREATE INDEX operations_open ON operations (machine_id) WHERE outcome IS NULL OR outcome IN ('unknown', 'superseded');

CREATE TABLE audit_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    account_id TEXT REFERENCES accounts (id) ON DELETE SET NULL,
    action TEXT NOT NULL,
    resource_type TEXT NOT NULL,
    resource_id TEXT,
    actor TEXT NOT NULL,
    request_ip TEXT,
    metadata TEXT NOT NULL,
    inserted_at TIMESTAMP NOT NULL
);
CREATE INDEX audit_events_account ON audit_events (account_id, id);

CREATE TABLE usage_events (
    id INTEGER PRIMARY KEY AUTOINCREMENT NOT NULL,
    account_id TEXT REFERENCES accounts (id) ON DELETE SET NULL,
    kind TEXT NOT NULL,
    machine_id TEXT,
    conversation_id TEXT,
    turn_id TEXT,
    provider TEXT,
    metadata TEXT NOT NULL,
    inserted_at TIMESTAMP NOT NULL
);
CREATE INDEX usage_events_account ON usage_events (account_id, id);

-- Machines at a provider that no row of ours explains: shown to operators, never deleted by us (RUL-L-53).
CREATE TABLE untracked_machines (
    provider TEXT NOT NULL,
    name TEXT NOT NULL,
    first_seen TIMESTAMP NOT NULL,
    last_seen TIMESTAMP NOT NULL,
    PRIMARY KEY (provider, name)
);
