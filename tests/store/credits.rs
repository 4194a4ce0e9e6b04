//! Money: grants, what turns burn, what expires, and whom the quota transaction admits for it.

use diesel::prelude::*;
use futures_util::future::join_all;

use fountain::store::schema::{accounts, usage_events};
use fountain_actors::domain::credit::{CreditTerms, Grant, MILLS, UserChange, UserFilter, UserSort};
use fountain_actors::domain::machine::{MachineMode, Transition};
use fountain_actors::domain::turn::{Ending, OrphanReason};
use fountain_actors::domain::*;
use fountain_actors::ports::store::conversations::{Launch, Limits};
use fountain_actors::ports::store::credits::Opening;
use fountain_actors::ports::store::machines::{ClaimAnswer, ClaimRefusal, Purpose};
use fountain_actors::ports::store::{AccountStore, ConversationStore, CreditStore, TurnStore};

use crate::lab::{Lab, ROOMY};
use crate::support::{not_found, refused};

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;
const TERMS: CreditTerms = CreditTerms {
    reserve_cents: 200,
    floor: 2,
};
const BILLED: Limits = Limits {
    credits: Some(TERMS),
    ..ROOMY
};

impl Lab {
    async fn balance(&self) -> i64 {
        let standing = self.store().standing(self.account, None, self.now()).await;
        standing.unwrap().balance_mills
    }

    async fn give(&self, cents: i64) {
        let grant = Grant {
            account: self.account,
            cents,
            note: None,
        };
        let audit = self.audit("admin.credits.granted");
        self.store().grant_credit(grant, audit, self.now()).await.unwrap();
    }

    async fn bill(&self, at: Moment) -> u64 {
        self.store().bill_turns(25, at, 100).await.unwrap()
    }

    async fn launch_with(&self, limits: Limits) -> Result<MachineId, fountain_actors::ports::store::StoreError> {
        let launch = Launch {
            limits,
            ..self.new_launch(EPHEMERAL, None)
        };
        let view = self.store().launch(launch).await?;
        Ok(view.value.machine.id)
    }
}

#[actix::test]
async fn the_opening_grant_is_given_once_whoever_asks_first() {
    for lab in Lab::all().await {
        let opening = Opening {
            cents: 500,
            expires_at: lab.in_seconds(3600),
        };
        let asked = join_all((0..6).map(|_| lab.store().standing(lab.account, Some(opening), lab.now()))).await;
        for standing in asked {
            assert_eq!(standing.unwrap().balance_mills, 500 * MILLS);
        }
        not_found(
            lab.store()
                .standing(AccountId(uuid::Uuid::nil()), None, lab.now())
                .await,
        );
    }
}

#[actix::test]
async fn inv_83_a_closed_turn_is_billed_once_and_an_orphaned_one_never() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let conversation = serving.conversation.id;
        let before = lab.admit(&serving).await;
        let over = Ending::completed(before.id, "end_turn", lab.in_seconds(3600));
        lab.store().close_turn(conversation, over, None, false).await.unwrap();
        // Billing begins with its first run: what ended before is nobody's debt.
        assert_eq!(lab.bill(lab.in_seconds(7200)).await, 0);
        assert_eq!(lab.bill(lab.in_seconds(7300)).await, 0);

        let turn = lab.admit(&serving).await;
        let started = turn.started_at.unwrap();
        let ended = started + chrono::TimeDelta::hours(3);
        let over = Ending::completed(turn.id, "end_turn", ended);
        lab.store().close_turn(conversation, over, None, false).await.unwrap();
        let lost = lab.admit(&serving).await;
        let orphaned = Ending::orphaned(
            lost.id,
            OrphanReason::NoActiveSession,
            ended + chrono::TimeDelta::hours(9),
        );
        lab.store()
            .close_turn(conversation, orphaned, None, false)
            .await
            .unwrap();

        let runs = join_all((0..4).map(|_| lab.store().bill_turns(25, ended, 100))).await;
        assert_eq!(runs.into_iter().map(Result::unwrap).sum::<u64>(), 1);
        assert_eq!(lab.balance().await, -75 * MILLS, "it goes below zero");
        // Long after, when the mark has moved past the row.
        for hours in [1, 5, 50] {
            assert_eq!(lab.bill(ended + chrono::TimeDelta::hours(hours)).await, 0);
        }
        assert_eq!(lab.balance().await, -75 * MILLS);
    }
}

#[actix::test]
async fn more_closed_turns_than_one_run_takes_are_all_billed() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        assert_eq!(lab.bill(lab.now()).await, 0);
        for _ in 0..5 {
            let turn = lab.admit(&serving).await;
            let ended = turn.started_at.unwrap() + chrono::TimeDelta::minutes(36);
            let over = Ending::completed(turn.id, "end_turn", ended);
            lab.store()
                .close_turn(serving.conversation.id, over, None, false)
                .await
                .unwrap();
        }
        let now = lab.in_seconds(100_000);
        let mut billed = Vec::new();
        for _ in 0..4 {
            billed.push(lab.store().bill_turns(100, now, 2).await.unwrap());
        }
        assert_eq!(billed, [2, 2, 1, 0]);
        assert_eq!(lab.balance().await, -5 * 60 * MILLS);
        let rows: i64 = usage_events::table
            .filter(usage_events::kind.eq("turn"))
            .count()
            .get_result(&mut lab.db.raw())
            .unwrap();
        assert_eq!(rows, 5);
    }
}

#[actix::test]
async fn what_ends_is_spent_first_and_only_its_rest_is_taken_back() {
    for lab in Lab::all().await {
        let serving = lab.up(EPHEMERAL).await;
        let opening = Opening {
            cents: 500,
            expires_at: lab.in_seconds(50_000),
        };
        lab.store()
            .standing(lab.account, Some(opening), lab.now())
            .await
            .unwrap();
        lab.give(1000).await;
        lab.give(1000).await;
        assert_eq!(lab.balance().await, 2500 * MILLS, "two equal grants are two");
        lab.bill(lab.now()).await;
        let turn = lab.admit(&serving).await;
        let ended = turn.started_at.unwrap() + chrono::TimeDelta::hours(8);
        let over = Ending::completed(turn.id, "end_turn", ended);
        lab.store()
            .close_turn(serving.conversation.id, over, None, false)
            .await
            .unwrap();
        lab.bill(ended).await;
        let purse = lab
            .store()
            .purse(lab.account, lab.in_seconds(-60), ended)
            .await
            .unwrap();
        assert_eq!(
            (purse.expiring_mills, purse.burned_mills, purse.turns, purse.turn_ms),
            (300 * MILLS, 200 * MILLS, 1, 8 * 3_600_000)
        );
        assert_eq!(lab.store().expire_grants(lab.now(), 10).await.unwrap(), 0, "not yet");
        let after = lab.in_seconds(60_000);
        assert_eq!(lab.store().expire_grants(after, 10).await.unwrap(), 1);
        assert_eq!(lab.store().expire_grants(after, 10).await.unwrap(), 0);
        assert_eq!(lab.balance().await, 2000 * MILLS);
        let purse = lab
            .store()
            .purse(lab.account, lab.in_seconds(-60), after)
            .await
            .unwrap();
        assert_eq!((purse.expiring_mills, purse.expires_at), (0, None));
    }
}

#[actix::test]
async fn the_order_of_refusals_is_fleet_then_account_then_credit_then_cap() {
    for lab in Lab::all().await {
        let shut = Limits { fleet: 0, ..BILLED };
        lab.limit_account(Some(0), true);
        assert_eq!(refused(lab.launch_with(shut).await), ErrorCode::FleetFull);
        assert_eq!(refused(lab.launch_with(BILLED).await), ErrorCode::AccountSuspended);
        lab.limit_account(Some(0), false);
        assert_eq!(
            refused(lab.launch_with(BILLED).await),
            ErrorCode::InsufficientCredits,
            "an account without credit hears of that and not of its cap"
        );
        lab.give(1).await;
        assert_eq!(refused(lab.launch_with(BILLED).await), ErrorCode::SandboxQuotaExceeded);
    }
}

#[actix::test]
async fn inv_100_the_cap_follows_the_balance() {
    for lab in Lab::all().await {
        lab.give(650).await;
        for _ in 0..3 {
            lab.launch_with(BILLED).await.unwrap();
        }
        let fourth = lab.launch_with(BILLED).await.unwrap_err();
        assert_eq!(fourth.refusal(), Refusal::QuotaExceeded { active: 3, limit: 3 });
        lab.give(150).await;
        lab.launch_with(BILLED).await.unwrap();
        let comp = UserChange::Comped(true);
        let audit = lab.audit("admin.comp.granted");
        lab.store()
            .change_user(lab.account, comp, audit, lab.now())
            .await
            .unwrap();
        lab.launch_with(BILLED).await.unwrap();
    }
}

#[actix::test]
async fn a_wake_asks_for_credit_and_a_wake_that_is_counted_does_not() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        lab.park(machine).await;
        let wake = || Purpose::Wake { limits: BILLED };
        let refusal = ClaimAnswer::Not(ClaimRefusal::Refused(ErrorCode::InsufficientCredits.into()));
        assert_eq!(lab.try_claim(machine, wake()).await, refusal);
        lab.give(1).await;
        lab.claim(machine, wake()).await;
        lab.expire(machine);
        diesel::update(accounts::table.find(lab.account.to_string()))
            .set(accounts::credit_balance.eq(-5_i64))
            .execute(&mut lab.db.raw())
            .unwrap();
        // RUL-L-71: it was admitted once.
        assert!(matches!(lab.try_claim(machine, wake()).await, ClaimAnswer::Claimed(_)));
    }
}

#[actix::test]
async fn suspending_fences_machines_and_revokes_keys_in_one_commit() {
    for lab in Lab::all().await {
        let (up, parked) = (lab.up(EPHEMERAL).await.machine.id, lab.up(EPHEMERAL).await.machine.id);
        lab.park(parked).await;
        let key = account::NewApiKey {
            id: crate::support::id(),
            account_id: lab.account,
            name: "k".into(),
            prefix: "ftn_".into(),
            sha256: [7; 32],
            scope: account::Scope::Full,
            expires_at: None,
        };
        let key = lab.store().create_key(key, None, lab.now()).await.unwrap();
        let suspend = UserChange::Suspended(true);
        let audit = lab.audit("admin.account.suspended");
        let changed = lab
            .store()
            .change_user(lab.account, suspend, audit, lab.now())
            .await
            .unwrap()
            .value;
        let mut fenced = changed.machines.clone();
        fenced.sort();
        let mut all = vec![up, parked];
        all.sort();
        assert_eq!((fenced, changed.keys), (all, vec![key.id]));
        for machine in [up, parked] {
            assert_eq!(lab.machine(machine).await.transition, Some(Transition::Destroying));
        }
        let (found, _) = lab.store().key_by_hash([7; 32]).await.unwrap().unwrap();
        assert!(found.revoked_at.is_some());
        assert!(changed.user.account.suspended_at.is_some());
        assert_eq!(refused(lab.launch_with(ROOMY).await), ErrorCode::AccountSuspended);
    }
}

#[actix::test]
async fn administrators_find_accounts_by_what_they_ask_for() {
    for lab in Lab::all().await {
        let (one, two) = (lab.db.account().await, lab.db.account().await);
        lab.up(EPHEMERAL).await;
        let filter = || UserFilter {
            q: None,
            comped: None,
            verified: None,
            admin: None,
            sort: UserSort::Joined,
            ascending: true,
            offset: 0,
            limit: 10,
        };
        let users = async |filter| lab.store().users(filter).await.unwrap();
        let (all, total) = users(filter()).await;
        assert_eq!((all.len(), total), (3, 3));
        let own = all.iter().find(|row| row.account.id == lab.account).unwrap();
        assert_eq!(own.active_machines, 1);
        let part = one.email.as_deref().unwrap().split('@').next().unwrap().to_uppercase();
        let (found, total) = users(UserFilter {
            q: Some(part),
            ..filter()
        })
        .await;
        assert_eq!((found[0].account.id, total), (one.id, 1));
        let wild = UserFilter {
            q: Some("%".into()),
            ..filter()
        };
        assert_eq!(users(wild).await.1, 0, "a pattern means its own characters");
        let page = UserFilter {
            offset: 2,
            limit: 2,
            ..filter()
        };
        let (rest, total) = users(page).await;
        assert_eq!((rest.len(), total), (1, 3));
        let admins = UserFilter {
            admin: Some(true),
            ..filter()
        };
        assert_eq!(users(admins).await.1, 0);
        let grant = UserChange::Admin(true);
        lab.store()
            .change_user(two.id, grant, lab.audit("admin.role.granted"), lab.now())
            .await
            .unwrap();
        for sort in UserSort::ALL {
            let admins = UserFilter {
                admin: Some(true),
                sort: *sort,
                ..filter()
            };
            assert_eq!(users(admins).await.0[0].account.id, two.id);
        }
        let nobody = AccountId(uuid::Uuid::nil());
        assert_eq!(lab.store().user(nobody).await.unwrap(), None);
        let change = lab.store().change_user(nobody, grant, lab.audit("x"), lab.now()).await;
        not_found(change);
    }
}

#[actix::test]
async fn minutes_of_machines_are_counted_by_provider() {
    for lab in Lab::all().await {
        let machine = lab.up(EPHEMERAL).await.machine.id;
        let since = lab.in_seconds(-60);
        let hour = chrono::TimeDelta::hours(1);
        // The lab's builds write no usage row: it counts as up since the beginning of the time.
        let purse = lab.store().purse(lab.account, since, since + hour).await.unwrap();
        assert_eq!(purse.machine_minutes, [("fake".to_owned(), 60)].into());
        let row = |kind: &str, at: Moment| {
            diesel::insert_into(usage_events::table)
                .values((
                    usage_events::account_id.eq(lab.account.to_string()),
                    usage_events::kind.eq(kind.to_owned()),
                    usage_events::machine_id.eq(machine.to_string()),
                    usage_events::provider.eq("fake"),
                    usage_events::metadata.eq("{}"),
                    usage_events::inserted_at.eq(at.naive_utc()),
                ))
                .execute(&mut lab.db.raw())
                .unwrap();
        };
        let minutes = |n: i64| since + chrono::TimeDelta::minutes(n);
        row("suspended", minutes(10));
        row("resumed", minutes(30));
        let purse = lab.store().purse(lab.account, since, since + hour).await.unwrap();
        assert_eq!(purse.machine_minutes, [("fake".to_owned(), 40)].into());
        assert_eq!(purse.conversations, 1);
    }
}
