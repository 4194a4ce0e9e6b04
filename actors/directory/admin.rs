//! An operator's acts, each handed to whoever decides: the machine's owner, the breaker, the books (http-api 5.14).

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use tokio::time::timeout;

use super::Engine;
use crate::domain::account::{Actor as By, Caller, NewAudit};
use crate::domain::explain::ledger::{self, Books, Listing};
use crate::domain::machine::{Machine, Provider};
use crate::domain::{ErrorCode, MachineId, Refusal};
use crate::doors::Answer;
use crate::doors::admin::{AdminDoors, Ledger};
use crate::machine::messages::{Destroy, MachineError, Reap, Reaped};
use crate::ports::sandbox::SandboxError;
use crate::ports::store::StoreError;
use crate::ports::store::passes::NameHolder;

/// For the whole listing of one provider; an operator waits for the answer.
const LISTING: Duration = Duration::from_secs(60);
/// Names that the store is asked about at once.
const CHUNK: usize = 500;

impl AdminDoors for Engine {
    fn reap(&self, admin: Caller, machine: MachineId) -> Answer<'_, Reaped> {
        Box::pin(async move {
            self.any_machine(machine).await?;
            let reap = Reap {
                admin: admin.account_id(),
                actor: By::Admin(admin.account_id()),
                request_ip: admin.remote_ip.clone(),
            };
            let reaped = self.ask_machine(machine, reap).await.map_err(|e| e.refusal())?;
            self.stand_down(machine);
            Ok(reaped)
        })
    }

    fn retry_reset(&self, admin: Caller, machine: MachineId) -> Answer<'_, ()> {
        Box::pin(async move {
            let found = self.any_machine(machine).await?;
            self.note(&admin, "admin.sandbox.reset_retried", "sandbox", machine.to_string())
                .await?;
            let actor = By::Admin(admin.account_id());
            let asked = self.ask_machine(machine, Destroy { actor });
            match timeout(self.world().settings.reset_wait, asked).await {
                Ok(Ok(_)) => Ok(()),
                Ok(Err(MachineError::NotFenced)) => Err(Refusal::NotResettable(found.status.to_string())),
                Ok(Err(MachineError::Unconfirmed)) | Err(_) => Err(ErrorCode::SandboxResetPending.into()),
                Ok(Err(error)) => Err(error.refusal()),
            }
        })
    }

    fn confirm_lost(&self, admin: Caller, provider: Provider) -> Answer<'_, bool> {
        Box::pin(async move {
            let word = provider.as_str();
            self.note(&admin, "admin.provider.lost_confirmed", "provider", word.to_owned())
                .await?;
            let was_held_back = self.inner.breaker.tripped().contains(&word);
            self.inner.breaker.confirm(provider);
            Ok(was_held_back)
        })
    }

    fn ledger(&self) -> Answer<'_, Ledger> {
        Box::pin(async move {
            // Listings first: what is reserved afterwards only makes the difference smaller (RUL-L-51).
            let mut listings = BTreeMap::new();
            for provider in self.world().adapters.providers() {
                let listed = timeout(LISTING, self.list(provider)).await;
                listings.insert(provider.as_str(), (provider, listed));
            }
            let books = self.world().store.books().await.map_err(refused)?;
            let mut known = BTreeMap::new();
            for (word, (provider, listed)) in listings {
                let listing = match listed {
                    Ok(Ok(all)) => Listing::Names {
                        parked: self.parked(provider, &books, &all).await.map_err(refused)?,
                        all,
                    },
                    Ok(Err(error)) => Listing::Unreadable(error.class().to_owned()),
                    Err(_) => Listing::Unreadable("timeout".to_owned()),
                };
                known.insert(word, (provider, listing));
            }
            Ok(Ledger {
                balances: ledger::balance(&books, known),
                books,
            })
        })
    }
}

fn refused(error: StoreError) -> Refusal {
    error.refusal()
}

impl Engine {
    /// A machine of whichever account.
    async fn any_machine(&self, machine: MachineId) -> Result<Machine, Refusal> {
        let found = self.world().store.machine(machine).await.map_err(refused)?;
        found.ok_or_else(|| ErrorCode::NotFound.into())
    }

    async fn note(
        &self,
        admin: &Caller,
        action: &'static str,
        resource_type: &'static str,
        resource_id: String,
    ) -> Result<(), Refusal> {
        let audit = NewAudit {
            account_id: Some(admin.account_id()),
            action,
            resource_type,
            resource_id: Some(resource_id),
            actor: By::Admin(admin.account_id()),
            request_ip: admin.remote_ip.clone(),
            metadata: BTreeMap::new(),
        };
        let world = self.world();
        world.store.note(audit, world.now()).await.map_err(refused)
    }

    /// Every name of one provider, page by page; all or an error, never a part.
    async fn list(&self, provider: Provider) -> Result<BTreeSet<String>, SandboxError> {
        let adapter = self.world().adapters.get(provider)?;
        let mut all = BTreeSet::new();
        let mut after: Option<String> = None;
        loop {
            let page = adapter.list_names(after.as_deref()).await?;
            all.extend(page.names);
            match page.next {
                // A provider that hands out the same page for ever is not readable.
                Some(next) if Some(&next) == after.as_ref() => {
                    return Err(SandboxError::Unavailable("the listing does not advance".into()));
                }
                Some(next) => after = Some(next),
                None => return Ok(all),
            }
        }
    }

    /// Listed names that the books do not explain and that a live row holds: those rows are parked.
    async fn parked(
        &self,
        provider: Provider,
        books: &Books,
        all: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, StoreError> {
        let mut parked = BTreeSet::new();
        for names in ledger::unexplained(books, provider, all).chunks(CHUNK) {
            let holders = self.world().store.name_holders(provider, names.to_vec()).await?;
            let live = holders.into_iter().filter(|(_, holder)| *holder == NameHolder::Live);
            parked.extend(live.map(|(name, _)| name));
        }
        Ok(parked)
    }
}
