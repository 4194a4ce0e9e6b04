//! Money over whole flows: the gates at launches, prompts and wakes, and what turns burn (lifecycle 4.1, 5.3, 6.2, 8;
//! RUL-19a, INV-83).

use std::time::Duration;

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::credit::{CreditSettings, CreditTerms, Grant, MILLS};
use fountain_actors::domain::machine::{MachineStatus, Provider};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::*;
use fountain_actors::doors::{Doors, LaunchRequest};
use fountain_actors::fakes::{AgentStep, FakeAgent};
use fountain_actors::passes::Passes;

use crate::conversation_bench::{Bench, Setup, text};

const HOUR: Duration = Duration::from_secs(3600);

fn billed(opening_cents: i64) -> Settings {
    Settings {
        default_provider: Provider::Fake,
        credits: Some(CreditSettings {
            terms: CreditTerms {
                reserve_cents: 200,
                floor: 2,
            },
            opening_cents,
            opening_lasts: 14 * 24 * HOUR,
            turn_hour_cents: 100,
            packs_cents: vec![1000],
        }),
        ..Settings::default()
    }
}

/// An agent that works for two hours on `long`.
async fn bench(opening_cents: i64) -> Bench {
    let agent = FakeAgent::new(|text| {
        let sleep = Duration::from_secs(if text == "long" { 7200 } else { 0 });
        vec![
            AgentStep::Sleep(sleep),
            AgentStep::Say("done".into()),
            AgentStep::Stop("end_turn"),
        ]
    });
    Bench::of(Setup {
        settings: billed(opening_cents),
        ..Setup::with(agent)
    })
    .await
}

impl Bench {
    async fn balance(&self) -> i64 {
        let standing = self
            .world
            .store
            .standing(self.caller.account_id(), None, self.world.now());
        standing.await.unwrap().balance_mills
    }

    async fn give(&self, cents: i64) {
        let account = self.caller.account_id();
        let grant = Grant {
            account,
            cents,
            note: None,
        };
        let audit = NewAudit {
            account_id: Some(account),
            action: "admin.credits.granted",
            resource_type: "account",
            resource_id: None,
            actor: Actor::Admin(account),
            request_ip: None,
            metadata: Default::default(),
        };
        let given = self.world.store.grant_credit(grant, audit, self.world.now());
        given.await.unwrap();
    }
}

#[actix::test]
async fn rul_19a_without_credit_a_launch_hears_of_that_before_anything_else() {
    let bench = bench(0).await;
    let nonsense = LaunchRequest {
        agent_id: bench.world.id(),
        prompt: Some(text(" ")),
        ..bench.request()
    };
    let refused = bench.engine.launch(bench.caller.clone(), nonsense).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::InsufficientCredits);
    bench.give(1).await;
    bench.launch(Some("hello")).await.unwrap();
    bench.close().await;
}

#[actix::test]
async fn a_new_account_begins_with_the_opening_grant() {
    let bench = bench(500).await;
    bench.warm().await;
    assert_eq!(bench.balance().await, 500 * MILLS);
    bench.close().await;
}

#[actix::test]
async fn inv_83_a_turn_that_outlives_the_balance_goes_on_and_the_next_prompt_is_refused() {
    let bench = bench(150).await;
    let passes = Passes::of(&bench.engine);
    let id = bench.warm().await;
    passes.bill().await;
    bench.prompt(id, "long").await.unwrap();
    tokio::time::sleep(HOUR + HOUR / 2).await;
    assert_eq!(bench.turns(id).await.len(), 2);
    assert!(
        bench.turns(id).await[1].ended_at.is_none(),
        "a running turn is never cut for money"
    );
    tokio::time::sleep(HOUR).await;
    bench.ended(id, 2).await;
    let balance = bench.balance().await;
    assert!((-50 * MILLS - 100..=-50 * MILLS).contains(&balance), "{balance}");
    assert_eq!(
        bench.prompt(id, "more").await.unwrap_err().code(),
        ErrorCode::InsufficientCredits
    );
    assert_eq!(bench.turns(id).await.len(), 2, "nothing was left behind");
    bench.give(100).await;
    bench.prompt(id, "more").await.unwrap();
    bench.ended(id, 3).await;
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn a_parked_machine_is_not_woken_for_an_account_without_credit() {
    let bench = bench(150).await;
    let passes = Passes::of(&bench.engine);
    let id = bench.warm().await;
    passes.bill().await;
    bench.prompt(id, "long").await.unwrap();
    tokio::time::sleep(5 * HOUR).await;
    assert_eq!(bench.view(id).await.machine.status, MachineStatus::Suspended);
    assert_eq!(
        bench.prompt(id, "more").await.unwrap_err().code(),
        ErrorCode::InsufficientCredits
    );
    assert_eq!(bench.view(id).await.machine.status, MachineStatus::Suspended);
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn execution_limits_that_nothing_enforces_let_nothing_start() {
    let bench = Bench::of(Setup {
        settings: Settings {
            execution_limits: true,
            ..billed(500)
        },
        ..Setup::default()
    })
    .await;
    let refused = bench.launch(Some("hello")).await.unwrap_err();
    assert_eq!(refused.code(), ErrorCode::ExecutionLimitsUnsupported);
    bench.close().await;
}
