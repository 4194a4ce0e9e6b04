//! Homes: in which process the server of a conversation, or a runner's connection, is.

use diesel::prelude::*;

use fountain_actors::domain::*;
use fountain_actors::ports::store::replicas::{Member, Resident};
use fountain_actors::ports::store::turns::Serving;

use super::members;
use crate::on_backend;
use crate::store::backend::{Db, Fault, lease_clock};
use crate::store::columns::{Id, key};
use crate::store::schema::{actor_homes, conversations};
use crate::store::turns::admission;

const CONVERSATION: &str = "conversation";
const RUNNER: &str = "runner";

fn address(resident: Resident) -> (&'static str, String) {
    match resident {
        Resident::Conversation(id) => (CONVERSATION, key(id)),
        Resident::Runner(id) => (RUNNER, key(id)),
    }
}

/// A new generation of a conversation's server, and its home.
pub fn register(db: &mut Db, conversation: ConversationId, holder: &str, now: Moment) -> Result<Serving, Fault> {
    let serving = admission::start_server(db, conversation, now)?;
    let generation = serving.conversation.server_epoch.0;
    move_in(db, Resident::Conversation(conversation), holder, generation)?;
    Ok(serving)
}

/// The last one to move in lives there.
pub fn move_in(db: &mut Db, resident: Resident, holder: &str, generation: i64) -> Result<(), Fault> {
    let (kind, id) = address(resident);
    let home = (actor_homes::holder.eq(holder), actor_homes::generation.eq(generation));
    on_backend!(db, |conn| diesel::insert_into(actor_homes::table)
        .values((actor_homes::kind.eq(kind), actor_homes::id.eq(&id), home))
        .on_conflict((actor_homes::kind, actor_homes::id))
        .do_update()
        .set(home)
        .execute(conn))?;
    Ok(())
}

pub fn vacate(db: &mut Db, resident: Resident, holder: &str, generation: Option<i64>) -> Result<(), Fault> {
    let (kind, id) = address(resident);
    let home = actor_homes::table
        .find((kind, id))
        .filter(actor_homes::holder.eq(holder));
    match generation {
        Some(generation) => diesel::delete(home.filter(actor_homes::generation.eq(generation))).execute(db)?,
        None => diesel::delete(home).execute(db)?,
    };
    Ok(())
}

/// Every home in a process goes.
pub fn clear(db: &mut Db, holder: &str) -> Result<(), Fault> {
    diesel::delete(actor_homes::table.filter(actor_homes::holder.eq(holder))).execute(db)?;
    Ok(())
}

pub fn clear_others(db: &mut Db, holder: &str) -> Result<(), Fault> {
    diesel::delete(actor_homes::table.filter(actor_homes::holder.ne(holder))).execute(db)?;
    Ok(())
}

/// Conversations with a home in a process.
pub fn within(db: &mut Db, holder: &str) -> Result<Vec<(ConversationId, ServerEpoch)>, Fault> {
    let homes: Vec<(Id<ConversationId>, i64)> = actor_homes::table
        .filter(actor_homes::kind.eq(CONVERSATION))
        .filter(actor_homes::holder.eq(holder))
        .order(actor_homes::id)
        .select((actor_homes::id, actor_homes::generation))
        .load(db)?;
    Ok(homes
        .into_iter()
        .map(|(id, generation)| (id.0, ServerEpoch(generation)))
        .collect())
}

pub fn of(db: &mut Db, resident: Resident, now: Moment) -> Result<Option<Member>, Fault> {
    let clock = lease_clock(db, now)?;
    let (kind, id) = address(resident);
    let holder: Option<String> = actor_homes::table
        .find((kind, id))
        .select(actor_homes::holder)
        .first(db)
        .optional()?;
    match holder {
        Some(holder) => members::of(db, &holder, clock),
        None => Ok(None),
    }
}

/// Conversations bound to a machine whose servers live in members.
pub fn living_on(db: &mut Db, machine: MachineId, now: Moment) -> Result<Vec<(ConversationId, String)>, Fault> {
    let clock = lease_clock(db, now)?;
    let bound = conversations::table
        .filter(conversations::machine_id.eq(key(machine)))
        .select(conversations::id);
    let homes: Vec<(Id<ConversationId>, String)> = actor_homes::table
        .filter(actor_homes::kind.eq(CONVERSATION))
        .filter(actor_homes::id.eq_any(bound))
        .order(actor_homes::id)
        .select((actor_homes::id, actor_homes::holder))
        .load(db)?;
    let mut living = Vec::with_capacity(homes.len());
    for (id, holder) in homes {
        if members::is_member(db, &holder, clock)? {
            living.push((id.0, holder));
        }
    }
    Ok(living)
}
