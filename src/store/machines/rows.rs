//! The row of a machine: read, locked, written back whole.
//!
//! A verb locks the machine, reads its row, changes the plain [`Machine`] and writes it back. Nothing is lost by
//! writing all columns, because the row stays locked in between; what is not in [`Machine`] is not touched.

use chrono::NaiveDateTime;
use diesel::prelude::*;
use serde_json::Value;

use fountain_actors::domain::machine::{
    DestroyReason, LeaseInfo, Machine, MachineMode, MachineStatus, Provider, Transition,
};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::NewMachine;

use crate::locked;
use crate::store::backend::{Db, Fault, lock_machine, violated};
use crate::store::columns::{Id, Json, Word, at, inner, json, key, maybe_at, maybe_key, maybe_moment, moment};
use crate::store::schema::machines;

#[derive(Queryable, Selectable)]
#[diesel(table_name = machines)]
pub struct MachineRow {
    id: Id<MachineId>,
    account_id: Option<Id<AccountId>>,
    name: String,
    status: Word<MachineStatus>,
    mode: Word<MachineMode>,
    runtime: Option<String>,
    provider: Word<Provider>,
    provider_meta: Json<Value>,
    transition: Option<Word<Transition>>,
    transition_reason: Option<String>,
    transition_at: Option<NaiveDateTime>,
    lease_epoch: i64,
    lease_holder: Option<String>,
    lease_until: Option<NaiveDateTime>,
    woken_at: Option<NaiveDateTime>,
    cleanup_pending: bool,
    next_attempt_at: Option<NaiveDateTime>,
    build_fingerprint: Option<String>,
    agent_id: Option<Id<AgentId>>,
    environment_id: Option<Id<EnvironmentId>>,
    vault_id: Option<Id<VaultId>>,
    last_resumed_at: Option<NaiveDateTime>,
    terminated_at: Option<NaiveDateTime>,
    inserted_at: NaiveDateTime,
    updated_at: NaiveDateTime,
}

impl From<MachineRow> for Machine {
    fn from(row: MachineRow) -> Self {
        Self {
            id: row.id.0,
            account_id: inner(row.account_id),
            name: row.name,
            status: row.status.0,
            mode: row.mode.0,
            runtime: row.runtime,
            provider: row.provider.0,
            provider_meta: row.provider_meta.0,
            transition: inner(row.transition),
            transition_reason: row.transition_reason,
            transition_at: maybe_moment(row.transition_at),
            lease_epoch: Epoch(row.lease_epoch),
            lease: row.lease_holder.zip(row.lease_until).map(|(holder, until)| LeaseInfo {
                holder,
                until: moment(until),
            }),
            woken_at: maybe_moment(row.woken_at),
            cleanup_pending: row.cleanup_pending,
            next_attempt_at: maybe_moment(row.next_attempt_at),
            build_fingerprint: row.build_fingerprint,
            agent_id: inner(row.agent_id),
            environment_id: inner(row.environment_id),
            vault_id: inner(row.vault_id),
            last_resumed_at: maybe_moment(row.last_resumed_at),
            terminated_at: maybe_moment(row.terminated_at),
            inserted_at: moment(row.inserted_at),
            updated_at: moment(row.updated_at),
        }
    }
}

/// Reads a row without a lock.
pub fn find(db: &mut Db, id: MachineId) -> Result<Option<Machine>, Fault> {
    let row = machines::table
        .find(key(id))
        .select(MachineRow::as_select())
        .first(db)
        .optional()?;
    Ok(row.map(Machine::from))
}

/// Takes the machine lock and then its row; None when there is none. `sandbox_unavailable` after 5 s (lifecycle 1.8).
pub fn lock(db: &mut Db, id: MachineId) -> Result<Option<Machine>, Fault> {
    lock_machine(db, id)?;
    let row: Option<MachineRow> =
        locked!(db, first, machines::table.find(key(id)).select(MachineRow::as_select())).optional()?;
    Ok(row.map(Machine::from))
}

/// Writes a locked row back.
///
/// # Errors
/// `sandbox_unavailable` when a new name is taken at the provider (RUL-L-21).
pub fn save(db: &mut Db, machine: &Machine) -> Result<(), Fault> {
    diesel::update(machines::table.find(key(machine.id)))
        .set((
            machines::name.eq(&machine.name),
            machines::status.eq(Word(machine.status)),
            machines::provider_meta.eq(json(&machine.provider_meta)),
            machines::transition.eq(machine.transition.map(Word)),
            machines::transition_reason.eq(machine.transition_reason.as_deref()),
            machines::transition_at.eq(maybe_at(machine.transition_at)),
            machines::lease_epoch.eq(machine.lease_epoch.0),
            machines::lease_holder.eq(machine.lease.as_ref().map(|lease| lease.holder.as_str())),
            machines::lease_until.eq(machine.lease.as_ref().map(|lease| at(lease.until))),
            machines::woken_at.eq(maybe_at(machine.woken_at)),
            machines::cleanup_pending.eq(machine.cleanup_pending),
            machines::next_attempt_at.eq(maybe_at(machine.next_attempt_at)),
            machines::build_fingerprint.eq(machine.build_fingerprint.as_deref()),
            machines::last_resumed_at.eq(maybe_at(machine.last_resumed_at)),
            machines::terminated_at.eq(maybe_at(machine.terminated_at)),
            machines::updated_at.eq(at(machine.updated_at)),
        ))
        .execute(db)
        .map_err(name_taken)?;
    Ok(())
}

/// Inserts a NEW machine whose server is about to start: `woken_at` is its marker (RUL-28).
///
/// # Errors
/// `sandbox_unavailable` when the name is taken, or a home of this identity came up since the caller looked.
pub fn insert(db: &mut Db, account: AccountId, new: &NewMachine, now: Moment) -> Result<Machine, Fault> {
    diesel::insert_into(machines::table)
        .values((
            machines::id.eq(key(new.id)),
            machines::account_id.eq(key(account)),
            machines::name.eq(&new.name),
            machines::status.eq(Word(MachineStatus::Pending)),
            machines::mode.eq(Word(new.mode)),
            machines::runtime.eq(new.runtime.as_str()),
            machines::provider.eq(Word(new.provider)),
            machines::provider_meta.eq(json(&new.provider_meta)),
            machines::lease_epoch.eq(0_i64),
            machines::woken_at.eq(at(now)),
            machines::cleanup_pending.eq(false),
            machines::departed_conversations.eq("[]"),
            machines::agent_id.eq(key(new.agent_id)),
            machines::environment_id.eq(maybe_key(new.environment_id)),
            machines::vault_id.eq(maybe_key(new.vault_id)),
            machines::inserted_at.eq(at(now)),
            machines::updated_at.eq(at(now)),
        ))
        .execute(db)
        .map_err(name_taken)?;
    find(db, new.id)?.ok_or_else(|| Fault::not_found("sandbox"))
}

/// Whether a row that is live, or still owes a delete, holds this name at the provider.
pub fn is_held(db: &mut Db, provider: Provider, name: &str) -> Result<bool, Fault> {
    let held: i64 = machines::table
        .filter(machines::provider.eq(Word(provider)))
        .filter(machines::name.eq(name))
        .filter(
            machines::status
                .ne_all([Word(MachineStatus::Terminated), Word(MachineStatus::Failed)])
                .or(machines::cleanup_pending),
        )
        .count()
        .get_result(db)?;
    Ok(held > 0)
}

/// The two unique indexes of live machines.
fn name_taken(error: diesel::result::Error) -> Fault {
    let name = violated(&error, "machines_live_name", "machines.provider, machines.name");
    if name || violated(&error, "machines_home_identity", "machines.account_id") {
        return Fault::from(ErrorCode::SandboxUnavailable);
    }
    error.into()
}

/// Reasons that take a part of a home's identity away with the row that it named.
const IDENTITY_LOST: [&str; 2] = [
    DestroyReason::EnvironmentDeleted.as_str(),
    DestroyReason::VaultDeleted.as_str(),
];

/// The live home of an identity (lifecycle 5.6).
pub fn home(
    db: &mut Db,
    account: AccountId,
    agent: AgentId,
    environment: Option<EnvironmentId>,
    vault: Option<VaultId>,
    runtime: &str,
) -> Result<Option<MachineId>, Fault> {
    let homes = machines::table
        .filter(machines::account_id.eq(key(account)))
        .filter(machines::agent_id.eq(key(agent)))
        .filter(machines::mode.eq(Word(MachineMode::Persistent)))
        .filter(machines::runtime.eq(runtime))
        .filter(machines::status.ne_all([Word(MachineStatus::Terminated), Word(MachineStatus::Failed)]))
        // As the unique index says: a home that lost its environment or vault to a delete holds no identity any more.
        .filter(
            machines::transition_reason
                .is_null()
                .or(machines::transition_reason.ne_all(IDENTITY_LOST)),
        )
        .select((machines::id, machines::environment_id, machines::vault_id))
        .load::<(Id<MachineId>, Option<Id<EnvironmentId>>, Option<Id<VaultId>>)>(db)?;
    Ok(homes
        .into_iter()
        .find(|(_, of_environment, of_vault)| inner(*of_environment) == environment && inner(*of_vault) == vault)
        .map(|(id, _, _)| id.0))
}
