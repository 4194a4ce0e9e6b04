//! The steps of a request (lifecycle 2.7), each with its audit row (10.3).

use diesel::prelude::*;

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::conversation::ConversationView;
use fountain_actors::domain::queue::{RequestStatus, SandboxRequest};
use fountain_actors::domain::*;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::conversations::{Attach, Launch};
use fountain_actors::ports::store::queue::{ClaimedRequest, Enqueued, NewRequest, RequestOutcome};

use super::rows;
use crate::store::backend::{Db, Fault, lock_queue};
use crate::store::columns::{Word, at, json, key, maybe_key};
use crate::store::conversations::launch as conversation_launch;
use crate::store::events::Outbox;
use crate::store::schema::{conversations, sandbox_requests};

/// Who drains (lifecycle 10.3).
const DRAIN: Actor = Actor::System("sandbox_queue");

/// Puts a request into its account's line.
pub fn enqueue(db: &mut Db, new: NewRequest) -> Result<(Enqueued, Outbox), Fault> {
    lock_queue(db, new.account_id)?;
    if let Some(schedule) = new.schedule_id
        && let Some(known) = rows::of_schedule(db, schedule)?
    {
        return Ok((Enqueued::Known(rows::view(db, known)?), Outbox::default()));
    }
    if rows::depth(db, new.account_id)? >= new.depth {
        return Ok((Enqueued::Full, Outbox::default()));
    }
    diesel::insert_into(sandbox_requests::table)
        .values((
            sandbox_requests::id.eq(key(new.id)),
            sandbox_requests::account_id.eq(key(new.account_id)),
            sandbox_requests::agent_id.eq(key(new.agent_id)),
            sandbox_requests::kind.eq(Word(new.kind)),
            sandbox_requests::status.eq(Word(RequestStatus::Queued)),
            sandbox_requests::source.eq(Word(new.source)),
            sandbox_requests::schedule_id.eq(maybe_key(new.schedule_id)),
            sandbox_requests::launch.eq(json(&new.launch)),
            sandbox_requests::inserted_at.eq(at(new.now)),
            sandbox_requests::updated_at.eq(at(new.now)),
        ))
        .execute(db)?;
    let request = rows::find(db, new.id)?.ok_or_else(|| Fault::not_found("request"))?;
    let mut outbox = Outbox::default();
    outbox.audit(new.audit, new.now);
    Ok((Enqueued::Waits(rows::view(db, request)?), outbox))
}

/// A moment for the next step that is not the one of the last, whatever the clock says.
fn step_after(seen: &SandboxRequest, now: Moment) -> Moment {
    now.max(seen.updated_at + chrono::TimeDelta::microseconds(1))
}

/// Claims the first of the line.
pub fn claim(
    db: &mut Db,
    account: AccountId,
    skip: &[QueueRequestId],
    stale_before: Moment,
    now: Moment,
) -> Result<Option<ClaimedRequest>, Fault> {
    for mut seen in rows::active(db, account)? {
        if skip.contains(&seen.id) {
            continue;
        }
        if seen.status == RequestStatus::Starting && seen.updated_at >= stale_before {
            return Ok(None); // its drain is at work, and the line keeps its order
        }
        let claimed_at = step_after(&seen, now);
        let touched = diesel::update(sandbox_requests::table.find(key(seen.id)))
            .filter(sandbox_requests::status.eq(Word(seen.status)))
            .filter(sandbox_requests::updated_at.eq(at(seen.updated_at)))
            .set((
                sandbox_requests::status.eq(Word(RequestStatus::Starting)),
                sandbox_requests::updated_at.eq(at(claimed_at)),
            ))
            .execute(db)?;
        if touched == 0 {
            return Ok(None);
        }
        seen.status = RequestStatus::Starting;
        seen.updated_at = claimed_at;
        let opened = rows::opened(db, seen.id)?;
        return Ok(Some(ClaimedRequest { request: seen, opened }));
    }
    Ok(None)
}

/// Writes a final status over exactly the row that was seen. False when it has moved on.
pub fn end(
    db: &mut Db,
    seen: &SandboxRequest,
    to: RequestStatus,
    conversation: Option<ConversationId>,
    error: Option<&str>,
    now: Moment,
) -> Result<bool, Fault> {
    let touched = diesel::update(sandbox_requests::table.find(key(seen.id)))
        .filter(sandbox_requests::status.eq(Word(seen.status)))
        .filter(sandbox_requests::updated_at.eq(at(seen.updated_at)))
        .set((
            sandbox_requests::status.eq(Word(to)),
            sandbox_requests::launch.eq(None::<String>),
            sandbox_requests::conversation_id.eq(maybe_key(conversation)),
            sandbox_requests::error.eq(error),
            sandbox_requests::updated_at.eq(at(step_after(seen, now))),
        ))
        .execute(db)?;
    Ok(touched > 0)
}

/// The audit row of a step of the drain. Codes and ids only: never what was asked.
fn audit(request: &SandboxRequest, action: &'static str, extra: Option<(&'static str, String)>) -> NewAudit {
    NewAudit {
        account_id: Some(request.account_id),
        action,
        resource_type: "sandbox_request",
        resource_id: Some(key(request.id)),
        actor: DRAIN,
        request_ip: None,
        metadata: extra.into_iter().map(|(name, value)| (name, value.into())).collect(),
    }
}

/// Ends a claim.
pub fn finish(
    db: &mut Db,
    claim: &ClaimedRequest,
    outcome: RequestOutcome,
    now: Moment,
) -> Result<(bool, Outbox), Fault> {
    let seen = &claim.request;
    let mut outbox = Outbox::default();
    let held = match &outcome {
        RequestOutcome::Started(conversation) => end(db, seen, RequestStatus::Started, Some(*conversation), None, now)?,
        RequestOutcome::Failed(code) => end(db, seen, RequestStatus::Failed, None, Some(code), now)?,
        RequestOutcome::Back => {
            let touched = diesel::update(sandbox_requests::table.find(key(seen.id)))
                .filter(sandbox_requests::status.eq(Word(seen.status)))
                .filter(sandbox_requests::updated_at.eq(at(seen.updated_at)))
                .set((
                    sandbox_requests::status.eq(Word(RequestStatus::Queued)),
                    sandbox_requests::updated_at.eq(at(step_after(seen, now))),
                ))
                .execute(db)?;
            touched > 0
        }
    };
    if held {
        match outcome {
            RequestOutcome::Started(conversation) => {
                let of = ("conversation_id", key(conversation));
                outbox.audit(audit(seen, "sandbox_request.started", Some(of)), now);
            }
            RequestOutcome::Failed(code) => {
                outbox.audit(audit(seen, "sandbox_request.failed", Some(("error", code))), now);
            }
            RequestOutcome::Back => {}
        }
    }
    Ok((held, outbox))
}

/// Ends what has waited too long.
pub fn expire(db: &mut Db, before: Moment, now: Moment, limit: i64) -> Result<(u64, Outbox), Fault> {
    let mut outbox = Outbox::default();
    let mut expired = 0;
    for request in rows::overdue(db, before, limit)? {
        if end(db, &request, RequestStatus::Expired, None, None, now)? {
            outbox.audit(audit(&request, "sandbox_request.expired", None), now);
            expired += 1;
        }
    }
    Ok((expired, outbox))
}

/// Lets a conversation carry its request. The unique index has the last word: a second one is never opened.
fn carry(db: &mut Db, claim: &ClaimedRequest, conversation: ConversationId) -> Result<(), Fault> {
    diesel::update(conversations::table.find(key(conversation)))
        .set(conversations::queue_request_id.eq(key(claim.request.id)))
        .execute(db)?;
    Ok(())
}

fn stale() -> Fault {
    StoreError::Stale("queue claim").into()
}

/// Reserves, and ends the request with it.
pub fn launch(db: &mut Db, claim: &ClaimedRequest, launch: Launch) -> Result<(ConversationView, Outbox), Fault> {
    let now = launch.now;
    let (view, mut outbox) = conversation_launch::launch(db, launch)?;
    let conversation = view.conversation.id;
    carry(db, claim, conversation)?;
    let (held, ended) = finish(db, claim, RequestOutcome::Started(conversation), now)?;
    if !held {
        return Err(stale());
    }
    outbox.append(ended);
    Ok((view, outbox))
}

/// Attaches under a claim that holds; the request is ended when its prompt has arrived.
pub fn attach(db: &mut Db, claim: &ClaimedRequest, attach: Attach) -> Result<(ConversationView, Outbox), Fault> {
    let (view, outbox) = conversation_launch::attach(db, attach)?;
    carry(db, claim, view.conversation.id)?;
    let holds: i64 = sandbox_requests::table
        .find(key(claim.request.id))
        .filter(sandbox_requests::status.eq(Word(claim.request.status)))
        .filter(sandbox_requests::updated_at.eq(at(claim.request.updated_at)))
        .count()
        .get_result(db)?;
    match holds {
        0 => Err(stale()),
        _ => Ok((view, outbox)),
    }
}
