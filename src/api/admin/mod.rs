//! What administrators see and do across accounts (http-api 5.14, lifecycle 10.4). Every change is in the audit trail of the account that
//! it concerns, with the administrator as its actor.

pub mod ledger;
pub mod sandboxes;
pub mod users;
