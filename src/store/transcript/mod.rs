//! The transcript: the one way in for what live servers write, and the one way out for readers.
//!
//! `append` commits a group in one transaction; a group that fails is split by conversation, and each part is tried
//! alone, so that one bad row hurts only its own (RUL-26). Follows RUL-23 to 26, RUL-40, RUL-56, RUL-L-8.

mod append;
mod read;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use fountain_actors::domain::event::LogEvent;
use fountain_actors::domain::*;
use fountain_actors::ports::store::transcript::{Entry, EventPage, EventQuery, TranscriptStore, Written};
use fountain_actors::ports::store::{Answer, StoreError};

use super::SqlStore;
use super::backend::Access;

/// Most accounts of one commit: each is an event lock held over its fsync (RUL-23).
const MAX_ACCOUNTS: usize = 16;

type Answers = Vec<Result<Written, StoreError>>;
/// Entries of one transaction: their places in the call.
type Part = Vec<usize>;

impl TranscriptStore for SqlStore {
    fn append(&self, entries: Vec<Entry>) -> Answer<'_, Answers> {
        Box::pin(async move {
            let entries = Arc::new(entries);
            let mut answers: BTreeMap<usize, Result<Written, StoreError>> = BTreeMap::new();
            for part in by_accounts(&entries) {
                match self.append_part(&entries, &part).await {
                    Ok(written) => answers.extend(part.into_iter().zip(written)),
                    // A database that does not answer will not answer the parts either.
                    Err(error) if error.is_transient() => {
                        answers.extend(part.into_iter().map(|place| (place, Err(again(&error)))));
                    }
                    Err(_) => {
                        for alone in by_conversation(&entries, &part) {
                            match self.append_part(&entries, &alone).await {
                                Ok(written) => answers.extend(alone.into_iter().zip(written)),
                                Err(error) => {
                                    answers.extend(alone.into_iter().map(|place| (place, Err(again(&error)))));
                                }
                            }
                        }
                    }
                }
            }
            Ok(answers.into_values().collect())
        })
    }

    fn events(&self, account: AccountId, conversation: ConversationId, query: EventQuery) -> Answer<'_, EventPage> {
        self.answer("transcript.events", Access::Read, move |db| {
            read::of_conversation(db, account, conversation, query)
        })
    }

    fn account_events(&self, account: AccountId, query: EventQuery) -> Answer<'_, EventPage> {
        self.answer("transcript.account_events", Access::Read, move |db| {
            read::of_account(db, account, query)
        })
    }

    fn last_event(&self, account: AccountId, conversation: ConversationId) -> Answer<'_, EventId> {
        self.answer("transcript.last_event", Access::Read, move |db| {
            read::last(db, account, conversation)
        })
    }

    fn turn_output(&self, turn: TurnId) -> Answer<'_, Vec<LogEvent>> {
        self.answer("transcript.turn_output", Access::Read, move |db| {
            read::turn_output(db, turn)
        })
    }
}

impl SqlStore {
    async fn append_part(&self, entries: &Arc<Vec<Entry>>, part: &[usize]) -> Result<Answers, StoreError> {
        let (entries, part) = (entries.clone(), part.to_vec());
        self.run("transcript.append", Access::Write, move |db| {
            let entries: Vec<&Entry> = part.iter().filter_map(|place| entries.get(*place)).collect();
            append::append(db, &entries)
        })
        .await
    }
}

/// Cuts a call into transactions of at most [`MAX_ACCOUNTS`] accounts. Entries of one account stay together and in
/// order.
fn by_accounts(entries: &[Entry]) -> Vec<Part> {
    let accounts: BTreeSet<AccountId> = entries.iter().map(|entry| entry.account_id).collect();
    if accounts.len() <= MAX_ACCOUNTS {
        return if entries.is_empty() {
            Vec::new()
        } else {
            vec![(0..entries.len()).collect()]
        };
    }
    let group: BTreeMap<AccountId, usize> = accounts
        .into_iter()
        .enumerate()
        .map(|(place, account)| (account, place / MAX_ACCOUNTS))
        .collect();
    grouped(entries, 0..entries.len(), |entry| group.get(&entry.account_id).copied())
}

/// Cuts a part by conversation.
fn by_conversation(entries: &[Entry], part: &[usize]) -> Vec<Part> {
    grouped(entries, part.iter().copied(), |entry| entry.conversation_id)
}

fn grouped<K: Ord>(entries: &[Entry], places: impl Iterator<Item = usize>, of: impl Fn(&Entry) -> K) -> Vec<Part> {
    let mut parts: BTreeMap<K, Part> = BTreeMap::new();
    for place in places {
        if let Some(entry) = entries.get(place) {
            parts.entry(of(entry)).or_default().push(place);
        }
    }
    parts.into_values().collect()
}

/// The same error for every entry of a part that failed.
fn again(error: &StoreError) -> StoreError {
    match error {
        StoreError::Refused(refusal) => StoreError::Refused(refusal.clone()),
        StoreError::NotFound(what) => StoreError::NotFound(what),
        StoreError::Stale(what) => StoreError::Stale(what),
        StoreError::HomeTaken(home) => StoreError::HomeTaken(*home),
        StoreError::Unavailable { op, detail } => StoreError::Unavailable {
            op,
            detail: detail.clone(),
        },
        StoreError::Internal { op, detail } => StoreError::Internal {
            op,
            detail: detail.clone(),
        },
    }
}
