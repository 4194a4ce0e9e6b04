-- The processes of a deployment, each under the name by which it holds leases. A heartbeat is a moment of the lease clock;
-- one that is old means that its process counts as gone (RUL-L-7).
CREATE TABLE replicas (
    holder TEXT PRIMARY KEY NOT NULL,
    url TEXT NOT NULL,
    heartbeat TIMESTAMP NOT NULL,
    draining BOOLEAN NOT NULL
);

-- Where the server of a conversation lives, or a runner is connected. `generation` tells two homes of one conversation
-- apart, so that the end of an older server does not remove its successor's row (RUL-L-8).
CREATE TABLE actor_homes (
    kind TEXT NOT NULL,
    id TEXT NOT NULL,
    holder TEXT NOT NULL,
    generation BIGINT NOT NULL,
    PRIMARY KEY (kind, id)
);

CREATE INDEX actor_homes_holder ON actor_homes (holder);
