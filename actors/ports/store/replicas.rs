//! The processes of a deployment, and where servers and runners live (RUL-L-7, RUL-L-8; INV-110).
//!
//! A process is a *member* while its row's heartbeat, written every five seconds on the lease clock, is younger than
//! [`MEMBER_FOR`]. A server lives where its home row says, if that process is a member; a process's own memory proves
//! nothing about the others.

use std::time::Duration;

use super::Answer;
use super::turns::Serving;
use crate::domain::*;

/// A heartbeat older than this is a process that is gone (RUL-L-7).
pub const MEMBER_FOR: Duration = Duration::from_secs(20);

/// A process that is a member.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    /// Under which it holds leases (RUL-L-6).
    pub holder: String,
    /// Where others reach it.
    pub url: String,
    /// It hands over and takes nothing new (INV-112).
    pub draining: bool,
    /// On the lease clock.
    pub heartbeat: Moment,
}

/// What has a home.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resident {
    /// The server of this conversation.
    Conversation(ConversationId),
    /// The connection of this runner; the newest one counts.
    Runner(RunnerId),
}

/// One heartbeat.
#[derive(Clone, Debug)]
pub struct Beat {
    pub holder: String,
    pub url: String,
    pub draining: bool,
    /// The heartbeat that this process was last told of, plus what its monotonic clock measured since. On SQLite the
    /// lease clock is at least this, so that it goes on while the wall clock stands before what was stored (RUL-L-11).
    pub at_least: Option<Moment>,
    pub now: Moment,
}

pub trait ReplicaStore {
    /// Writes this process's heartbeat. Answers all members, itself included, by holder. Rows of processes that are gone
    /// for an hour are forgotten.
    fn beat(&self, beat: Beat) -> Answer<'_, Vec<Member>>;
    /// All members, by holder.
    fn members(&self, now: Moment) -> Answer<'_, Vec<Member>>;
    /// A process says goodbye: its row and every home in it go.
    fn leave(&self, holder: String) -> Answer<'_, ()>;

    /// `start_server`, and in the same transaction the home of the new generation (RUL-L-8).
    fn register_server(&self, conversation: ConversationId, holder: String, now: Moment) -> Answer<'_, Serving>;
    /// This generation of the server has stopped. Leaves a newer one's home alone.
    fn leave_home(&self, conversation: ConversationId, holder: String, generation: ServerEpoch) -> Answer<'_, ()>;
    /// Conversations whose servers live in this process, by its rows.
    fn homes_in(&self, holder: String) -> Answer<'_, Vec<(ConversationId, ServerEpoch)>>;
    /// A runner's newest connection is in this process.
    fn seat_runner(&self, runner: RunnerId, holder: String) -> Answer<'_, ()>;
    /// It is not any more; does nothing when it has connected elsewhere since.
    fn unseat_runner(&self, runner: RunnerId, holder: String) -> Answer<'_, ()>;

    /// The member in which something lives; None: nowhere.
    fn home(&self, resident: Resident, now: Moment) -> Answer<'_, Option<Member>>;
    /// Conversations bound to a machine whose servers live, each with its member's holder.
    fn servers_on(&self, machine: MachineId, now: Moment) -> Answer<'_, Vec<(ConversationId, String)>>;
}
