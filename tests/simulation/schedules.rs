//! Prompts that the clock sends, over whole flows (lifecycle 7; RUL-L-59; R-104, INV-104).

use std::time::Duration;

use fountain_actors::domain::account::{Actor, NewAudit};
use fountain_actors::domain::cron::Cron;
use fountain_actors::domain::queue::{RequestKind, RequestStatus};
use fountain_actors::domain::schedule::{Schedule, ScheduleConfig, TEAM_CHANNEL};
use fountain_actors::doors::{Doors, LaunchRequest};
use fountain_actors::fakes::{AgentStep, FakeAgent};
use fountain_actors::passes::Passes;

use crate::conversation_bench::{Bench, text};
use crate::launch_queue::tight;

const MINUTE: Duration = Duration::from_secs(60);

impl Bench {
    /// A schedule of the bench's agent. The bench's clock begins at noon.
    async fn schedule(&self, cron: &str, prompt: &str, one_off: bool) -> Schedule {
        let (account, id, now) = (self.caller.account_id(), self.world.id(), self.world.now());
        let config = ScheduleConfig {
            name: None,
            cron: cron.into(),
            prompt: prompt.into(),
            one_off,
            enabled: true,
        };
        let next = Cron::parse(cron).unwrap().next_after(now);
        let audit = NewAudit {
            account_id: Some(account),
            action: "schedule.created",
            resource_type: "schedule",
            resource_id: None,
            actor: Actor::Api,
            request_ip: None,
            metadata: Default::default(),
        };
        let made = self
            .world
            .store
            .create_schedule(account, id, self.agent.id, config, next, audit, now);
        made.await.unwrap().value
    }

    async fn reread(&self, schedule: &Schedule) -> Schedule {
        let found = self.world.store.schedule(self.caller.account_id(), schedule.id).await;
        found.unwrap().unwrap()
    }
}

#[actix::test]
async fn a_schedule_opens_the_team_conversation_and_goes_on_in_it() {
    let bench = Bench::new().await;
    let passes = Passes::of(&bench.engine);
    let schedule = bench.schedule("*/10 * * * *", "report", false).await;
    tokio::time::sleep(11 * MINUTE).await;
    let after = bench.reread(&schedule).await;
    assert_eq!(after.last_error, None);
    let id = after.last_conversation_id.unwrap();
    bench.ended(id, 1).await;
    assert_eq!(
        bench.view(id).await.conversation.channel_id.as_deref(),
        Some(TEAM_CHANNEL)
    );
    tokio::time::sleep(10 * MINUTE).await;
    assert_eq!(bench.ended(id, 2).await.prompt, "report");
    assert_eq!(bench.turns(id).await.len(), 2, "one for each fire time");
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn rul_l_59_after_a_downtime_the_latest_firing_runs_once() {
    let bench = Bench::new().await;
    let schedule = bench.schedule("*/20 * * * *", "report", false).await;
    tokio::time::sleep(5 * 60 * MINUTE + 5 * MINUTE).await;
    let passes = Passes::of(&bench.engine);
    passes.tick_schedules().await;
    let after = bench.reread(&schedule).await;
    let id = after.last_conversation_id.unwrap();
    bench.ended(id, 1).await;
    passes.tick_schedules().await;
    assert_eq!(bench.turns(id).await.len(), 1);
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn two_replicas_send_one_prompt() {
    let bench = Bench::new().await;
    let schedule = bench.schedule("* * * * *", "report", true).await;
    tokio::time::sleep(MINUTE).await;
    let (here, there) = (Passes::of(&bench.engine), Passes::of(&bench.engine));
    let (one, two) = tokio::join!(here.tick_schedules(), there.tick_schedules());
    assert_eq!(one.done + two.done, 1);
    let after = bench.reread(&schedule).await;
    assert!(!after.config.enabled, "a one-off is over");
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(bench.turns(after.last_conversation_id.unwrap()).await.len(), 1);
    here.stop().await;
    there.stop().await;
    bench.close().await;
}

#[actix::test]
async fn a_busy_agent_is_tried_every_half_minute_and_given_up_after_half_an_hour() {
    let sleeper = FakeAgent::new(|text| match text {
        "sleep" => vec![
            AgentStep::Say("begun".into()),
            AgentStep::Sleep(Duration::from_secs(86_400)),
        ],
        text => vec![AgentStep::Say(text.into()), AgentStep::Stop("end_turn")],
    });
    let bench = Bench::with(sleeper).await;
    let passes = Passes::of(&bench.engine);
    let team = LaunchRequest {
        prompt: Some(text("sleep")),
        channel_id: Some(TEAM_CHANNEL.into()),
        ..bench.request()
    };
    let team = bench.engine.launch(bench.caller.clone(), team).await.unwrap();
    let team = team.view.conversation.id;
    bench.heard(team, "begun").await;
    let first = bench.schedule("10 12 * * *", "one", true).await;
    tokio::time::sleep(20 * MINUTE).await;
    assert!(bench.reread(&first).await.firing.is_some(), "it goes on trying");
    bench.interrupt(team).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    assert_eq!(bench.ended(team, 2).await.prompt, "one");

    bench.prompt(team, "sleep").await.unwrap();
    let second = bench.schedule("30 12 * * *", "two", true).await;
    tokio::time::sleep(45 * MINUTE).await;
    let after = bench.reread(&second).await;
    assert_eq!(
        (after.last_error.as_deref(), after.firing),
        (Some("conversation_busy"), None)
    );
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn r_104_inv_104_a_schedule_at_the_cap_has_one_request_in_the_queue() {
    let bench = tight(1).await;
    let passes = Passes::of(&bench.engine);
    let first = bench.warm().await;
    let schedule = bench.schedule("*/5 * * * *", "report", false).await;
    tokio::time::sleep(21 * MINUTE).await;
    let waiting = bench
        .world
        .store
        .queue_requests(bench.caller.account_id())
        .await
        .unwrap();
    assert_eq!(waiting.len(), 1, "however often it fired");
    assert_eq!(waiting[0].request.kind, RequestKind::ScheduleRun);
    bench.terminate(first).await.unwrap();
    tokio::time::sleep(MINUTE).await;
    let request = bench.queued(waiting[0].request.id).await;
    assert_eq!(request.status, RequestStatus::Started);
    let id = request.conversation_id.unwrap();
    assert_eq!(bench.ended(id, 1).await.prompt, "report");
    let view = bench.view(id).await;
    assert_eq!(view.conversation.channel_id.as_deref(), Some(TEAM_CHANNEL));
    tokio::time::sleep(5 * MINUTE).await;
    assert_eq!(bench.reread(&schedule).await.last_conversation_id, Some(id));
    passes.stop().await;
    bench.close().await;
}

#[actix::test]
async fn a_firing_that_arrived_before_its_sender_died_is_not_sent_again() {
    let bench = Bench::new().await;
    let schedule = bench.schedule("* * * * *", "report", true).await;
    tokio::time::sleep(MINUTE).await;
    let store = &bench.world.store;
    let until = bench.world.now() + chrono::TimeDelta::seconds(300);
    let claimed = store.claim_firing(schedule, until, bench.world.now()).await;
    let claimed = claimed.unwrap().value.unwrap();
    let sent = bench.engine.fire(&claimed).await;
    let again = bench.engine.fire(&claimed).await;
    assert_eq!(sent, again);
    let id = bench
        .world
        .store
        .conversation_views(bench.caller.account_id(), Default::default())
        .await
        .unwrap()[0]
        .conversation
        .id;
    bench.ended(id, 1).await;
    assert_eq!(bench.turns(id).await.len(), 1);
    bench.close().await;
}

#[actix::test]
async fn a_person_may_run_a_schedule_at_any_time() {
    let bench = Bench::new().await;
    let schedule = bench.schedule("0 0 1 1 *", "report", false).await;
    let id = bench
        .engine
        .run_schedule(bench.caller.clone(), schedule.clone())
        .await
        .unwrap();
    assert_eq!(bench.ended(id, 1).await.prompt, "report");
    let after = bench.reread(&schedule).await;
    assert_eq!(after.last_conversation_id, Some(id));
    assert_eq!(after.next_run_at, schedule.next_run_at);
    bench.close().await;
}
