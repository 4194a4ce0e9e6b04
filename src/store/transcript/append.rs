//! What live servers write: many entries of many conversations in one transaction (RUL-25, RUL-26).
//!
//! An entry is refused by itself when its server or its position is not the current one; then the later entries of the
//! same server are refused too, because its order is broken. Nothing of a refused entry is written.

use std::collections::{BTreeMap, BTreeSet};

use fountain_actors::domain::conversation::Conversation;
use fountain_actors::domain::event::{NewEvent, RawStream, Stage};
use fountain_actors::domain::process::{Advance, Position, Process};
use fountain_actors::domain::turn::{Turn, TurnStatus};
use fountain_actors::domain::*;
use fountain_actors::ports::store::StoreError;
use fountain_actors::ports::store::transcript::{Effect, Entry, Written};

use crate::store::backend::{Db, Fault};
use crate::store::columns::key;
use crate::store::conversations::rows as conversations;
use crate::store::events::{Outbox, storable};
use crate::store::turns::{admission, ending, processes, rows as turns};

/// What one transaction has read and changes.
struct Group {
    outbox: Outbox,
    conversations: BTreeMap<ConversationId, Conversation>,
    processes: BTreeMap<ProcessId, Process>,
    /// Servers of which an entry was refused.
    refused: BTreeSet<(ConversationId, ServerEpoch)>,
}

/// Writes what can be written of `entries`, in one transaction. Answers in their order.
pub fn append(db: &mut Db, entries: &[&Entry]) -> Result<Vec<Result<Written, StoreError>>, Fault> {
    let ids: BTreeSet<String> = entries.iter().map(|entry| key(entry.conversation_id)).collect();
    let moved: BTreeSet<String> = entries
        .iter()
        .flat_map(|entry| &entry.advances)
        .map(|advance| key(advance.process_id))
        .collect();
    let read: BTreeMap<ConversationId, Conversation> = conversations::lock_many(db, ids.into_iter().collect())?
        .into_iter()
        .map(|conversation| (conversation.id, conversation))
        .collect();
    let positions = processes::lock_many(db, moved.into_iter().collect())?;
    let mut group = Group {
        outbox: Outbox::default(),
        conversations: read.clone(),
        processes: positions.clone(),
        refused: BTreeSet::new(),
    };

    // Every entry's events are a range of the outbox, which is where its cursor comes from afterwards.
    let mut answers = Vec::with_capacity(entries.len());
    for entry in entries {
        let from = group.outbox.len();
        let written = match group.guard(entry) {
            Ok(()) => Ok(group.write(db, entry)?),
            Err(refusal) => Err(refusal),
        };
        answers.push((written, from..group.outbox.len()));
    }

    let moved = group
        .processes
        .iter()
        .filter(|(id, process)| positions.get(*id) != Some(*process));
    processes::save_positions(db, &moved.map(|(_, process)| process).collect::<Vec<_>>())?;
    let mut output_only = Vec::new();
    for (id, conversation) in &group.conversations {
        match read.get(id) {
            Some(before) if before == conversation => {}
            Some(before) if only_output(before, conversation) => output_only.push(conversation),
            _ => conversations::save(db, conversation)?,
        }
    }
    conversations::save_output(db, &output_only)?;
    let cursors = group.outbox.write_each(db)?;
    let answer = |(written, range): (Result<Written, StoreError>, std::ops::Range<usize>)| {
        let cursor = cursors.get(range).and_then(|own| own.last().copied());
        written.map(|written| Written { cursor, ..written })
    };
    Ok(answers.into_iter().map(answer).collect())
}

impl Group {
    /// Whether this entry may be written (RUL-L-8). Moves its positions when it may.
    fn guard(&mut self, entry: &Entry) -> Result<(), StoreError> {
        let server = (entry.conversation_id, entry.server_epoch);
        let conversation = self
            .conversations
            .get(&entry.conversation_id)
            .filter(|conversation| conversation.account_id == entry.account_id)
            .ok_or(StoreError::NotFound("conversation"))?;
        if self.refused.contains(&server) {
            return Err(StoreError::Stale("an earlier entry was refused"));
        }
        if conversation.server_epoch != entry.server_epoch {
            self.refused.insert(server);
            return Err(StoreError::Stale("server generation"));
        }
        let mut moved: BTreeMap<ProcessId, Process> = BTreeMap::new();
        for advance in &entry.advances {
            let known = moved
                .get(&advance.process_id)
                .or(self.processes.get(&advance.process_id));
            let own = known
                .filter(|process| process.conversation_id == entry.conversation_id)
                .cloned();
            match own.and_then(|process| advanced(process, advance)) {
                Some(process) => moved.insert(advance.process_id, process),
                None => {
                    self.refused.insert(server);
                    return Err(StoreError::Stale("position"));
                }
            };
        }
        self.processes.extend(moved);
        Ok(())
    }

    /// Writes a guarded entry: its rows and its effect. A fault fails the whole group.
    fn write(&mut self, db: &mut Db, entry: &Entry) -> Result<Written, Fault> {
        let conversation = self
            .conversations
            .get_mut(&entry.conversation_id)
            .ok_or_else(|| Fault::not_found("conversation"))?;
        let mut turn = None;
        let mut keep_requests = true;
        let mut ends = None;
        match &entry.effect {
            None => {}
            Some(Effect::PromptSent {
                turn_id,
                acp_prompt_id,
                reused,
            }) => {
                if let Some(mut sent) = running(db, conversation.id, *turn_id)? {
                    sent.acp_prompt_id = Some(*acp_prompt_id);
                    turns::save(db, &sent)?;
                    if *reused {
                        let started = admission::started(&sent, true);
                        self.outbox
                            .stage(conversation.account_id, conversation.id, started, entry.now);
                    }
                }
            }
            Some(Effect::SessionChosen { session_id }) => {
                conversation.runtime_session_id = Some(storable(session_id.clone()));
            }
            Some(Effect::SessionForgotten) => conversation.runtime_session_id = None,
            Some(Effect::ModelSelected { turn_id, selection }) => {
                if let Some(mut selected) = turns::of_conversation(db, conversation.id, *turn_id)? {
                    selected.model_selection = Some(selection.clone());
                    turns::save(db, &selected)?;
                }
            }
            Some(Effect::PermissionOpened { turn_id, permission }) => {
                // On a turn that is over nobody can answer, so nobody is asked.
                keep_requests = match running(db, conversation.id, *turn_id)? {
                    Some(mut asking) => {
                        asking.pending_permission = Some(permission.clone());
                        turns::save(db, &asking)?;
                        true
                    }
                    None => false,
                };
            }
            Some(Effect::PermissionDelivered { turn_id, request_id }) => {
                keep_requests = delivered(db, conversation.id, *turn_id, request_id)?;
            }
            Some(Effect::TurnEnded(ending)) => {
                ends = turns::of_conversation(db, conversation.id, ending.turn_id)?.map(|turn| (turn, ending));
            }
            Some(Effect::Reattached { turn_id }) => {
                if let Some(mut back) = running(db, conversation.id, *turn_id)? {
                    back.reattach_deadline = None;
                    back.reattach_first_loss = None;
                    turns::save(db, &back)?;
                }
            }
            Some(Effect::TitleProposed(title)) if conversation.title.is_none() => {
                conversation.title = title.clone().map(storable);
            }
            // A title that stands wins.
            Some(Effect::TitleProposed(_)) => {}
        }
        for row in &entry.rows {
            match row {
                NewEvent::Output(output) => {
                    conversation.output_bytes += i64::try_from(output.data.len()).unwrap_or(i64::MAX);
                    conversation.last_active_at = conversation.last_active_at.max(Some(entry.now));
                }
                NewEvent::Stage(stage) if stage.stage == Stage::Request && !keep_requests => continue,
                NewEvent::Stage(_) => {}
            }
            self.outbox
                .event(conversation.account_id, conversation.id, row.clone(), entry.now);
        }
        // The end comes behind the last output of the turn (RUL-25).
        if let Some((ending_turn, ending)) = ends {
            turn = ending::end(db, &mut self.outbox, conversation, ending_turn, ending.clone())?;
        }
        Ok(Written {
            cursor: None,
            output_bytes: conversation.output_bytes,
            turn,
        })
    }
}

/// Whether a conversation differs in nothing but what output moves.
fn only_output(before: &Conversation, after: &Conversation) -> bool {
    let moved = Conversation {
        output_bytes: after.output_bytes,
        last_active_at: after.last_active_at,
        ..before.clone()
    };
    moved == *after
}

/// The process after `advance`; None when it does not start where the record stands.
fn advanced(mut process: Process, advance: &Advance) -> Option<Process> {
    let position = match advance.stream {
        RawStream::Stdout => &mut process.stdout,
        RawStream::Stderr => &mut process.stderr,
    };
    if position.consumed != advance.from || advance.to < advance.from {
        return None;
    }
    *position = Position {
        consumed: advance.to,
        digest: Some(advance.digest.clone()),
    };
    Some(process)
}

/// A turn that still runs. One that was ended from outside keeps its end.
fn running(db: &mut Db, conversation: ConversationId, turn: TurnId) -> Result<Option<Turn>, Fault> {
    Ok(turns::of_conversation(db, conversation, turn)?.filter(|turn| turn.status == TurnStatus::Running))
}

/// The agent has its answer. False when the request was resolved meanwhile, with its own `request/done`.
fn delivered(db: &mut Db, conversation: ConversationId, turn: TurnId, request_id: &str) -> Result<bool, Fault> {
    let Some(mut turn) = turns::of_conversation(db, conversation, turn)? else {
        return Ok(false);
    };
    let open = turn
        .pending_permission
        .as_ref()
        .is_some_and(|open| open.request_id == request_id);
    if open {
        turn.pending_permission = None;
        turn.waiting = false;
        turns::save(db, &turn)?;
    }
    Ok(open)
}
