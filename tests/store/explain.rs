//! What explains a machine, what operators see, and the end without evidence (RUL-L-47, RUL-L-60, RUL-L-73).

use fountain_actors::domain::explain::ledger::Entry;
use fountain_actors::domain::explain::{DebtStage, why};
use fountain_actors::domain::machine::{DestroyReason, MachineEvent, MachineMode, MachineState, MachineStatus};
use fountain_actors::domain::operation::{Outcome, Receipt};
use fountain_actors::domain::settings::Settings;
use fountain_actors::domain::*;
use fountain_actors::ports::store::explain::ExplainStore;
use fountain_actors::ports::store::machines::{ClaimAnswer, ClaimRefusal, Finish, Purpose};
use fountain_actors::ports::store::passes::PassStore;
use fountain_actors::ports::store::{MachineStore, StoreError};

use crate::lab::{Held, Lab, ROOMY};

const PERSISTENT: MachineMode = MachineMode::Persistent;
const EPHEMERAL: MachineMode = MachineMode::Ephemeral;

async fn lost_wake(lab: &Lab, machine: MachineId) -> Held {
    lab.park(machine).await;
    let held = lab.claim(machine, Purpose::Wake { limits: ROOMY }).await;
    let unknown = Finish {
        keep_stamp: true,
        receipt: Receipt::of(Outcome::Unknown),
        learned: false,
        ..lab.new_finish(&held, None)
    };
    lab.store().finish(unknown).await.unwrap();
    held
}

fn handed_over(lab: &Lab, held: &Held) -> Finish {
    Finish {
        receipt: Receipt::of(Outcome::HandedOver),
        learned: false,
        audit: vec![lab.audit("admin.sandbox.reaped")],
        ..lab.new_finish(held, Some(MachineEvent::DeleteConfirmed))
    }
}

async fn entry(lab: &Lab, machine: MachineId) -> Option<Entry> {
    let books = lab.store().books().await.unwrap();
    books.entries.into_iter().find(|entry| entry.machine == machine)
}

#[actix::test]
async fn a_testimony_is_one_accounts_and_tells_debts_however_long_the_journal_is() {
    for lab in Lab::all().await {
        let serving = lab.up(PERSISTENT).await;
        let machine = serving.machine.id;
        let held = lost_wake(&lab, machine).await;
        let told = lab.store().testimony(lab.account, machine, 1, lab.now()).await;
        let told = told.unwrap().unwrap();
        assert_eq!(told.operations.len(), 1);
        assert_eq!(told.open.iter().map(|row| row.id).collect::<Vec<_>>(), [held.operation]);
        assert_eq!(told.tenants.len(), 1);
        assert_eq!(told.tenants[0].conversation, serving.conversation.id);
        assert!(told.counted, "a wake that may have started it is counted (RUL-L-70)");
        let why = why(&told, &Settings::default());
        assert_eq!(why.state, MachineState::WakeStale);
        assert_eq!(why.debts[0].stage, DebtStage::Open);
        let (stranger, _) = lab.tenant();
        let foreign = lab.store().testimony(stranger, machine, 1, lab.now()).await.unwrap();
        assert_eq!(foreign, None);
    }
}

#[actix::test]
async fn rul_l_47_a_reap_takes_any_unleased_row_and_waits_for_every_lease() {
    for lab in Lab::all().await {
        let new = lab.launch(EPHEMERAL, None).await.machine.id;
        let up = lab.up(EPHEMERAL).await.machine.id;
        let asleep = lab.up(EPHEMERAL).await.machine.id;
        lab.park(asleep).await;
        let doomed = lab.up(EPHEMERAL).await.machine.id;
        lab.fence(doomed, DestroyReason::Terminated).await.unwrap();
        for machine in [new, up, asleep, doomed] {
            let held = lab.claim(machine, Purpose::Reap).await;
            let busy = lab.try_claim(machine, Purpose::Reap).await;
            assert!(matches!(busy, ClaimAnswer::Held { .. }));
            let done = lab.store().hand_over(handed_over(&lab, &held)).await.unwrap().value;
            assert_eq!(done.machine.status, MachineStatus::Terminated);
            assert_eq!(done.machine.lease, None);
            let again = lab.try_claim(machine, Purpose::Reap).await;
            let terminal = ClaimAnswer::Not(ClaimRefusal::Terminal(MachineStatus::Terminated));
            assert_eq!(again, terminal);
            let row = lab.store().operations(lab.account, machine, 1).await.unwrap().remove(0);
            assert_eq!(row.outcome, Some(Outcome::HandedOver));
        }
        let building = lab.launch(EPHEMERAL, None).await.machine.id;
        lab.claim(building, Purpose::Provision).await;
        let busy = lab.try_claim(building, Purpose::Reap).await;
        assert!(matches!(busy, ClaimAnswer::Held { .. }), "a build too");
    }
}

#[actix::test]
async fn rul_l_47_a_superseded_reap_ends_nothing() {
    for lab in Lab::all().await {
        let machine = lab.up(PERSISTENT).await.machine.id;
        let held = lab.claim(machine, Purpose::Reap).await;
        lab.expire(machine);
        lab.claim(machine, Purpose::Confirm).await;
        let late = lab.store().hand_over(handed_over(&lab, &held)).await;
        assert!(matches!(late, Err(StoreError::Stale(_))));
        assert_eq!(lab.machine(machine).await.status, MachineStatus::Ready);
    }
}

#[actix::test]
async fn rul_l_73_the_books_hold_what_is_counted_owed_and_handed_over() {
    for lab in Lab::all().await {
        let machine = lab.up(PERSISTENT).await.machine.id;
        assert!(entry(&lab, machine).await.unwrap().counted);
        lab.park(machine).await;
        assert_eq!(
            entry(&lab, machine).await,
            None,
            "parked: it takes no slot and owes nothing"
        );
        let wake = lab.claim(machine, Purpose::Wake { limits: ROOMY }).await;
        lab.finish(&wake, MachineEvent::WakeConfirmed).await;
        lost_wake(&lab, machine).await;
        let owed = entry(&lab, machine).await.unwrap();
        assert_eq!(owed.debts, std::slice::from_ref(&owed.name));
        let held = lab.claim(machine, Purpose::Reap).await;
        lab.store().hand_over(handed_over(&lab, &held)).await.unwrap();
        let given = entry(&lab, machine).await.unwrap();
        assert!(given.handed_over && !given.counted);
        assert_eq!(given.debts, Vec::<String>::new(), "nobody asks its provider any more");
    }
}

#[actix::test]
async fn operators_see_live_rows_of_all_accounts_and_the_log_by_its_beginning() {
    for lab in Lab::all().await {
        let up = lab.up(EPHEMERAL).await.machine.id;
        let stale = lab.up(EPHEMERAL).await.machine.id;
        lost_wake(&lab, stale).await;
        let gone = lab.up(EPHEMERAL).await.machine.id;
        let held = lab.claim(gone, Purpose::Reap).await;
        lab.store().hand_over(handed_over(&lab, &held)).await.unwrap();
        let rows = lab.store().live_machines(lab.now()).await.unwrap();
        let mine = |id: MachineId| rows.iter().find(|row| row.machine.id == id);
        assert_eq!(mine(up).unwrap().conversations, 1);
        assert!(!mine(up).unwrap().abandoned && mine(stale).unwrap().abandoned);
        assert!(mine(gone).is_none());
        lab.store()
            .note(lab.audit("admin.provider.lost_confirmed"), lab.now())
            .await
            .unwrap();
        let log = lab.store().audit_log(Some("admin."), 100).await.unwrap();
        let actions: Vec<&str> = log.iter().map(|row| row.action.as_str()).collect();
        assert_eq!(actions, ["admin.provider.lost_confirmed", "admin.sandbox.reaped"]);
        let all = lab.store().audit_log(None, 1).await.unwrap();
        assert_eq!(all.len(), 1);
    }
}

#[actix::test]
async fn rul_l_47_what_was_handed_over_is_nobodys_leftover() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine;
        let held = lab.claim(machine.id, Purpose::Reap).await;
        lab.store().hand_over(handed_over(&lab, &held)).await.unwrap();
        let holders = lab.store().name_holders(machine.provider, vec![machine.name]).await;
        assert_eq!(
            holders.unwrap(),
            [],
            "the reaper takes it for untracked, which is never deleted"
        );
    }
}
