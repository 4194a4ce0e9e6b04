//! What a provider's listing says about our rows (RUL-L-51, RUL-L-53, INV-59).
//!
//! It is read to its end, page by page, and only then is anything done with it: memory does not grow with the account. A
//! name is looked up after the page that showed it, and a row is written before its machine is created, so a name without
//! a row is not ours to know. What is noted of such names is true even when the listing breaks off later; everything else
//! of a broken listing is thrown away.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::super::lease::PassLease;
use crate::domain::machine::Provider;
use crate::domain::{MachineId, Moment};
use crate::ports::World;
use crate::ports::sandbox::SandboxError;
use crate::ports::store::StoreError;
use crate::ports::store::passes::NameHolder;
use crate::retry::{Policy, Verdict, retry};

/// Names that are looked up at once.
const BATCH: usize = 500;
/// Names that the log shows.
const SAMPLE: usize = 10;
/// One page of a listing may take this long.
const PAGE: Duration = Duration::from_secs(60);
/// More pages than any account has: a provider that repeats itself is broken.
const MOST_PAGES: u32 = 100_000;

/// Whether what is found is noted.
#[derive(Clone, Copy)]
pub(super) enum Mode<'a> {
    Run(&'a PassLease),
    /// Looks, and writes nothing.
    Dry,
}

/// Why a listing is none.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoListing {
    #[error("the provider did not list: {}", .0.class())]
    Provider(SandboxError),
    #[error("a page took too long")]
    Slow,
    #[error("it took longer than a listing is believed")]
    TooOld,
    #[error("it has no end")]
    Endless,
    #[error("another process runs the reaper")]
    Superseded,
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A listing that was read to its end.
pub(super) struct Harvest {
    began: Instant,
    /// The same moment on the wall clock.
    pub began_at: Moment,
    pub listed: u64,
    /// Listed names whose rows have all ended, the newest of them; the first so many.
    pub leftovers: Vec<(String, MachineId)>,
    pub untracked: u64,
    pub sample: Vec<String>,
}

impl Harvest {
    /// Too old to delete from.
    pub fn is_stale(&self, world: &World) -> bool {
        self.began.elapsed() > world.settings.listing_lifetime
    }
}

/// Reads a provider's listing. Keeps at most `most` leftovers.
pub(super) async fn harvest(
    world: &World,
    provider: Provider,
    most: usize,
    mode: Mode<'_>,
) -> Result<Harvest, NoListing> {
    let mut harvest = Harvest {
        began: Instant::now(),
        began_at: world.now(),
        listed: 0,
        leftovers: Vec::new(),
        untracked: 0,
        sample: Vec::new(),
    };
    let mut after: Option<String> = None;
    for _ in 0..MOST_PAGES {
        if let Mode::Run(lease) = mode {
            lease.guard().await.map_err(|_| NoListing::Superseded)?;
        }
        let (names, next) = page(world, provider, after.as_deref()).await?;
        if harvest.is_stale(world) {
            return Err(NoListing::TooOld);
        }
        for batch in names.chunks(BATCH) {
            harvest.take(world, provider, batch, most, mode).await?;
        }
        match next {
            None => return Ok(harvest),
            // A place that was just left leads round in a circle.
            next if next == after => return Err(NoListing::Endless),
            next => after = next,
        }
    }
    Err(NoListing::Endless)
}

async fn page(
    world: &World,
    provider: Provider,
    after: Option<&str>,
) -> Result<(Vec<String>, Option<String>), NoListing> {
    let adapter = world.adapters.get(provider).map_err(NoListing::Provider)?;
    let ask = |_| async move {
        let listed = tokio::time::timeout(PAGE, adapter.list_names(after)).await;
        listed.map_or(Err(NoListing::Slow), |page| page.map_err(NoListing::Provider))
    };
    let verdict = |error: &NoListing| match error {
        NoListing::Provider(error) if error.is_transient() => Verdict::Transient,
        _ => Verdict::Permanent,
    };
    let page = retry(Policy::CONTRACT, &mut || world.rng.unit(), verdict, ask).await?;
    Ok((page.names, page.next))
}

impl Harvest {
    async fn take(
        &mut self,
        world: &World,
        provider: Provider,
        names: &[String],
        most: usize,
        mode: Mode<'_>,
    ) -> Result<(), NoListing> {
        self.listed += names.len() as u64;
        let holders = world.store.name_holders(provider, names.to_vec()).await?;
        let holders: BTreeMap<String, NameHolder> = holders.into_iter().collect();
        let mut untracked = Vec::new();
        for name in names {
            match holders.get(name) {
                Some(NameHolder::Live) => {}
                Some(NameHolder::Ended(machine)) => {
                    if self.leftovers.len() < most {
                        self.leftovers.push((name.clone(), *machine));
                    }
                }
                None => untracked.push(name.clone()),
            }
        }
        self.untracked += untracked.len() as u64;
        let missing = SAMPLE.saturating_sub(self.sample.len());
        self.sample.extend(untracked.iter().take(missing).cloned());
        if let (Mode::Run(_), false) = (mode, untracked.is_empty()) {
            world.store.note_untracked(provider, untracked, self.began_at).await?;
        }
        Ok(())
    }
}
