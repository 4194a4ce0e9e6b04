//! The end of a run: faults stop, everybody comes back, and everything has to come to rest (INV-54, INV-116, INV-121).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use fountain_actors::domain::event::StreamFilter;
use fountain_actors::domain::machine::{Machine, MachineStatus};
use fountain_actors::domain::turn::{Turn, TurnStatus};
use fountain_actors::domain::{ConversationId, ErrorCode, EventId, MachineId};
use fountain_actors::doors::Doors as _;
use fountain_actors::ports::Clock as _;
use fountain_actors::ports::sandbox::RunState;
use fountain_actors::ports::store::transcript::{EventQuery, TranscriptStore as _};

use crate::nodes::Realm;
use crate::oracle::Told;
use crate::run::{word, words_of};

/// Longer than every stored deadline: a waiting prompt has an hour, and a row that was refused is tried again within one.
const REST: Duration = Duration::from_secs(3 * 60 * 60);

/// Ends the faults, waits, and judges.
pub async fn rest(realm: &mut Realm) {
    realm.climate.clear();
    realm.fake.set_offline(false);
    for at in 0..realm.nodes.len() {
        let Some(node) = realm.nodes.get(at) else { continue };
        node.gate.thaw();
        if node.gate.is_dead() {
            realm.replace(at).await;
        }
    }
    // Agents that never end their turn would be waited for for ever, rightly.
    tokio::time::sleep(Duration::from_secs(1)).await;
    interrupt_all(realm).await;
    tokio::time::sleep(REST).await;
    interrupt_all(realm).await;
    tokio::time::sleep(Duration::from_secs(10 * 60)).await;
    if !realm.watch.violations().is_empty() {
        return;
    }
    machines(realm).await;
    talk(realm).await;
}

async fn interrupt_all(realm: &Realm) {
    let talk = realm.store.talk().await.unwrap_or_default();
    for (turn, _) in talk.turns.iter().filter(|(turn, _)| !turn.status.is_terminal()) {
        let Some(row) = talk.conversations.iter().find(|row| row.id == turn.conversation_id) else {
            continue;
        };
        let Some(tenant) = realm.tenants.iter().find(|tenant| tenant.account.id == row.account_id) else {
            continue;
        };
        if let Some(node) = realm.nodes.first() {
            // It may have ended meanwhile.
            let _ = node.engine.interrupt(tenant.caller.clone(), row.id).await;
        }
    }
}

async fn machines(realm: &Realm) {
    let fleet = realm.store.fleet().await.unwrap_or_default();
    let now = realm.clock.now();
    let mut live: BTreeMap<&str, &Machine> = BTreeMap::new();
    for row in &fleet.machines {
        if row.lease_live(now) {
            realm.watch.violate(
                "INV-09",
                format!("machine {} is held for ever: {:?}", row.id, row.lease),
            );
        }
        if row.status.is_terminal() && !row.cleanup_pending {
            continue;
        }
        if row.transition.is_some() || row.cleanup_pending {
            let number = if row.cleanup_pending { "INV-54" } else { "INV-121" };
            let what = format!(
                "machine {} is {} and still wears {:?} ({:?}), owes a delete: {}; its journal: {}",
                row.id,
                row.status,
                row.transition,
                row.transition_reason,
                row.cleanup_pending,
                journal(realm, row.id).await
            );
            realm.watch.violate(number, what);
        }
        live.insert(&row.name, row);
    }
    for debt in &fleet.open {
        realm.watch.violate(
            "INV-116",
            format!(
                "operation {:?} of machine {} ({}) is a debt that nobody settled",
                debt.verb, debt.machine_id, debt.machine_name
            ),
        );
    }
    let real: BTreeSet<String> = realm.fake.machines().into_iter().collect();
    for name in real.iter().filter(|name| !realm.watch.is_stranger(name)) {
        if !live.contains_key(name.as_str()) {
            realm
                .watch
                .violate("RUL-L-73", format!("machine {name} exists and no row owns it"));
        }
    }
    for (name, row) in &live {
        let state = realm.fake.run_state(name);
        let fits = match row.status {
            MachineStatus::Ready => state == Some(RunState::Running),
            // A machine that its provider lost is found at the next use.
            MachineStatus::Suspended => state != Some(RunState::Running),
            MachineStatus::Pending | MachineStatus::Starting => false,
            MachineStatus::Terminated | MachineStatus::Failed => true,
        };
        // Nobody asked about it since it was lost or stopped.
        let unknown = row.status == MachineStatus::Ready && state != Some(RunState::Running);
        if !fits && !unknown {
            let what = format!(
                "machine {} ({name}) is {} and its machine {state:?}; its journal: {}",
                row.id,
                row.status,
                journal(realm, row.id).await
            );
            realm.watch.violate("INV-121", what);
        }
    }
    if real
        .iter()
        .filter(|name| name.starts_with("somebody") || name.ends_with("deadbeef"))
        .count()
        != 2
    {
        realm
            .watch
            .violate("INV-60", "a machine of somebody else was deleted".into());
    }
}

async fn journal(realm: &Realm, machine: MachineId) -> String {
    let rows = realm.store.journal_of(machine).await.unwrap_or_default();
    let lines: Vec<String> = rows
        .iter()
        .rev()
        .take(8)
        .map(|row| format!("{}@{} {:?} {:?}", row.verb, row.epoch.0, row.outcome, row.provider_call))
        .collect();
    lines.join("; ")
}

async fn talk(realm: &Realm) {
    let talk = realm.store.talk().await.unwrap_or_default();
    let mut by_request: BTreeMap<&str, u32> = BTreeMap::new();
    for (turn, _) in &talk.turns {
        if let Some(request) = turn.client_request_id.as_deref() {
            *by_request.entry(request).or_default() += 1;
        }
        if !turn.status.is_terminal() {
            realm.watch.violate(
                "INV-121",
                format!(
                    "turn {} of {} is {} for ever",
                    turn.number, turn.conversation_id, turn.status
                ),
            );
        }
    }
    let gone = |request: &str| by_request.get(request).copied().unwrap_or(0);
    let some_deleted = talk.conversations.iter().all(|row| !realm.oracle.was_deleted(row.id));
    for (request, told) in realm.oracle.prompts() {
        let turns = gone(&request);
        match told {
            Told::Yes if turns != 1 && some_deleted => {
                // Its conversation may have been deleted with it.
                if turns > 1 {
                    realm
                        .watch
                        .violate("INV-74", format!("prompt {request} was accepted and has {turns} turns"));
                }
            }
            // The answer of a commit was lost: nobody can know (RUL-9).
            Told::No(refusal) if refusal.code() == ErrorCode::StoreUnavailable => {}
            Told::No(refusal) if turns > 0 => {
                realm.watch.violate(
                    "INV-75",
                    format!("prompt {request} was refused with {refusal:?} and has a turn"),
                );
            }
            Told::Nothing | Told::Yes | Told::No(_) => {}
        }
    }
    for row in &talk.conversations {
        let has_turn = talk
            .turns
            .iter()
            .any(|(turn, _)| turn.conversation_id == row.id && turn.status == TurnStatus::Running);
        if row.status.as_str() == "running" && !has_turn {
            realm
                .watch
                .violate("INV-72", format!("conversation {} is running without a turn", row.id));
        }
        if row.status.as_str() == "terminated" && !realm.oracle.has_reason_to_end(row.id) {
            realm
                .watch
                .violate("INV-79", format!("conversation {} ended and nobody wished it", row.id));
        }
        let turns: Vec<&Turn> = talk
            .turns
            .iter()
            .filter(|(turn, _)| turn.conversation_id == row.id)
            .map(|(turn, _)| turn)
            .collect();
        output(realm, row.id, row.account_id, &turns).await;
    }
    for id in realm.oracle.all_ended() {
        if talk
            .conversations
            .iter()
            .any(|row| row.id == id && !row.status.is_terminal())
        {
            realm.watch.violate(
                "C5",
                format!("the end of conversation {id} was confirmed and it goes on"),
            );
        }
    }
    let fleet = realm.store.fleet().await.unwrap_or_default();
    for id in realm.oracle.resets() {
        if fleet
            .machines
            .iter()
            .any(|row| row.id == id && !row.status.is_terminal())
        {
            realm.watch.violate(
                "INV-52",
                format!("the reset of machine {id} was confirmed and its row lives"),
            );
        }
    }
}

/// INV-81: what is stored of a turn is what its agent said, each word once and in order, and all of it when the agent
/// ended the turn itself.
async fn output(realm: &Realm, id: ConversationId, account: fountain_actors::domain::AccountId, turns: &[&Turn]) {
    let mut events = Vec::new();
    let mut after = EventId(0);
    loop {
        let query = EventQuery {
            after,
            filter: StreamFilter::default(),
            limit: 1_000,
        };
        let Ok(page) = realm.store.events(account, id, query).await else {
            return;
        };
        let Some(last) = page.events.last() else { break };
        if last.id <= after {
            break;
        }
        after = last.id;
        events.extend(page.events);
    }
    for turn in turns {
        let Some(request) = turn.client_request_id.as_deref() else {
            continue;
        };
        let said: Vec<String> = events
            .iter()
            .filter_map(|event| serde_json::from_str::<serde_json::Value>(&event.data).ok())
            .filter_map(|line| Some(line.pointer("/params/update/content/text")?.as_str()?.to_owned()))
            .filter(|word| word.starts_with(&format!("<{request}.")))
            .collect();
        let expected: Vec<String> = (0..u32::try_from(said.len()).unwrap_or(0))
            .map(|at| word(request, at))
            .collect();
        if said != expected {
            realm
                .watch
                .violate("INV-81", format!("turn {} of {id} stored {said:?}", turn.number));
        }
        let all = words_of(&turn.prompt);
        let whole = turn.status == TurnStatus::Completed && turn.exit_code.is_none();
        if let Some(all) = all.filter(|all| whole && usize::try_from(*all).unwrap_or(0) != said.len()) {
            realm.watch.violate(
                "INV-81",
                format!(
                    "turn {} of {id} completed with {} of {all} words",
                    turn.number,
                    said.len()
                ),
            );
        }
        let ends = events
            .iter()
            .filter(|event| event.turn_id == Some(turn.id))
            .filter(|event| event.stage.is_some_and(|stage| stage.as_str() == "turn"))
            .filter(|event| event.state.is_some_and(|state| state.as_str() != "started"))
            .count();
        if turn.status.is_terminal() && ends != 1 {
            realm.watch.violate(
                "INV-71",
                format!("turn {} of {id} has {ends} endings in its stream", turn.number),
            );
        }
    }
}
