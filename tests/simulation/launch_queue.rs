//! The launch queue over whole flows: waiting, draining when a slot becomes free, replays (lifecycle 2.7; INV-102, INV-103,
//! INV-106; ).

use std::time::Duration;

use fountain_actors::directory::Replayed;
use fountain_actors::domain::machine::{MachineMode, Provider};
use fountain_actors::domain::queue::{RequestStatus, RequestView, SandboxRequest};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::turn::TurnStatus;
use fountain_actors::domain::*;
use fountain_actors::doors::{Doors, LaunchRequest, LaunchedOrQueued};
use fountain_actors::fakes::{AgentStep, FakeAgent, Fault, Op};
use fountain_actors::passes::Passes;
use fountain_actors::ports::store::queue::{ClaimedRequest, RequestOutcome};

use crate::conversation_bench::{Bench, Setup, text};

/// A bench whose account may have `cap` machines, each of its own.
pub async fn tight(cap: i64) -> Bench {
    tight_with(cap, FakeAgent::echo()).await
}

async fn tight_with(cap: i64, agent: FakeAgent) -> Bench {
    Bench::of(Setup {
        settings: Settings {
            default_provider: Provider::Fake,
            cap_ceiling: cap,
            ..Settings::default()
        },
        mode: MachineMode::Ephemeral,
        ..Setup::with(agent)
    })
    .await
}

/// `sleep` never ends by itself; everything else is said back.
fn sleeper() -> FakeAgent {
    FakeAgent::new(|text| match text {
        "sleep" => vec![
            AgentStep::Say("begun".into()),
            AgentStep::Sleep(Duration::from_secs(86_400)),
        ],
        text => vec![AgentStep::Say(format!("echo: {text}")), AgentStep::Stop("end_turn")],
    })
}

impl Bench {
    pub async fn wish(&self, request: LaunchRequest) -> Result<RequestView, Refusal> {
        match self.engine.launch_or_queue(self.caller.clone(), request).await? {
            LaunchedOrQueued::Queued(view) => Ok(view),
            LaunchedOrQueued::Launched(launched) => panic!("there was room for {:?}", launched.view.conversation.id),
        }
    }

    async fn wish_for(&self, words: &str) -> RequestView {
        let request = LaunchRequest {
            prompt: Some(text(words)),
            ..self.request()
        };
        self.wish(request).await.unwrap()
    }

    pub async fn queued(&self, id: QueueRequestId) -> SandboxRequest {
        let view = self.world.store.queue_request(self.caller.account_id(), id).await;
        view.unwrap().unwrap().request
    }

    async fn claim(&self) -> ClaimedRequest {
        let (store, now) = (&self.world.store, self.world.now());
        let stale = now - chrono::TimeDelta::seconds(300);
        let claim = store.claim_request(self.caller.account_id(), Vec::new(), stale, now);
        claim.await.unwrap().unwrap()
    }
}

#[actix::test]
async fn inv_102_inv_103_a_freed_slot_starts_what_waited_at_once() {
    let bench = tight(1).await;
    let passes = Passes::of(&bench.engine);
    let first = bench.warm().await;
    let waiting = bench.wish_for("second").await;
    assert_eq!(
        (waiting.position, waiting.request.status),
        (Some(1), RequestStatus::Queued)
    );
    tokio::time::sleep(Duration::from_secs(120)).await;
    assert_eq!(bench.queued(waiting.request.id).await.status, RequestStatus::Queued);
    let ended = tokio::time::Instant::now();
    bench.terminate(first).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert!(
        ended.elapsed() < Duration::from_secs(60),
        "long before the next run by the clock"
    );
    let request = bench.queued(waiting.request.id).await;
    assert_eq!((request.status, &request.launch), (RequestStatus::Started, &None));
    let id = request.conversation_id.unwrap();
    assert_eq!(bench.ended(id, 1).await.prompt, "second");
    assert_eq!(bench.said(id).await, "echo: second");
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn the_line_is_walked_in_its_order_and_stops_where_there_is_no_room() {
    let bench = tight(1).await;
    let first = bench.warm().await;
    let one = bench.wish_for("one").await;
    tokio::time::sleep(Duration::from_secs(1)).await; // of one moment the ids decide
    let two = bench.wish_for("two").await;
    let passes = Passes::of(&bench.engine);
    assert_eq!(passes.drain_queue().await.done, 0);
    for waiting in [&one, &two] {
        assert_eq!(bench.queued(waiting.request.id).await.status, RequestStatus::Queued);
    }
    bench.terminate(first).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(bench.queued(one.request.id).await.status, RequestStatus::Started);
    assert_eq!(bench.queued(two.request.id).await.status, RequestStatus::Queued);
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn a_full_queue_and_a_launch_that_never_waits_keep_the_refusal() {
    let bench = Bench::of(Setup {
        settings: Settings {
            default_provider: Provider::Fake,
            cap_ceiling: 1,
            queue_max_depth: 1,
            ..Settings::default()
        },
        mode: MachineMode::Ephemeral,
        ..Setup::default()
    })
    .await;
    let first = bench.warm().await;
    bench.wish_for("one").await;
    let refused = async |request: LaunchRequest| bench.wish(request).await.unwrap_err();
    let plain = LaunchRequest {
        prompt: Some(text("two")),
        ..bench.request()
    };
    assert_eq!(refused(plain).await, Refusal::QuotaExceeded { active: 1, limit: 1 });
    let mut prompt = text("look");
    prompt.images.push(fountain_actors::domain::turn::PromptImage {
        media_type: "image/png".into(),
        bytes: vec![1].into(),
    });
    let pictures = LaunchRequest {
        prompt: Some(prompt),
        ..bench.request()
    };
    assert_eq!(refused(pictures).await.code(), ErrorCode::SandboxQuotaExceeded);
    let foreign = LaunchRequest {
        sandbox_id: Some(bench.view(first).await.machine.id),
        vault_id: Some(bench.world.id()),
        ..bench.request()
    };
    assert_eq!(
        refused(foreign).await.code(),
        ErrorCode::VaultNotFound,
        "other refusals stand"
    );
    bench.close().await;
}

#[actix::test]
async fn inv_106_what_waits_too_long_expires_and_keeps_nothing() {
    let bench = Bench::of(Setup {
        settings: Settings {
            default_provider: Provider::Fake,
            cap_ceiling: 1,
            idle_timeout: None,
            ..Settings::default()
        },
        mode: MachineMode::Ephemeral,
        ..Setup::default()
    })
    .await;
    bench.warm().await;
    let waiting = bench.wish_for("late").await;
    let passes = Passes::of(&bench.engine);
    tokio::time::sleep(Duration::from_secs(3600 - 60)).await;
    assert_eq!(bench.queued(waiting.request.id).await.status, RequestStatus::Queued);
    tokio::time::sleep(Duration::from_secs(6 * 60)).await;
    let request = bench.queued(waiting.request.id).await;
    assert_eq!((request.status, request.launch), (RequestStatus::Expired, None));
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn a_replay_goes_through_every_gate_and_a_lasting_refusal_ends_it() {
    let bench = tight(1).await;
    let first = bench.warm().await;
    let waiting = bench.wish_for("second").await;
    let account = bench.caller.account_id();
    let suspend = fountain_actors::domain::credit::UserChange::Suspended(true);
    let audit = fountain_actors::domain::account::NewAudit {
        account_id: Some(account),
        action: "admin.account.suspended",
        resource_type: "account",
        resource_id: None,
        actor: fountain_actors::domain::account::Actor::Api,
        request_ip: None,
        metadata: Default::default(),
    };
    bench
        .world
        .store
        .change_user(account, suspend, audit, bench.world.now())
        .await
        .unwrap();
    let passes = Passes::of(&bench.engine);
    passes.drain_queue().await;
    let request = bench.queued(waiting.request.id).await;
    assert_eq!(
        (request.status, request.error.as_deref(), request.launch),
        (RequestStatus::Failed, Some("account_suspended"), None)
    );
    assert_eq!(bench.turns(first).await.len(), 1);
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn r_103_a_channel_that_somebody_bound_meanwhile_gets_the_prompt_and_busy_keeps_it_waiting() {
    let bench = tight_with(1, sleeper()).await;
    let first = bench.warm().await;
    let in_channel = |words: &str| LaunchRequest {
        prompt: Some(text(words)),
        channel_id: Some("team".into()),
        ..bench.request()
    };
    let waiting = bench.wish(in_channel("mine")).await.unwrap();
    bench.terminate(first).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    // Somebody else takes the slot, and the channel, and works.
    let other = bench
        .engine
        .launch(bench.caller.clone(), in_channel("sleep"))
        .await
        .unwrap();
    let other = other.view.conversation.id;
    bench.heard(other, "begun").await;
    let passes = Passes::of(&bench.engine);
    passes.drain_queue().await;
    assert_eq!(
        bench.queued(waiting.request.id).await.status,
        RequestStatus::Queued,
        "busy"
    );
    bench.interrupt(other).await.unwrap();
    passes.drain_queue().await;
    let request = bench.queued(waiting.request.id).await;
    assert_eq!(
        (request.status, request.conversation_id),
        (RequestStatus::Started, Some(other))
    );
    assert_eq!(bench.ended(other, 2).await.prompt, "mine");
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn rul_l_58_a_drain_that_died_between_prompt_and_outcome_sends_no_prompt_twice() {
    let bench = tight(1).await;
    let first = bench.warm().await;
    let in_channel = LaunchRequest {
        prompt: Some(text("once")),
        channel_id: Some("team".into()),
        ..bench.request()
    };
    let waiting = bench.wish(in_channel.clone()).await.unwrap();
    bench.terminate(first).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let bound = LaunchRequest {
        prompt: None,
        ..in_channel
    };
    let bound = bench.engine.launch(bench.caller.clone(), bound).await.unwrap();
    let bound = bound.view.conversation.id;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let claim = bench.claim().await;
    assert_eq!(bench.engine.replay(&claim).await, Replayed::Delivered(bound));
    bench.ended(bound, 1).await;
    // It dies here. Another drain finds the claim old enough.
    tokio::time::sleep(Duration::from_secs(301)).await;
    let again = bench.claim().await;
    assert_eq!(again.request.id, waiting.request.id);
    assert_eq!(bench.engine.replay(&again).await, Replayed::Delivered(bound));
    assert_eq!(bench.turns(bound).await.len(), 1);
    let finish = |claim, outcome| bench.world.store.finish_request(claim, outcome, bench.world.now());
    let late = finish(claim, RequestOutcome::Failed("late".into())).await;
    assert!(!late.unwrap().value, "R-105: the claim holder writes, nobody else");
    assert!(finish(again, RequestOutcome::Started(bound)).await.unwrap().value);
    bench.close().await;
}

#[actix::test]
async fn inv_103_two_drains_start_one_conversation() {
    let bench = tight(1).await;
    let first = bench.warm().await;
    let waiting = bench.wish_for("second").await;
    bench.terminate(first).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let (here, there) = (Passes::of(&bench.engine), Passes::of(&bench.engine));
    let (one, two) = tokio::join!(here.drain_queue(), there.drain_queue());
    assert_eq!(one.done + two.done, 1);
    let request = bench.queued(waiting.request.id).await;
    assert_eq!(request.status, RequestStatus::Started);
    let all = bench
        .world
        .store
        .conversation_views(bench.caller.account_id(), Default::default())
        .await
        .unwrap();
    assert_eq!(all.len(), 2);
    here.stop().await;
    there.stop().await;
    bench.close().await;
}

#[actix::test]
async fn inv_103_a_process_that_dies_behind_the_reservation_leaves_a_started_request_and_its_turn_runs() {
    let mut bench = tight(1).await;
    let first = bench.warm().await;
    let waiting = bench.wish_for("second").await;
    bench.terminate(first).await.unwrap();
    tokio::time::sleep(Duration::from_secs(30)).await;
    bench.sandbox.plan(Op::Create, Fault::Slow(Duration::from_secs(20)));
    let passes = Passes::of(&bench.engine);
    passes.drain_queue().await;
    passes.stop().await;
    bench.kill_and_restart().await;
    bench.engine.boot().await.unwrap();
    let request = bench.queued(waiting.request.id).await;
    assert_eq!(request.status, RequestStatus::Started);
    let id = request.conversation_id.unwrap();
    let turn = bench.ended(id, 1).await;
    assert_eq!((turn.status, turn.prompt.as_str()), (TurnStatus::Completed, "second"));
    bench.close().await;
}

#[actix::test]
async fn inv_102_a_park_frees_a_slot_too() {
    let bench = Bench::of(Setup {
        settings: Settings {
            default_provider: Provider::Fake,
            cap_ceiling: 1,
            idle_timeout: Some(Duration::from_secs(10 * 60)),
            ..Settings::default()
        },
        mode: MachineMode::Ephemeral,
        ..Setup::default()
    })
    .await;
    let passes = Passes::of(&bench.engine);
    bench.warm().await;
    let waiting = bench.wish_for("second").await;
    tokio::time::sleep(Duration::from_secs(13 * 60)).await;
    let request = bench.queued(waiting.request.id).await;
    assert_eq!(request.status, RequestStatus::Started);
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn r_49_a_double_click_at_the_cap_makes_one_machine_and_the_prompt_goes_to_it() {
    let bench = Bench::of(Setup {
        settings: Settings {
            default_provider: Provider::Fake,
            cap_ceiling: 1,
            ..Settings::default()
        },
        ..Setup::default()
    })
    .await;
    let (one, two) = tokio::join!(bench.launch(Some("hello")), bench.launch(Some("hello")));
    let won: Vec<_> = [&one, &two].into_iter().flatten().collect();
    assert_eq!(won.len(), 1, "{one:?} {two:?}");
    let lost = one.as_ref().err().or(two.as_ref().err()).unwrap();
    assert_eq!(
        lost.code(),
        ErrorCode::Provisioning,
        "not a word of the cap: its home is being built"
    );
    let id = won[0].view.conversation.id;
    bench.ended(id, 1).await;
    let account = bench.caller.account_id();
    let machines = bench.world.store.machine_views(account, Vec::new()).await.unwrap();
    assert_eq!(machines.len(), 1);
    let again = bench.launch(Some("again")).await.unwrap().view;
    assert_eq!(again.machine.id, machines[0].machine.id);
    assert_eq!(bench.ended(again.conversation.id, 1).await.prompt, "again");
    bench.close().await;
}

#[actix::test]
async fn r_05_a_slow_wake_holds_up_no_other_start_of_the_account() {
    let bench = tight(3).await;
    let parked = bench.warm().await;
    let passes = Passes::of(&bench.engine);
    tokio::time::sleep(Duration::from_secs(70 * 60)).await;
    bench.sandbox.plan(Op::Resume, Fault::Slow(Duration::from_secs(15)));
    let began = tokio::time::Instant::now();
    let other = async {
        let launched = bench.launch(Some("other")).await.unwrap();
        (launched.view.conversation.id, began.elapsed())
    };
    let (woken, (other, took)) = tokio::join!(bench.prompt(parked, "hello"), other);
    woken.unwrap();
    assert!(began.elapsed() >= Duration::from_secs(15), "the wake was slow");
    assert!(took < Duration::from_secs(1), "{took:?}");
    bench.ended(other, 1).await;
    bench.ended(parked, 2).await;
    passes.stop().await;
    bench.close().await;
}
