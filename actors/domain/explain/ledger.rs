//! The ledger: reservations against the machines that exist, and their difference (promise 7, RUL-L-73).
//!
//! Open debts, untracked machines and machines that were handed over are its only stated exceptions; each is listed. A
//! machine that nothing explains is listed as such: that is a fault of ours, and somebody must look. A provider that
//! could not be listed has no machines here, and no difference: unreadable is never empty.

use std::collections::{BTreeMap, BTreeSet};

use crate::domain::machine::{MachineStatus, Provider};
use crate::domain::{AccountId, MachineId, Moment};

/// A row that the ledger must know: counted, indebted, or handed over.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    pub machine: MachineId,
    pub account: Option<AccountId>,
    pub provider: Provider,
    pub name: String,
    pub status: MachineStatus,
    pub counted: bool,
    /// Names under which an operation with an unknown effect may have left something (RUL-L-3).
    pub debts: Vec<String>,
    /// It ended without evidence.
    pub handed_over: bool,
}

/// A machine that no row explains (RUL-L-53).
#[derive(Clone, Debug, PartialEq)]
pub struct Untracked {
    pub provider: Provider,
    pub name: String,
    pub first_seen: Moment,
    pub last_seen: Moment,
}

/// What the rows say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Books {
    pub entries: Vec<Entry>,
    pub untracked: Vec<Untracked>,
}

/// What one provider says.
#[derive(Clone, Debug, PartialEq)]
pub enum Listing {
    /// Every name, and of those that the books do not explain the ones that an uncounted live row holds: parked.
    Names {
        all: BTreeSet<String>,
        parked: BTreeSet<String>,
    },
    /// The class of the error.
    Unreadable(String),
}

/// Why a machine exists that no reservation counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exception {
    OpenDebt,
    HandedOver,
    Untracked,
    Unexplained,
}

impl Exception {
    pub fn word(self) -> &'static str {
        match self {
            Self::OpenDebt => "open_debt",
            Self::HandedOver => "handed_over",
            Self::Untracked => "untracked",
            Self::Unexplained => "unexplained",
        }
    }
}

/// One provider's account.
#[derive(Clone, Debug, PartialEq)]
pub struct Balance {
    pub provider: Provider,
    /// Rows that take a slot.
    pub reserved: usize,
    /// None: it could not be listed, for this reason.
    pub listed: Result<usize, String>,
    /// Listed machines whose row is parked and takes no slot.
    pub parked: usize,
    /// Reservations without a machine: not created yet, deleted and not confirmed, or not to be seen.
    pub reserved_only: Vec<Entry>,
    /// Machines without a reservation, each with its reason.
    pub unreserved: Vec<(String, Exception)>,
}

/// Names of one provider that the books do not explain, so that the caller can ask whose they are.
pub fn unexplained(books: &Books, provider: Provider, all: &BTreeSet<String>) -> Vec<String> {
    let counted = counted_names(books, provider);
    let open: Vec<&String> = all.iter().filter(|name| !counted.contains(name.as_str())).collect();
    open.into_iter()
        .filter(|name| exception(books, provider, name) == Exception::Unexplained)
        .cloned()
        .collect()
}

fn counted_names(books: &Books, provider: Provider) -> BTreeSet<&str> {
    let rows = books
        .entries
        .iter()
        .filter(|row| row.provider == provider && row.counted);
    rows.map(|row| row.name.as_str()).collect()
}

fn exception(books: &Books, provider: Provider, name: &str) -> Exception {
    let mut rows = books.entries.iter().filter(|row| row.provider == provider);
    if rows.clone().any(|row| row.debts.iter().any(|debt| debt == name)) {
        return Exception::OpenDebt;
    }
    if rows.any(|row| row.handed_over && row.name == name) {
        return Exception::HandedOver;
    }
    let mut untracked = books.untracked.iter();
    match untracked.any(|machine| machine.provider == provider && machine.name == name) {
        true => Exception::Untracked,
        false => Exception::Unexplained,
    }
}

/// Sets reservations against machines, for every provider that has either.
pub fn balance(books: &Books, listings: BTreeMap<&'static str, (Provider, Listing)>) -> Vec<Balance> {
    let mut providers: BTreeMap<&'static str, Provider> = listings
        .iter()
        .map(|(word, (provider, _))| (*word, *provider))
        .collect();
    for row in books.entries.iter().filter(|row| row.counted) {
        providers.insert(row.provider.as_str(), row.provider);
    }
    let one = |(word, provider): (&'static str, Provider)| {
        let reserved = books
            .entries
            .iter()
            .filter(|row| row.provider == provider && row.counted);
        let listing = listings.get(word).map(|(_, listing)| listing);
        let mut balance = Balance {
            provider,
            reserved: reserved.clone().count(),
            listed: Err("not_configured".to_owned()),
            parked: 0,
            reserved_only: Vec::new(),
            unreserved: Vec::new(),
        };
        match listing {
            None => {}
            Some(Listing::Unreadable(why)) => balance.listed = Err(why.clone()),
            Some(Listing::Names { all, parked }) => {
                let counted = counted_names(books, provider);
                balance.listed = Ok(all.len());
                balance.parked = parked.len();
                balance.reserved_only = reserved.filter(|row| !all.contains(&row.name)).cloned().collect();
                balance.unreserved = all
                    .iter()
                    .filter(|name| !counted.contains(name.as_str()) && !parked.contains(*name))
                    .map(|name| (name.clone(), exception(books, provider, name)))
                    .collect();
            }
        }
        balance
    };
    providers.into_iter().map(one).collect()
}
