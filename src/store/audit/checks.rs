//! The checks, as data: each selects `id` and `detail` of the rows that break it.
//!
//! The SQL is what both databases understand. A check says only what holds at *every* commit, so that it may run while
//! others work; what holds only in the end (a debt that is settled) is a matter of the simulation.

/// One check.
pub struct Check {
    pub law: &'static str,
    pub rule: &'static str,
    /// What `id` is the key of.
    pub table: &'static str,
    pub broken: &'static str,
}

const fn check(law: &'static str, rule: &'static str, table: &'static str, broken: &'static str) -> Check {
    Check {
        law,
        rule,
        table,
        broken,
    }
}

/// All of them: machines, journal, what follows a fence, conversations and turns, the transcript.
pub const ALL: &[Check] = &[
    check(
        "INV-11",
        "a row has an end exactly when it is terminal",
        "machines",
        "SELECT id, status AS detail FROM machines \
         WHERE (status IN ('terminated', 'failed')) <> (terminated_at IS NOT NULL)",
    ),
    check(
        "INV-02",
        "a terminal row wears no stamp",
        "machines",
        "SELECT id, status || ' and ' || transition AS detail FROM machines \
         WHERE status IN ('terminated', 'failed') AND transition IS NOT NULL",
    ),
    check(
        "INV-09",
        "a lease belongs to an operation that has not ended",
        "machines",
        "SELECT id, 'epoch ' || CAST(lease_epoch AS TEXT) || ' of ' || lease_holder AS detail FROM machines \
         WHERE lease_holder IS NOT NULL AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.machine_id = machines.id \
         AND o.epoch = machines.lease_epoch AND o.outcome IS NULL)",
    ),
    check(
        "INV-05",
        "a stamp has an operation in the journal whose outcome is not known",
        "machines",
        "SELECT id, transition AS detail FROM machines WHERE transition IN ('provisioning', 'parking', 'resuming') \
         AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.machine_id = machines.id \
         AND o.verb = CASE machines.transition WHEN 'provisioning' THEN 'provision' WHEN 'parking' THEN 'park' \
         ELSE 'wake' END AND (o.outcome IS NULL OR o.outcome IN ('unknown', 'superseded')))",
    ),
    check(
        "INV-22",
        "a machine that was built has the fingerprint of its build",
        "machines",
        "SELECT id, status AS detail FROM machines WHERE status IN ('ready', 'suspended') AND build_fingerprint IS NULL",
    ),
    check(
        "RUL-L-21",
        "only a terminal row owes a delete",
        "machines",
        "SELECT id, status AS detail FROM machines \
         WHERE cleanup_pending AND status NOT IN ('terminated', 'failed')",
    ),
    check(
        "lifecycle 2.4",
        "a fenced row says why",
        "machines",
        "SELECT id, status AS detail FROM machines WHERE transition = 'destroying' AND transition_reason IS NULL",
    ),
    check(
        "INV-03",
        "an epoch is one operation's",
        "machines",
        "SELECT machine_id AS id, 'epoch ' || CAST(epoch AS TEXT) || ' ' || CAST(count(*) AS TEXT) || ' times' AS detail \
         FROM operations GROUP BY machine_id, epoch HAVING count(*) > 1",
    ),
    check(
        "INV-03",
        "no operation has an epoch that its machine has not reached",
        "operations",
        "SELECT o.id, 'epoch ' || CAST(o.epoch AS TEXT) || ' of ' || CAST(m.lease_epoch AS TEXT) AS detail \
         FROM operations o JOIN machines m ON m.id = o.machine_id WHERE o.epoch > m.lease_epoch OR o.epoch < 1",
    ),
    check(
        "RUL-L-3",
        "a known outcome is finished, and what is finished has an outcome",
        "operations",
        "SELECT id, coalesce(outcome, 'no outcome') AS detail FROM operations \
         WHERE (outcome IS NULL AND finished_at IS NOT NULL) \
         OR (outcome NOT IN ('unknown', 'superseded') AND finished_at IS NULL) OR finished_at < started_at",
    ),
    check(
        "INV-51",
        "a machine is terminated only by a confirmed delete, by a look that found it gone, or by a handover",
        "machines",
        "SELECT id, coalesce(transition_reason, 'no reason') AS detail FROM machines WHERE status = 'terminated' \
         AND NOT EXISTS (SELECT 1 FROM operations o WHERE o.machine_id = machines.id \
         AND (o.outcome = 'handed_over' OR (o.outcome = 'done' AND o.evidence LIKE '%absent%')))",
    ),
    check(
        "INV-52",
        "a fence is audited once",
        "machines",
        "SELECT m.id, CAST(count(a.id) AS TEXT) || ' times' AS detail FROM machines m \
         JOIN audit_events a ON a.resource_id = m.id AND a.resource_type = 'sandbox' \
         AND a.action IN ('sandbox.teardown_requested', 'sandbox.reset_requested') \
         GROUP BY m.id HAVING count(a.id) > 1",
    ),
    check(
        "INV-52",
        "a row that is fenced was audited",
        "machines",
        "SELECT id, coalesce(transition_reason, '') AS detail FROM machines WHERE transition = 'destroying' \
         AND NOT EXISTS (SELECT 1 FROM audit_events a WHERE a.resource_id = machines.id \
         AND a.action IN ('sandbox.teardown_requested', 'sandbox.reset_requested'))",
    ),
    check(
        "INV-52",
        "a machine is destroyed once",
        "machines",
        "SELECT resource_id AS id, action || ' ' || CAST(count(*) AS TEXT) || ' times' AS detail FROM audit_events \
         WHERE action IN ('sandbox.destroyed', 'sandbox.reset') AND resource_id IS NOT NULL \
         GROUP BY resource_id, action HAVING count(*) > 1",
    ),
    check(
        "INV-52",
        "nothing is called destroyed or reset that is not",
        "machines",
        "SELECT m.id, a.action || ' and ' || m.status AS detail FROM machines m \
         JOIN audit_events a ON a.resource_id = m.id AND a.action IN ('sandbox.destroyed', 'sandbox.reset') \
         WHERE m.status NOT IN ('terminated', 'failed')",
    ),
    check(
        "INV-56",
        "no turn runs on a machine that is gone",
        "turns",
        "SELECT t.id, m.status AS detail FROM turns t JOIN machines m ON m.id = t.machine_id \
         WHERE t.status = 'running' AND m.status IN ('terminated', 'failed')",
    ),
    check(
        "INV-70",
        "a conversation has one open turn",
        "conversations",
        "SELECT conversation_id AS id, CAST(count(*) AS TEXT) || ' open turns' AS detail FROM turns \
         WHERE status IN ('pending', 'running') GROUP BY conversation_id HAVING count(*) > 1",
    ),
    check(
        "INV-70",
        "turns are numbered from one without a gap",
        "conversations",
        "SELECT conversation_id AS id, CAST(count(*) AS TEXT) || ' turns up to number ' || CAST(max(number) AS TEXT) \
         AS detail FROM turns GROUP BY conversation_id \
         HAVING min(number) <> 1 OR max(number) <> count(*) OR count(DISTINCT number) <> count(*)",
    ),
    check(
        "INV-71",
        "a turn that is over has one end in the stream",
        "turns",
        // Rows whose events retention has taken are older than every event that is left.
        "SELECT t.id, t.status || ' with ' || CAST(count(e.id) AS TEXT) || ' ends' AS detail FROM turns t \
         LEFT JOIN log_events e ON e.turn_id = t.id AND e.stage = 'turn' \
         AND e.state IN ('done', 'failed', 'interrupted') \
         WHERE t.status NOT IN ('pending', 'running') AND t.ended_at >= (SELECT min(inserted_at) FROM log_events) \
         GROUP BY t.id, t.status HAVING count(e.id) <> 1",
    ),
    check(
        "INV-71",
        "a turn that is open has no end in the stream",
        "turns",
        "SELECT t.id, t.status AS detail FROM turns t WHERE t.status IN ('pending', 'running') \
         AND EXISTS (SELECT 1 FROM log_events e WHERE e.turn_id = t.id AND e.stage = 'turn' \
         AND e.state IN ('done', 'failed', 'interrupted'))",
    ),
    check(
        "R-86",
        "a turn starts once",
        "turns",
        "SELECT turn_id AS id, CAST(count(*) AS TEXT) || ' starts' AS detail FROM log_events \
         WHERE stage = 'turn' AND state = 'started' AND turn_id IS NOT NULL GROUP BY turn_id HAVING count(*) > 1",
    ),
    check(
        "RUL-25",
        "nothing of a turn that its agent completed comes behind its end",
        "log_events",
        // Only that end goes through the queue of the turn's output. An interrupt, a sweep or a terminate ends the row
        // first and stops the agent after (lifecycle 2.6 T4, RUL-L-29); what was on its way is still written.
        "SELECT CAST(e.id AS TEXT) AS id, 'behind the end of turn ' || e.turn_id AS detail FROM log_events e \
         JOIN turns t ON t.id = e.turn_id AND t.status = 'completed' \
         JOIN (SELECT turn_id, min(id) AS ended FROM log_events WHERE stage = 'turn' AND turn_id IS NOT NULL \
         AND state IN ('done', 'failed', 'interrupted') GROUP BY turn_id) AS o ON o.turn_id = e.turn_id \
         WHERE e.kind = 'output' AND e.id > o.ended",
    ),
    check(
        "INV-72",
        "a conversation that is running has a running turn",
        "conversations",
        "SELECT id, status AS detail FROM conversations WHERE status = 'running' \
         AND NOT EXISTS (SELECT 1 FROM turns t WHERE t.conversation_id = conversations.id AND t.status = 'running')",
    ),
    check(
        "INV-78",
        "a conversation that is over has no open turn",
        "conversations",
        "SELECT c.id, c.status || ' with a ' || t.status || ' turn' AS detail FROM conversations c \
         JOIN turns t ON t.conversation_id = c.id AND t.status IN ('pending', 'running') \
         WHERE c.status IN ('failed', 'terminated')",
    ),
    check(
        "INV-71",
        "a turn has an end exactly when it is over",
        "turns",
        "SELECT id, status AS detail FROM turns WHERE (status IN ('pending', 'running')) = (ended_at IS NOT NULL) \
         OR (orphaned_at IS NOT NULL AND status IN ('pending', 'running'))",
    ),
    check(
        "promise 6",
        "whatever waits has a deadline",
        "turns",
        "SELECT id, status AS detail FROM turns WHERE (status = 'pending' AND pending_until IS NULL) \
         OR (pending_permission IS NOT NULL AND permission_deadline IS NULL AND (status = 'running' OR waiting))",
    ),
    check(
        "INV-83",
        "a turn is billed once, and an orphaned one never",
        "turns",
        "SELECT u.turn_id AS id, CAST(count(*) AS TEXT) || ' rows' AS detail FROM usage_events u \
         LEFT JOIN turns t ON t.id = u.turn_id WHERE u.kind = 'turn' AND u.turn_id IS NOT NULL \
         GROUP BY u.turn_id HAVING count(*) > 1 OR count(t.orphaned_at) > 0",
    ),
    check(
        "INV-84",
        "ids of a conversation's events follow their time",
        "log_events",
        "SELECT CAST(id AS TEXT) AS id, 'behind one of ' || CAST(earlier AS TEXT) AS detail FROM (SELECT id, \
         inserted_at AS later, lag(inserted_at) OVER (PARTITION BY conversation_id ORDER BY id) AS earlier \
         FROM log_events) AS pairs WHERE earlier IS NOT NULL AND {later_by_a_minute}",
    ),
    check(
        "INV-81",
        "a raw range is one, of a known process of the same conversation",
        "log_events",
        "SELECT CAST(e.id AS TEXT) AS id, e.raw_stream || ' ' || CAST(e.raw_from AS TEXT) || '..' \
         || CAST(e.raw_to AS TEXT) AS detail FROM log_events e LEFT JOIN processes p ON p.id = e.process_id \
         WHERE e.raw_stream IS NOT NULL AND (e.raw_from < 0 OR e.raw_to < e.raw_from OR p.id IS NULL \
         OR p.conversation_id <> e.conversation_id)",
    ),
    check(
        "INV-81",
        "raw ranges of a pipe come in order and once",
        "log_events",
        "SELECT CAST(id AS TEXT) AS id, raw_stream || ' ' || CAST(raw_from AS TEXT) || ' behind ' || CAST(reached AS TEXT) \
         AS detail FROM (SELECT id, raw_stream, raw_from, max(raw_to) OVER (PARTITION BY process_id, raw_stream \
         ORDER BY id ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS reached FROM log_events \
         WHERE raw_stream IS NOT NULL) AS ranges WHERE raw_from < reached",
    ),
    check(
        "RUL-40",
        "no row comes from bytes that its process's record has not reached",
        "log_events",
        "SELECT CAST(e.id AS TEXT) AS id, e.raw_stream || ' up to ' || CAST(e.raw_to AS TEXT) AS detail \
         FROM log_events e JOIN processes p ON p.id = e.process_id WHERE e.raw_stream IS NOT NULL \
         AND e.raw_to > CASE e.raw_stream WHEN 'stdout' THEN p.stdout_consumed ELSE p.stderr_consumed END",
    ),
    check(
        "promise 4",
        "no row comes from bytes that a gap calls missing",
        "log_events",
        "SELECT CAST(e.id AS TEXT) AS id, 'inside gap ' || CAST(g.gap_from AS TEXT) || '..' || CAST(g.gap_to AS TEXT) \
         AS detail FROM log_events g JOIN log_events e ON e.process_id = g.process_id AND e.raw_stream = g.gap_stream \
         WHERE g.gap_stream IS NOT NULL AND e.id <> g.id AND e.raw_from < g.gap_to AND e.raw_to > g.gap_from",
    ),
    check(
        "promise 4",
        "a gap says how much is missing",
        "log_events",
        "SELECT CAST(id AS TEXT) AS id, gap_stream AS detail FROM log_events WHERE gap_stream IS NOT NULL \
         AND (gap_from IS NULL OR gap_to IS NULL OR gap_to <= gap_from)",
    ),
];
