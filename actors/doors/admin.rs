//! What an operator may ask of the domain (http-api 5.14, lifecycle 10.4). Whoever calls this has checked the role.

use crate::domain::MachineId;
use crate::domain::account::Caller;
use crate::domain::explain::ledger::{Balance, Books};
use crate::domain::machine::Provider;
use crate::machine::messages::Reaped;

use super::Answer;

/// Reservations against machines, with the rows that explain the difference (RUL-L-73).
#[derive(Clone, Debug, PartialEq)]
pub struct Ledger {
    pub balances: Vec<Balance>,
    pub books: Books,
}

pub trait AdminDoors {
    /// Ends a row of any account without evidence; the machine is left to the operator (RUL-L-47). `NotFound` without a
    /// row; `sandbox_unavailable` when somebody holds it for longer than 5 s.
    fn reap(&self, admin: Caller, machine: MachineId) -> Answer<'_, Reaped>;
    /// Tries the delete of a fenced machine, or one that is owed, now. `sandbox_reset_pending` when it is not confirmed
    /// within 20 s, `sandbox_not_resettable` for a row that owes none.
    fn retry_reset(&self, admin: Caller, machine: MachineId) -> Answer<'_, ()>;
    /// The operator has looked: not-founds of this provider are believed again, on this replica (RUL-L-28).
    /// Answers whether they were held back.
    fn confirm_lost(&self, admin: Caller, provider: Provider) -> Answer<'_, bool>;
    /// Lists every configured provider, a minute each at most, and compares.
    fn ledger(&self) -> Answer<'_, Ledger>;
}
