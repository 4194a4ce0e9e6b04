//! A process with a journal: what a runner daemon and a sandbox server both need, and nothing of either's wire.
//!
//! A [`Session`] is one command in a process group of its own. Its output goes into a [`Journal`] from the first byte;
//! whoever wants to see it holds a [`Reader`], which is a cursor into that journal, so a slow reader costs no memory and
//! stalls no process (RUL-43). Its exit is a verdict with a drain limit (RUL-46, RUL-46a). A [`Ledger`] is the directory
//! in which sessions leave their traces: spilled journals, and a record of each process group by which the next daemon
//! finds and ends what a killed one left behind (RUL-46b). A [`Registry`] keeps sessions by owner and drops the oldest.
//!
//! Nothing here blocks the thread that polls it: starting a process, scanning processes and spilling run on the blocking
//! pool. Sessions live on the runtime that started them and end with it.

mod group;
mod identity;
mod index;
mod journal;
mod launch;
mod ledger;
mod reader;
mod recovery;
mod registry;
mod session;
mod stdin;
mod terminal;

pub use group::Group;
pub use identity::MARK;
pub use journal::{Bound, CHUNK, Exit, Journal, MEMORY_LIMIT, Recorder, Stream, Tail};
pub use launch::{
    Input, Launch, Leftovers, Local, LookupError, Output, Spawner, Started, Stderr, Stdin, Waiting, WindowSize,
    resolve, widen,
};
pub use ledger::{Ledger, LedgerError};
pub use reader::{Event, Reader};
pub use registry::{OneShot, Registry, StartError};
pub use session::{STOPPED, Session};
pub use stdin::StdinError;
pub use terminal::directions;

#[cfg(test)]
mod tests;
