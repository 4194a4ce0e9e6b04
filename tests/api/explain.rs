//! Explanations and operators' routes over HTTP: shapes, scopes, and what never leaves the journal (RUL-L-60).

use fountain_actors::domain::account::{Actor, Caller, NewAudit};
use fountain_actors::domain::explain::ledger::{self, Books, Entry, Listing};
use fountain_actors::domain::machine::{DestroyReason, LeaseInfo, MachineStatus, Provider, Transition};
use fountain_actors::domain::operation::{Operation, Outcome, Verb};
use fountain_actors::domain::*;
use fountain_actors::doors::Answer;
use fountain_actors::doors::admin::{AdminDoors, Ledger};
use fountain_actors::machine::messages::Reaped;
use serde_json::{Value, json};

use crate::world::*;

impl AdminDoors for NotingDoors {
    fn reap(&self, _: Caller, machine: MachineId) -> Answer<'_, Reaped> {
        let found = self.any(machine);
        let noted = found.and_then(|()| self.note("reap".into()));
        Box::pin(async move { noted.map(|()| Reaped::Terminated) })
    }
    fn retry_reset(&self, _: Caller, machine: MachineId) -> Answer<'_, ()> {
        let found = self.any(machine);
        let noted = found.and_then(|()| self.note("retry".into()));
        Box::pin(async move { noted })
    }
    fn confirm_lost(&self, _: Caller, provider: Provider) -> Answer<'_, bool> {
        let noted = self.note(format!("confirm {provider}"));
        Box::pin(async move { noted.map(|()| true) })
    }
    fn ledger(&self) -> Answer<'_, Ledger> {
        let entry = |n: u128, name: &str, counted: bool, debts: Vec<String>, handed_over: bool| Entry {
            machine: MachineId(uuid::Uuid::from_u128(n)),
            account: None,
            provider: Provider::Sprites,
            name: name.into(),
            status: MachineStatus::Ready,
            counted,
            debts,
            handed_over,
        };
        let books = Books {
            entries: vec![
                entry(1, "one", true, vec![], false),
                entry(2, "late", false, vec!["late".into()], false),
                entry(3, "yours", false, vec![], true),
            ],
            untracked: vec![],
        };
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let listing = Listing::Names {
            all: names(&["one", "late", "yours", "asleep", "ghost"]),
            parked: names(&["asleep"]),
        };
        let balances = ledger::balance(&books, [("sprites", (Provider::Sprites, listing))].into());
        let noted = self.note("ledger".into());
        Box::pin(async move { noted.map(|()| Ledger { balances, books }) })
    }
}

fn operation(tenant: &Tenant, epoch: i64, verb: Verb, outcome: Option<Outcome>) -> Operation {
    Operation {
        id: OperationId(uuid::Uuid::from_u64_pair(77, epoch.unsigned_abs())),
        machine_id: tenant.machine,
        machine_name: "fountain-x".into(),
        verb,
        reason: None,
        actor: "api".into(),
        epoch: Epoch(epoch),
        started_at: start(),
        finished_at: outcome.map(|_| start()),
        outcome,
        provider_call: Some("destroy,get".into()),
        provider_answer: Some("unavailable".into()),
        evidence: Some(
            json!({"absent": false, "why": "still_there", "body": {"token": "s3cret"}, "long": "x".repeat(99)}),
        ),
        lease_until: Some(start()),
        probed_at: None,
        settled_at: None,
        closed_at: None,
    }
}

fn journal(world: &World, rows: Vec<Operation>) {
    world.rows.edit(|t| t.operations = rows);
}

#[actix_web::test]
async fn rul_l_60_the_journal_is_newest_first_with_receipts_and_without_bodies() {
    let world = World::default();
    let app = world.app().await;
    let ann = &world.ann;
    journal(
        &world,
        vec![
            operation(ann, 1, Verb::Wake, Some(Outcome::Done)),
            operation(ann, 2, Verb::Destroy, Some(Outcome::Unconfirmed)),
            operation(ann, 3, Verb::Reset, Some(Outcome::Done)),
        ],
    );
    let path = format!("/api/sandboxes/{}/operations", ann.machine);
    let answer = call(&app, signed("GET", &path, &ann.full)).await;
    assert_eq!(answer.status, 200);
    let rows = answer.json()["data"].clone();
    let epochs: Vec<i64> = rows
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["epoch"].as_i64().unwrap())
        .collect();
    assert_eq!(epochs, [3, 2, 1]);
    assert_eq!(
        rows[0]["receipt"],
        json!({"verdict": "confirmed", "by": "get", "at": "2026-01-02T03:04:05Z"})
    );
    assert_eq!(
        rows[1]["receipt"],
        json!({"verdict": "unconfirmed", "why": "still_there", "next_try": null})
    );
    assert_eq!(rows[2]["receipt"], Value::Null);
    assert_eq!(rows[1]["evidence"], json!({"absent": false, "why": "still_there"}));
    assert!(!String::from_utf8_lossy(&answer.bytes).contains("s3cret"));
    let one = call(&app, signed("GET", &format!("{path}?limit=1"), &ann.full)).await;
    assert_eq!(one.json()["data"].as_array().unwrap().len(), 1);
}

#[actix_web::test]
async fn why_names_the_holder_what_it_waits_for_and_the_next_step() {
    let world = World::default();
    let app = world.app().await;
    let ann = &world.ann;
    world.rows.edit(|t| {
        let mut machines = t.machines.iter_mut().map(|(_, view)| &mut view.machine);
        let machine = machines.find(|machine| machine.id == ann.machine).unwrap();
        machine.lease_epoch = Epoch(4);
        machine.lease = Some(LeaseInfo {
            holder: "node/1".into(),
            until: start() + chrono::TimeDelta::seconds(60),
        });
    });
    journal(&world, vec![operation(ann, 4, Verb::Park, None)]);
    for path in [
        format!("/api/sandboxes/{}/why", ann.machine),
        format!("/api/conversations/{}/why", ann.conversation),
    ] {
        let answer = call(&app, signed("GET", &path, &ann.full)).await;
        assert_eq!(answer.status, 200, "{path} {answer:?}");
        let told = answer.json()["data"].clone();
        assert_eq!(told["state"], "up_busy");
        assert_eq!(told["lease"]["holder"], "node/1");
        assert_eq!(told["lease"]["verb"], "park");
        assert_eq!(told["lease"]["until"], "2026-01-02T03:05:05Z");
        assert_eq!(told["waits_for"][0]["what"], "the end of the park");
        assert_eq!(told["next"][0]["by"], "holder");
        assert_eq!(told["debts"], json!([]), "an operation that runs is no debt");
    }
    let own = call(
        &app,
        signed(
            "GET",
            &format!("/api/conversations/{}/why", ann.conversation),
            &ann.full,
        ),
    );
    assert_eq!(
        own.await.json()["data"]["conversation"]["id"],
        ann.conversation.to_string()
    );
}

#[actix_web::test]
async fn why_tells_when_a_debt_settles_and_closes_and_when_a_delete_is_tried_again() {
    let world = World::default();
    let app = world.app().await;
    let ann = &world.ann;
    world.rows.edit(|t| {
        let mut machines = t.machines.iter_mut().map(|(_, view)| &mut view.machine);
        let machine = machines.find(|machine| machine.id == ann.machine).unwrap();
        machine.transition = Some(Transition::Destroying);
        machine.transition_reason = Some(DestroyReason::Reset.as_str().into());
        machine.transition_at = Some(start());
        machine.next_attempt_at = Some(start() + chrono::TimeDelta::minutes(5));
        machine.lease = None;
    });
    journal(
        &world,
        vec![
            operation(ann, 4, Verb::Wake, Some(Outcome::Unknown)),
            operation(ann, 5, Verb::Reset, Some(Outcome::Unconfirmed)),
        ],
    );
    let path = format!("/api/sandboxes/{}/why", ann.machine);
    let told = call(&app, signed("GET", &path, &ann.full)).await.json()["data"].clone();
    assert_eq!(told["state"], "doomed");
    let retry = told["next"]
        .as_array()
        .unwrap()
        .iter()
        .find(|step| step["by"] == "teardown_pass");
    assert_eq!(retry.unwrap()["at"], "2026-01-02T03:09:05Z");
    let debt = &told["debts"][0];
    assert_eq!((&debt["verb"], &debt["stage"]), (&json!("wake"), &json!("open")));
    assert_eq!(debt["settles_at"], "2026-01-02T03:06:05Z");
    assert_eq!(debt["closes_at"], "2026-01-02T03:19:05Z");
    assert_eq!(told["operations"][0]["receipt"]["next_try"], "2026-01-02T03:09:05Z");
}

#[actix_web::test]
async fn rul_l_47_operators_routes_need_the_role_and_say_what_they_did() {
    let world = World::default();
    let app = world.app().await;
    let path = format!("/api/admin/sandboxes/{}/reap", world.bob.machine);
    let refused = call(&app, signed("POST", &path, &world.bob.full)).await;
    assert_eq!(
        (refused.status, &refused.json()["reason"]),
        (403, &json!("admin_required"))
    );
    let done = call(&app, signed("POST", &path, &world.ann.full)).await;
    assert_eq!(
        done.json()["data"],
        json!({"sandbox_id": world.bob.machine.to_string(), "outcome": "terminated"})
    );
    *world.doors.refusal.lock().unwrap() = Some(ErrorCode::SandboxUnavailable.into());
    let busy = call(&app, signed("POST", &path, &world.ann.full)).await;
    assert_eq!(busy.code(), (503, "sandbox_unavailable".into()));
    assert_eq!(busy.header("retry-after"), Some("30"));
    *world.doors.refusal.lock().unwrap() = None;
    let confirm = |word: &str| {
        signed(
            "POST",
            &format!("/api/admin/providers/{word}/confirm-lost"),
            &world.ann.full,
        )
    };
    let confirmed = call(&app, confirm("sprites")).await;
    assert_eq!(
        confirmed.json()["data"],
        json!({"provider": "sprites", "were_held_back": true})
    );
    assert_eq!(call(&app, confirm("nobody")).await.status, 404);
    let listed = call(&app, signed("GET", "/api/admin/sandboxes", &world.ann.full)).await;
    assert_eq!(listed.json()["data"].as_array().unwrap().len(), 2, "of all tenants");
}

#[actix_web::test]
async fn rul_l_73_every_difference_of_the_ledger_is_listed_with_its_reason() {
    let world = World::default();
    let app = world.app().await;
    let told = call(&app, signed("GET", "/api/admin/ledger", &world.ann.full))
        .await
        .json()["data"]
        .clone();
    let sprites = &told["providers"][0];
    assert_eq!(
        (&sprites["reserved"], &sprites["listed"], &sprites["parked"]),
        (&json!(1), &json!(5), &json!(1))
    );
    assert_eq!(
        sprites["unreserved"],
        json!([
            {"sprite_name": "ghost", "reason": "unexplained"},
            {"sprite_name": "late", "reason": "open_debt"},
            {"sprite_name": "yours", "reason": "handed_over"},
        ])
    );
    assert_eq!(told["unexplained"], 1);
    assert_eq!(told["open_debts"][0]["sprite_name"], "late");
    assert_eq!(told["handed_over"][0]["sprite_name"], "yours");
}

#[actix_web::test]
async fn the_log_of_administrators_names_who_and_whom() {
    let world = World::default();
    let app = world.app().await;
    let reaped = NewAudit {
        account_id: Some(world.bob.account),
        action: "admin.sandbox.reaped",
        resource_type: "sandbox",
        resource_id: None,
        actor: Actor::Admin(world.ann.account),
        request_ip: None,
        metadata: Default::default(),
    };
    let other = NewAudit {
        action: "sandbox.destroyed",
        ..reaped.clone()
    };
    world.rows.edit(|t| t.audits.extend([reaped, other]));
    let get = async |path: &str| call(&app, signed("GET", path, &world.ann.full)).await.json()["data"].clone();
    let events = get("/api/admin/events").await;
    assert_eq!(events.as_array().unwrap().len(), 1);
    assert_eq!(events[0]["event_type"], "admin.sandbox.reaped");
    assert_eq!(events[0]["actor_user_id"], world.ann.account.to_string());
    assert_eq!(events[0]["target_user_id"], world.bob.account.to_string());
    assert_eq!(get("/api/admin/audit").await.as_array().unwrap().len(), 2);
}
