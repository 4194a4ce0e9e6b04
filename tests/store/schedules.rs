//! Schedules: one fire time runs once, what is late, what is tried again.

use futures_util::future::join_all;

use fountain_actors::domain::schedule::{Schedule, ScheduleConfig};
use fountain_actors::domain::*;
use fountain_actors::ports::store::ScheduleStore;
use fountain_actors::ports::store::schedules::Fired;

use crate::lab::Lab;
use crate::support::{id, not_found};

fn at(text: &str) -> Moment {
    text.parse().unwrap()
}

fn config(cron: &str) -> ScheduleConfig {
    ScheduleConfig {
        name: Some("report".into()),
        cron: cron.into(),
        prompt: "report".into(),
        one_off: false,
        enabled: true,
    }
}

impl Lab {
    /// A schedule whose next run is at eight.
    async fn schedule(&self, config: ScheduleConfig) -> Schedule {
        let next = Some(at("2026-01-01T08:00:00Z"));
        let audit = self.audit("schedule.created");
        let made = self
            .store()
            .create_schedule(self.account, id(), self.agent, config, next, audit, self.now());
        made.await.unwrap().value
    }

    async fn claim_firing(&self, seen: &Schedule, now: &str) -> Option<Schedule> {
        let now = at(now);
        let until = now + chrono::TimeDelta::seconds(300);
        let claimed = self.store().claim_firing(seen.clone(), until, now).await;
        claimed.unwrap().value
    }

    async fn reread(&self, schedule: &Schedule) -> Schedule {
        let found = self.store().schedule(self.account, schedule.id).await;
        found.unwrap().unwrap()
    }
}

#[actix::test]
async fn one_fire_time_is_run_once_however_many_tick() {
    for lab in Lab::all().await {
        let schedule = lab.schedule(config("@hourly")).await;
        let due = async |now: &str| lab.store().due_schedules(at(now), 10).await.unwrap().len();
        assert_eq!(due("2026-01-01T07:59:59Z").await, 0);
        assert_eq!(due("2026-01-01T08:00:00Z").await, 1);
        let claims = join_all((0..6).map(|_| lab.claim_firing(&schedule, "2026-01-01T08:00:20Z"))).await;
        let had: Vec<_> = claims.into_iter().flatten().collect();
        assert_eq!(had.len(), 1);
        let claimed = &had[0];
        assert_eq!(claimed.firing.unwrap().at, at("2026-01-01T08:00:00Z"));
        assert_eq!(claimed.next_run_at, Some(at("2026-01-01T09:00:00Z")));
        assert_eq!(due("2026-01-01T08:04:00Z").await, 0, "it is being run");
        let conversation: ConversationId = id();
        let ran = lab
            .store()
            .finish_firing(claimed.clone(), Fired::Ran(conversation), at("2026-01-01T08:01:00Z"));
        assert!(ran.await.unwrap());
        let after = lab.reread(&schedule).await;
        assert_eq!(
            (
                after.last_run_at,
                after.last_conversation_id,
                after.last_error,
                after.firing
            ),
            (Some(at("2026-01-01T08:01:00Z")), Some(conversation), None, None)
        );
        assert_eq!(due("2026-01-01T08:59:00Z").await, 0);
    }
}

#[actix::test]
async fn a_firing_whose_claim_lapsed_is_taken_up_again() {
    for lab in Lab::all().await {
        let schedule = lab.schedule(config("@hourly")).await;
        lab.claim_firing(&schedule, "2026-01-01T08:00:10Z").await.unwrap();
        // Whoever had it died.
        let seen = lab.reread(&schedule).await;
        assert_eq!(lab.claim_firing(&seen, "2026-01-01T08:05:00Z").await, None);
        let again = lab.claim_firing(&seen, "2026-01-01T08:05:10Z").await.unwrap();
        assert_eq!(again.firing.unwrap().at, at("2026-01-01T08:00:00Z"));
        assert_eq!(lab.claim_firing(&seen, "2026-01-01T08:05:11Z").await, None);
    }
}

#[actix::test]
async fn a_snoozed_firing_keeps_its_time_and_a_newer_one_takes_its_place() {
    for lab in Lab::all().await {
        let schedule = lab.schedule(config("@hourly")).await;
        let claimed = lab.claim_firing(&schedule, "2026-01-01T08:00:10Z").await.unwrap();
        let snoozed = Fired::Snoozed(at("2026-01-01T08:00:40Z"));
        assert!(
            lab.store()
                .finish_firing(claimed.clone(), snoozed, at("2026-01-01T08:00:10Z"))
                .await
                .unwrap()
        );
        assert_eq!(
            lab.store()
                .due_schedules(at("2026-01-01T08:00:39Z"), 10)
                .await
                .unwrap()
                .len(),
            0
        );
        let seen = lab.reread(&schedule).await;
        let again = lab.claim_firing(&seen, "2026-01-01T08:00:40Z").await.unwrap();
        assert_eq!(again.firing.unwrap().at, claimed.firing.unwrap().at);
        assert_eq!(again.firing.unwrap().since, claimed.firing.unwrap().since);
        let newer = lab.claim_firing(&again, "2026-01-01T09:00:00Z").await.unwrap();
        assert_eq!(newer.firing.unwrap().at, at("2026-01-01T09:00:00Z"));
        let late = lab
            .store()
            .finish_firing(again, Fired::Failed("x".into()), at("2026-01-01T09:00:01Z"));
        assert!(!late.await.unwrap(), "the older one is over");
        assert_eq!(lab.reread(&schedule).await.last_error, None);
    }
}

#[actix::test]
async fn rul_l_59_a_firing_that_is_too_late_is_noted_and_not_run() {
    for lab in Lab::all().await {
        let daily = lab.schedule(config("0 8 * * *")).await;
        assert_eq!(lab.claim_firing(&daily, "2026-01-01T09:00:00Z").await, None);
        let after = lab.reread(&daily).await;
        assert_eq!(after.last_error.as_deref(), Some("missed"));
        assert_eq!(after.next_run_at, Some(at("2026-01-02T08:00:00Z")));
        let hourly = lab.schedule(config("@hourly")).await;
        let claimed = lab.claim_firing(&hourly, "2026-01-03T15:20:00Z").await.unwrap();
        assert_eq!(
            claimed.firing.unwrap().at,
            at("2026-01-03T15:00:00Z"),
            "the latest, once"
        );
        let missed = lab.audited().into_iter().filter(|action| action == "schedule.missed");
        assert_eq!(missed.count(), 2);
    }
}

#[actix::test]
async fn a_one_off_is_switched_off_by_its_firing() {
    for lab in Lab::all().await {
        let once = ScheduleConfig {
            one_off: true,
            ..config("@hourly")
        };
        let schedule = lab.schedule(once).await;
        assert!(lab.claim_firing(&schedule, "2026-01-01T08:00:00Z").await.is_some());
        let after = lab.reread(&schedule).await;
        assert_eq!((after.config.enabled, after.next_run_at), (false, None));
    }
}

#[actix::test]
async fn a_changed_calendar_forgets_the_firing_of_the_old_one() {
    for lab in Lab::all().await {
        let schedule = lab.schedule(config("@hourly")).await;
        let claimed = lab.claim_firing(&schedule, "2026-01-01T08:00:10Z").await.unwrap();
        let off = ScheduleConfig {
            enabled: false,
            ..config("@hourly")
        };
        let audit = lab.audit("schedule.updated");
        let updated = lab
            .store()
            .update_schedule(lab.account, schedule.id, off, Some(None), audit, lab.now())
            .await
            .unwrap()
            .value;
        assert_eq!((updated.next_run_at, updated.firing), (None, None));
        let late = lab.store().finish_firing(claimed, Fired::Failed("x".into()), lab.now());
        assert!(!late.await.unwrap());
    }
}

#[actix::test]
async fn schedules_belong_to_their_account_and_stand_in_the_order_of_their_next_run() {
    for lab in Lab::all().await {
        let eight = lab.schedule(config("@hourly")).await;
        let audit = || lab.audit("schedule.created");
        let make = |next: Option<&str>| {
            let next = next.map(at);
            lab.store()
                .create_schedule(lab.account, id(), lab.agent, config("@daily"), next, audit(), lab.now())
        };
        let off = make(None).await.unwrap().value;
        let seven = make(Some("2026-01-01T07:00:00Z")).await.unwrap().value;
        let order: Vec<_> = lab
            .store()
            .schedules(lab.account, Some(lab.agent))
            .await
            .unwrap()
            .iter()
            .map(|schedule| schedule.id)
            .collect();
        assert_eq!(order, [seven.id, eight.id, off.id]);
        let (other, foreign) = lab.tenant();
        assert!(lab.store().schedules(other, None).await.unwrap().is_empty());
        assert_eq!(lab.store().schedule(other, eight.id).await.unwrap(), None);
        not_found(lab.store().delete_schedule(other, eight.id, audit(), lab.now()).await);
        let wrong = lab
            .store()
            .create_schedule(lab.account, id(), foreign, config("@daily"), None, audit(), lab.now());
        not_found(wrong.await);
        lab.store()
            .note_run(eight.id, Err("fleet_full".into()), lab.now())
            .await
            .unwrap();
        let noted = lab.reread(&eight).await;
        assert_eq!(noted.last_error.as_deref(), Some("fleet_full"));
        assert_eq!(noted.next_run_at, eight.next_run_at, "the calendar stays");
        lab.store()
            .delete_schedule(lab.account, eight.id, audit(), lab.now())
            .await
            .unwrap();
        assert_eq!(lab.store().schedule(lab.account, eight.id).await.unwrap(), None);
    }
}
