//! Members and homes: who counts as connected, and where servers live (RUL-L-6 to 8, RUL-L-11, INV-110).

use std::time::Duration;

use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::*;
use fountain_actors::ports::clock::{after, before};
use fountain_actors::ports::store::machines::{Claim, ClaimAnswer, Purpose};
use fountain_actors::ports::store::replicas::{Beat, Resident};
use fountain_actors::ports::store::{MachineStore, ReplicaStore};

use crate::lab::Lab;
use crate::support::id;

fn name(what: &str) -> String {
    format!("{what}/{}", id::<OperationId>())
}

fn beat(holder: &str, now: Moment) -> Beat {
    Beat {
        holder: holder.into(),
        url: "http://replica".into(),
        draining: false,
        at_least: None,
        now,
    }
}

/// Where the clock is what a test says it is.
async fn sqlite() -> Vec<Lab> {
    let mut labs = Lab::all().await;
    labs.truncate(1);
    labs
}

async fn ready(lab: &Lab) -> (ConversationId, MachineId) {
    let serving = lab.up(MachineMode::Ephemeral).await;
    (serving.conversation.id, serving.machine.id)
}

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

#[actix_web::test]
async fn rul_l_7_a_process_is_a_member_for_twenty_seconds_after_its_heartbeat() {
    for lab in sqlite().await {
        let store = lab.store();
        let (holder, start) = (name("a"), lab.now());
        store.beat(beat(&holder, start)).await.unwrap();
        let listed = |members: Vec<fountain_actors::ports::store::replicas::Member>| {
            members.iter().any(|member| member.holder == holder)
        };
        assert!(listed(store.members(after(start, secs(20))).await.unwrap()));
        assert!(!listed(store.members(after(start, secs(21))).await.unwrap()));
    }
}

#[actix_web::test]
async fn inv_110_a_server_lives_where_its_home_says_as_long_as_that_process_is_a_member() {
    for lab in Lab::all().await {
        let store = lab.store();
        let (conversation, machine) = ready(&lab).await;
        let (one, two) = (name("one"), name("two"));
        let home = async || {
            let found = store
                .home(Resident::Conversation(conversation), lab.now())
                .await
                .unwrap();
            found.map(|member| member.holder)
        };
        let first = store
            .register_server(conversation, one.clone(), lab.now())
            .await
            .unwrap();
        assert_eq!(home().await, None, "nobody heard of the process");
        store.beat(beat(&one, lab.now())).await.unwrap();
        store.beat(beat(&two, lab.now())).await.unwrap();
        assert_eq!(home().await, Some(one.clone()));
        assert_eq!(
            store.servers_on(machine, lab.now()).await.unwrap(),
            [(conversation, one.clone())]
        );

        let second = store
            .register_server(conversation, two.clone(), lab.now())
            .await
            .unwrap();
        assert_eq!(
            second.conversation.server_epoch.0,
            first.conversation.server_epoch.0 + 1
        );
        let late = store.leave_home(conversation, one.clone(), first.conversation.server_epoch);
        late.await.unwrap();
        assert_eq!(
            home().await,
            Some(two.clone()),
            "an older server's end is not its successor's"
        );
        store.leave(two.clone()).await.unwrap();
        assert_eq!(home().await, None);
        assert!(store.servers_on(machine, lab.now()).await.unwrap().is_empty());
    }
}

#[actix_web::test]
async fn a_server_that_stops_leaves_no_home() {
    for lab in Lab::all().await {
        let store = lab.store();
        let (conversation, _) = ready(&lab).await;
        let here = name("here");
        store.beat(beat(&here, lab.now())).await.unwrap();
        let serving = store
            .register_server(conversation, here.clone(), lab.now())
            .await
            .unwrap();
        let epoch = serving.conversation.server_epoch;
        store.leave_home(conversation, here.clone(), epoch).await.unwrap();
        let home = store
            .home(Resident::Conversation(conversation), lab.now())
            .await
            .unwrap();
        assert_eq!(home, None);
    }
}

#[actix_web::test]
async fn rul_l_50_the_newest_connection_of_a_runner_is_its_home() {
    for lab in Lab::all().await {
        let store = lab.store();
        let (runner, one, two): (RunnerId, _, _) = (id(), name("one"), name("two"));
        for holder in [&one, &two] {
            store.beat(beat(holder, lab.now())).await.unwrap();
            store.seat_runner(runner, holder.clone()).await.unwrap();
        }
        store.unseat_runner(runner, one).await.unwrap();
        let home = store.home(Resident::Runner(runner), lab.now()).await.unwrap();
        assert_eq!(
            home.map(|member| member.holder),
            Some(two.clone()),
            "the older socket closed late"
        );
        store.unseat_runner(runner, two).await.unwrap();
        assert_eq!(store.home(Resident::Runner(runner), lab.now()).await.unwrap(), None);
    }
}

#[actix_web::test]
async fn rul_l_6_a_boot_on_sqlite_ends_what_its_predecessor_was() {
    for lab in sqlite().await {
        let store = lab.store();
        let (conversation, _) = ready(&lab).await;
        let (dead, fresh) = (name("dead"), name("fresh"));
        let late = after(lab.now(), secs(100));
        store.beat(beat(&dead, late)).await.unwrap();
        store.register_server(conversation, dead, late).await.unwrap();
        store.end_dead_leases(fresh.clone()).await.unwrap();
        let home = store.home(Resident::Conversation(conversation), late).await.unwrap();
        assert_eq!(home, None);
        let members = store.beat(beat(&fresh, lab.now())).await.unwrap();
        let holders: Vec<_> = members.iter().map(|member| member.holder.as_str()).collect();
        assert_eq!(holders, [fresh.as_str()]);
        assert!(
            members[0].heartbeat >= late,
            "the newest stored moment outlives its process (RUL-L-11)"
        );
    }
}

#[actix_web::test]
async fn rul_l_11_the_clock_of_sqlite_never_runs_backwards() {
    for lab in sqlite().await {
        let store = lab.store();
        let (here, start) = (name("here"), lab.now());
        store.beat(beat(&here, start)).await.unwrap();
        let wall = before(start, secs(3600));
        assert_eq!(store.lease_clock(wall).await.unwrap(), start);
        let measured = Beat {
            at_least: Some(after(start, secs(5))),
            ..beat(&here, wall)
        };
        let members = store.beat(measured).await.unwrap();
        assert_eq!(
            members[0].heartbeat,
            after(start, secs(5)),
            "and it does not stand still"
        );
        assert_eq!(store.lease_clock(wall).await.unwrap(), after(start, secs(5)));
        let later = after(start, secs(60));
        assert_eq!(store.lease_clock(later).await.unwrap(), later);
    }
}

#[actix_web::test]
async fn rul_l_7_inv_04_inv_10_the_early_door_is_open_for_ten_seconds_and_to_others_of_a_process_that_is_gone() {
    for lab in sqlite().await {
        let store = lab.store();
        let (one, two) = (name("one"), name("two"));
        let start = after(lab.now(), secs(60));
        // One minute of lease, and a claim by `who` so many seconds after it was given.
        let held = async |member: Option<u64>| {
            let machine = ready(&lab).await.1;
            let claim = lab.new_claim(machine, Purpose::Confirm);
            let claim = Claim {
                holder: one.clone(),
                now: start,
                ..claim
            };
            let answer = store.claim(claim).await.unwrap().value;
            assert!(matches!(answer, ClaimAnswer::Claimed(_)), "{answer:?}");
            if let Some(seconds) = member {
                store.beat(beat(&one, after(start, secs(seconds)))).await.unwrap();
            }
            machine
        };
        let taken = async |machine, who: &str, seconds| {
            let claim = lab.new_claim(machine, Purpose::Confirm);
            let now = after(start, secs(seconds));
            let claim = Claim {
                holder: who.into(),
                now,
                ..claim
            };
            let answer = store.claim(claim).await.unwrap().value;
            matches!(answer, ClaimAnswer::Claimed(_))
        };
        let machine = held(None).await;
        assert!(!taken(machine, &two, 50).await, "ten seconds are left");
        assert!(!taken(machine, &one, 51).await, "never one's own (RUL-L-6)");
        assert!(
            taken(machine, &two, 51).await,
            "nine are left, and its holder is nobody"
        );
        let machine = held(Some(35)).await;
        assert!(
            !taken(machine, &two, 55).await,
            "a heartbeat of twenty seconds ago counts"
        );
        assert!(taken(machine, &two, 56).await, "one of twenty-one does not");
    }
}
