//! What passes find among machines, what a boot ends, and what the API shows.

use diesel::prelude::*;

use fountain::store::backend::Kind;
use fountain_actors::domain::machine::{DestroyReason, MachineMode, MachineStatus, Transition};
use fountain_actors::domain::*;
use fountain_actors::ports::store::MachineStore;
use fountain_actors::ports::store::machines::Purpose;

use crate::lab::Lab;

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;
const PERSISTENT: MachineMode = MachineMode::Persistent;

#[actix::test]
async fn rul_30_a_boot_on_sqlite_ends_what_another_incarnation_held() {
    for lab in Lab::all().await {
        let machine = lab.launch(EPHEMERAL, None).await.machine.id;
        let held = lab.claim(machine, Purpose::Provision).await;
        assert_eq!(
            lab.store().end_dead_leases("node-a/1".into()).await.unwrap(),
            0,
            "its own"
        );
        let ended = lab.store().end_dead_leases("node-a/2".into()).await.unwrap();
        let row = lab.machine(machine).await;
        assert_eq!(
            (row.lease_epoch, row.transition),
            (held.claimed.epoch, Some(Transition::Provisioning))
        );
        match lab.db.kind() {
            Kind::Sqlite => assert_eq!((ended, row.lease, row.woken_at), (1, None, None)),
            Kind::Postgres => assert!(ended == 0 && row.lease.is_some() && row.woken_at.is_some()),
        }
    }
}

#[actix::test]
async fn rul_l_55_the_teardown_pass_finds_what_is_due_in_a_fair_order() {
    for lab in Lab::all().await {
        let mut doomed = Vec::new();
        for reason in [DestroyReason::Terminated, DestroyReason::Reset, DestroyReason::Idle] {
            let mode = if reason == DestroyReason::Reset {
                PERSISTENT
            } else {
                EPHEMERAL
            };
            let machine = lab.up(mode).await.machine.id;
            lab.fence(machine, reason).await.unwrap();
            doomed.push(machine);
        }
        let [terminated, reset, idle] = doomed[..] else {
            unreachable!()
        };
        lab.up(EPHEMERAL).await;
        let found = async |grace: i64| {
            let rows = lab.store().doomed(lab.now(), lab.in_seconds(grace), 10).await.unwrap();
            rows.into_iter().map(|machine| machine.id).collect::<Vec<_>>()
        };
        assert_eq!(
            found(-900).await,
            [reset],
            "a reset at once, the others after their grace"
        );
        assert_eq!(found(60).await, [terminated, reset, idle]);
        lab.store().postpone(terminated, lab.now()).await.unwrap();
        assert_eq!(
            found(60).await,
            [reset, idle, terminated],
            "who was tried goes to the back"
        );
        lab.store().postpone(reset, lab.in_seconds(300)).await.unwrap();
        lab.claim(idle, Purpose::Destroy).await;
        assert_eq!(found(60).await, [terminated], "postponed and leased ones rest");
    }
}

#[actix::test]
async fn inv_36_the_idle_pass_finds_what_is_old_and_unmarked() {
    for lab in Lab::all().await {
        let (now, hour) = (lab.now(), lab.in_seconds(-3600));
        let marker = lab.in_seconds(-900);
        let parkable = async |idle: Option<Moment>, born: Option<Moment>| {
            let rows = lab.store().parkable(now, idle, born, marker, 10).await.unwrap();
            rows.into_iter().map(|machine| machine.id).collect::<Vec<_>>()
        };
        let old = lab.up(PERSISTENT).await;
        let machine = old.machine.id;
        assert!(parkable(Some(hour), None).await.is_empty());
        lab.age(machine, lab.in_seconds(-7200));
        assert_eq!(parkable(Some(hour), None).await, [machine]);
        assert!(parkable(None, None).await.is_empty(), "no bound, no expiry");
        assert_eq!(parkable(None, Some(hour)).await, [machine], "the ceiling");
        lab.serve(old.conversation.id).await;
        assert!(parkable(Some(hour), None).await.is_empty(), "a server was just started");
        lab.age(machine, lab.in_seconds(-7200));
        lab.admit(&lab.serve(old.conversation.id).await).await;
        assert!(parkable(Some(hour), None).await.is_empty());
    }
}

#[actix::test]
async fn rul_l_54_an_ephemeral_machine_that_nobody_can_reach_is_found() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let machine = serving.machine.id;
        lab.age(machine, lab.in_seconds(-7200));
        let abandoned = async || {
            lab.store()
                .abandoned(lab.now(), lab.in_seconds(-900), 10)
                .await
                .unwrap()
                .len()
        };
        assert_eq!(abandoned().await, 0, "its conversation lives");
        diesel::update(fountain::store::schema::conversations::table)
            .set(fountain::store::schema::conversations::status.eq("terminated"))
            .execute(&mut lab.db.raw())
            .unwrap();
        assert_eq!(abandoned().await, 1);
    }
}

#[actix::test]
async fn views_show_the_machines_of_one_account_with_everybody_on_them() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let machine = serving.machine.id;
        let guest = lab.attach(machine).await.unwrap().value.conversation.id;
        lab.admit(&serving).await;
        let newer = lab.launch(EPHEMERAL, None).await.machine.id;
        let all = lab.store().machine_views(lab.account, vec![]).await.unwrap();
        assert_eq!(
            all.iter().map(|view| view.machine.id).collect::<Vec<_>>(),
            [newer, machine]
        );
        let tenants: Vec<_> = all[1]
            .conversations
            .iter()
            .map(|tenant| (tenant.id, tenant.mid_turn))
            .collect();
        assert_eq!(
            tenants,
            [(guest, false), (serving.conversation.id, true)],
            "newest first"
        );
        let ready = lab
            .store()
            .machine_views(lab.account, vec![MachineStatus::Ready])
            .await
            .unwrap();
        assert_eq!(ready, [all[1].clone()]);
        assert_eq!(
            lab.store().machine_view(lab.account, machine).await.unwrap().as_ref(),
            Some(&all[1])
        );
        let (other, _) = lab.tenant();
        assert_eq!(lab.store().machine_view(other, machine).await.unwrap(), None);
        assert!(lab.store().machine_views(other, vec![]).await.unwrap().is_empty());
        let census = lab.store().census().await.unwrap();
        assert_eq!(census.machines.iter().map(|(_, _, count)| count).sum::<i64>(), 2);
    }
}
