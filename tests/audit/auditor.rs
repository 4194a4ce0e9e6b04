//! The auditor of DESIGN 9 for tests that have a store and a fake provider: rows, journal and log, after every test.

use std::time::Duration;

use fountain::store::SqlStore;
use fountain::store::audit::Violation;
use fountain_actors::domain::Moment;
use fountain_actors::domain::machine::Provider;
use fountain_actors::fakes::FakeSandbox;
use fountain_actors::ports::sandbox::RunState;
use fountain_actors::ports::store::StoreError;
use secrecy::SecretString;

use super::provider::{Account, compare};

/// What an audit starts from.
pub struct Audit<'a> {
    pub store: &'a SqlStore,
    pub fake: &'a FakeSandbox,
    pub provider: Provider,
    /// The clock when the fake was made: its log counts from there.
    pub began: Moment,
    /// The shortest lease.
    pub lease: Duration,
    pub secrets: Vec<SecretString>,
}

impl Audit<'_> {
    /// Everything that is broken, except what the test has a reason for, by law.
    ///
    /// # Errors
    /// What the store said.
    pub async fn run(self, excused: &[&str]) -> Result<Vec<Violation>, StoreError> {
        let mut found = self.store.audit_rows(self.secrets).await?;
        let facts = self.store.audit_facts().await?;
        let log = self.fake.log();
        let running: Vec<String> = self
            .fake
            .machines()
            .into_iter()
            .filter(|name| self.fake.run_state(name) == Some(RunState::Running))
            .collect();
        let account = Account {
            provider: self.provider,
            log: &log,
            running: &running,
            began: self.began,
            lease: self.lease,
        };
        found.extend(compare(&facts, &account));
        found.retain(|violation| !excused.contains(&violation.law));
        Ok(found)
    }
}

/// Fails the test that left a broken promise behind. Only for stores that answer at once (`Execution::Inline`).
///
/// # Panics
/// When something is broken and the test has not failed already.
#[track_caller]
pub fn assert_honest(audit: Audit<'_>, excused: &[&str]) {
    if std::thread::panicking() {
        return;
    }
    let found = futures_util::FutureExt::now_or_never(audit.run(excused));
    let found = found
        .expect("an inline store answers at once")
        .expect("the store answers");
    let told: Vec<String> = found.iter().map(ToString::to_string).collect();
    assert!(found.is_empty(), "the auditor found:\n{}", told.join("\n"));
}
