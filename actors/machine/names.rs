//! Names of machines: the key by which their provider knows them (lifecycle 4.1, runner-protocol 8).
//!
//! A minted name may be replaced when a stranger or a remnant holds it; a name that the user chose is kept (RUL-L-22).

use serde_json::Value;

use crate::domain::machine::{Machine, Provider};
use crate::domain::runner::{machine_name, runner_of};
use crate::domain::{AccountId, RunnerId};
use crate::ports::Rng;

/// Key in a machine's `provider_meta`, set to true by a launch whose caller chose the name.
pub const CHOSEN: &str = "name_chosen";

/// The account's part of a name: the first eight hex digits of its id.
pub fn account_part(account: AccountId) -> String {
    format!("fountain-{:.8}", account.0.simple().to_string())
}

/// A fresh name at a provider that is not a runner: `fountain-<account>-<8 hex>`.
pub fn minted(account: AccountId, rng: &dyn Rng) -> String {
    format!("{}-{}", account_part(account), rng.hex(4))
}

/// A fresh name on a runner: `runner-<runner id>-<8 hex>`.
pub fn minted_on_runner(runner: RunnerId, rng: &dyn Rng) -> String {
    machine_name(runner, &rng.hex(4))
}

/// Whether the name was chosen by a person.
pub fn is_chosen(machine: &Machine) -> bool {
    machine.provider_meta.get(CHOSEN).and_then(Value::as_bool) == Some(true)
}

/// Another name for the same row; None when its name has to stay.
pub(crate) fn replacement(machine: &Machine, rng: &dyn Rng) -> Option<String> {
    if is_chosen(machine) {
        return None;
    }
    match (machine.provider, runner_of(&machine.name)) {
        (Provider::Runner, Some(runner)) => Some(minted_on_runner(runner, rng)),
        (Provider::Runner, None) => None,
        (_, _) => Some(match machine.account_id {
            Some(account) => minted(account, rng),
            // The account is gone; what is left of the old name still says whose it was.
            None => format!(
                "{}-{}",
                machine.name.rsplit_once('-').map_or("fountain", |(head, _)| head),
                rng.hex(4)
            ),
        }),
    }
}
