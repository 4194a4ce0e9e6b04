//! The launch queue: depth, order, claims, and one conversation for one request.

use diesel::prelude::*;
use futures_util::future::join_all;

use fountain::store::schema::{conversations, sandbox_requests};
use fountain_actors::domain::conversation::SandboxApiAccess;
use fountain_actors::domain::machine::MachineMode;
use fountain_actors::domain::queue::{QueuedLaunch, RequestKind, RequestSource, RequestStatus, SandboxRequest};
use fountain_actors::domain::*;
use fountain_actors::ports::store::queue::{ClaimedRequest, Enqueued, NewRequest, RequestOutcome};
use fountain_actors::ports::store::{QueueStore, StoreError, TurnStore};

use crate::lab::Lab;
use crate::support::{id, not_found};

const EPHEMERAL: MachineMode = MachineMode::Ephemeral;
const SECRET: &str = "the words of the prompt";

fn launch() -> QueuedLaunch {
    QueuedLaunch {
        prompt: Some(SECRET.into()),
        client_request_id: Some("mine".into()),
        title: None,
        vault_id: None,
        environment_id: None,
        inference_credential_id: None,
        model: None,
        permission_policy: None,
        sandbox_mode: Some(EPHEMERAL),
        sandbox_api_access: SandboxApiAccess::Owner,
        sprite_name: None,
        channel_id: None,
        fresh: false,
        labels: Default::default(),
        parent: None,
        asked_by: None,
    }
}

impl Lab {
    fn new_request(&self) -> NewRequest {
        NewRequest {
            id: id(),
            account_id: self.account,
            agent_id: self.agent,
            kind: RequestKind::Start,
            source: RequestSource::Api,
            schedule_id: None,
            launch: launch(),
            depth: 10,
            audit: self.audit("sandbox_request.enqueued"),
            now: self.now(),
        }
    }

    async fn wait_in_line(&self) -> QueueRequestId {
        match self.store().enqueue(self.new_request()).await.unwrap().value {
            Enqueued::Waits(view) => view.request.id,
            other => panic!("{other:?}"),
        }
    }

    /// A claim by a drain that counts claims of more than five minutes as dead.
    async fn claim_next(&self) -> Option<ClaimedRequest> {
        let stale = self.in_seconds(-300);
        let claim = self.store().claim_request(self.account, Vec::new(), stale, self.now());
        claim.await.unwrap()
    }

    /// A claim by a drain that counts every other one as dead.
    async fn take_over(&self) -> Option<ClaimedRequest> {
        let stale = self.in_seconds(300);
        let claim = self.store().claim_request(self.account, Vec::new(), stale, self.now());
        claim.await.unwrap()
    }

    async fn request(&self, id: QueueRequestId) -> SandboxRequest {
        let view = self.store().queue_request(self.account, id).await.unwrap();
        view.unwrap().request
    }

    async fn end_claim(&self, claim: ClaimedRequest, outcome: RequestOutcome) -> bool {
        let done = self.store().finish_request(claim, outcome, self.now()).await;
        done.unwrap().value
    }

    /// What stands of a request's launch, past the store.
    fn kept(&self, id: QueueRequestId) -> Option<String> {
        sandbox_requests::table
            .find(id.to_string())
            .select(sandbox_requests::launch)
            .first(&mut self.db.raw())
            .unwrap()
    }
}

#[actix::test]
async fn inv_104_r_104_the_line_of_an_account_has_a_depth_and_a_schedule_stands_in_it_once() {
    for lab in Lab::all().await {
        let request = || NewRequest {
            depth: 3,
            ..lab.new_request()
        };
        let schedule: ScheduleId = id();
        let of_schedule = || NewRequest {
            kind: RequestKind::ScheduleRun,
            source: RequestSource::Schedule,
            schedule_id: Some(schedule),
            ..request()
        };
        let first = lab.store().enqueue(of_schedule()).await.unwrap().value;
        let Enqueued::Waits(first) = first else {
            panic!("{first:?}")
        };
        let again = lab.store().enqueue(of_schedule()).await.unwrap().value;
        assert_eq!(again, Enqueued::Known(first), "the same one");
        // At once, and still no more than three.
        let asked = join_all((0..6).map(|_| lab.store().enqueue(request()))).await;
        let full = asked
            .iter()
            .filter(|answer| answer.as_ref().unwrap().value == Enqueued::Full);
        assert_eq!(full.count(), 4);
        assert_eq!(lab.store().queue_requests(lab.account).await.unwrap().len(), 3);
        assert_eq!(
            lab.audited()
                .iter()
                .filter(|action| *action == "sandbox_request.enqueued")
                .count(),
            3
        );
    }
}

#[actix::test]
async fn the_line_keeps_its_order_and_a_place_in_it_is_counted_from_one() {
    for lab in Lab::all().await {
        let (one, two) = (lab.wait_in_line().await, lab.wait_in_line().await);
        let places: Vec<_> = lab
            .store()
            .queue_requests(lab.account)
            .await
            .unwrap()
            .into_iter()
            .map(|view| (view.request.id, view.position))
            .collect();
        assert_eq!(places, [(one, Some(1)), (two, Some(2))]);
        let claim = lab.claim_next().await.unwrap();
        assert_eq!(claim.request.id, one);
        assert_eq!(
            lab.claim_next().await,
            None,
            "nobody overtakes a start that is under way"
        );
        assert!(lab.end_claim(claim, RequestOutcome::Back).await);
        let view = lab.store().queue_request(lab.account, two).await.unwrap().unwrap();
        assert_eq!(view.position, Some(2), "back in its old place");
        let stale = lab.in_seconds(-300);
        let next = lab.store().claim_request(lab.account, vec![one], stale, lab.now());
        assert_eq!(next.await.unwrap().unwrap().request.id, two);
    }
}

#[actix::test]
async fn inv_103_inv_106_a_start_ends_its_request_in_its_own_commit() {
    for lab in Lab::all().await {
        let waiting = lab.wait_in_line().await;
        let claim = lab.claim_next().await.unwrap();
        let view = lab
            .store()
            .launch_request(claim, lab.new_launch(EPHEMERAL, Some(SECRET)))
            .await
            .unwrap()
            .value;
        let request = lab.request(waiting).await;
        assert_eq!(
            (request.status, request.conversation_id, request.launch),
            (RequestStatus::Started, Some(view.conversation.id), None)
        );
        let carried: Option<String> = conversations::table
            .find(view.conversation.id.to_string())
            .select(conversations::queue_request_id)
            .first(&mut lab.db.raw())
            .unwrap();
        assert_eq!(carried, Some(waiting.to_string()));
        assert_eq!(
            lab.audited(),
            [
                "sandbox_request.enqueued",
                "conversation.created",
                "sandbox_request.started"
            ]
        );
        assert_eq!(lab.claim_next().await, None);
    }
}

#[actix::test]
async fn rul_l_58_r_105_of_two_drains_only_the_holder_of_the_claim_starts_anything() {
    for lab in Lab::all().await {
        let waiting = lab.wait_in_line().await;
        let slow = lab.claim_next().await.unwrap();
        let quick = lab.take_over().await.unwrap();
        let late = lab
            .store()
            .launch_request(slow.clone(), lab.new_launch(EPHEMERAL, None))
            .await;
        assert!(matches!(late, Err(StoreError::Stale(_))), "{late:?}");
        let count: i64 = conversations::table.count().get_result(&mut lab.db.raw()).unwrap();
        assert_eq!(count, 0, "and nothing is left behind");
        for outcome in [RequestOutcome::Back, RequestOutcome::Failed("no".into())] {
            assert!(!lab.end_claim(slow.clone(), outcome).await);
        }
        lab.store()
            .launch_request(quick, lab.new_launch(EPHEMERAL, None))
            .await
            .unwrap();
        assert_eq!(lab.request(waiting).await.status, RequestStatus::Started);
    }
}

#[actix::test]
async fn rul_l_58_a_second_claim_finds_the_conversation_of_the_first() {
    for lab in Lab::all().await {
        let home = lab.up(MachineMode::Persistent).await;
        let waiting = lab.wait_in_line().await;
        let first = lab.claim_next().await.unwrap();
        let joined = lab
            .store()
            .attach_request(first.clone(), lab.new_attach(home.machine.id))
            .await
            .unwrap()
            .value;
        let twice = lab.store().attach_request(first, lab.new_attach(home.machine.id)).await;
        assert!(twice.is_err(), "one request, one conversation");
        let second = lab.take_over().await.unwrap();
        assert_eq!(second.opened, Some(joined.conversation.id));
        let delivered = || lab.store().request_delivered(second.clone(), joined.conversation.id);
        assert!(!delivered().await.unwrap());
        let serving = lab.serve(joined.conversation.id).await;
        let mut admit = lab.new_admit(&serving);
        admit.prompt.text = SECRET.into();
        lab.store().admit_turn(admit.clone()).await.unwrap();
        assert!(!delivered().await.unwrap(), "another client's id is another prompt");
        let ending = turn::Ending::completed(admit.turn_id, "end_turn", lab.now());
        lab.store()
            .close_turn(joined.conversation.id, ending, None, false)
            .await
            .unwrap();
        admit.turn_id = id();
        admit.prompt.client_request_id = Some("mine".into());
        admit.now = lab.now();
        lab.store().admit_turn(admit).await.unwrap();
        assert!(delivered().await.unwrap());
        assert!(
            lab.end_claim(second, RequestOutcome::Started(joined.conversation.id))
                .await
        );
        assert_eq!(lab.request(waiting).await.conversation_id, Some(joined.conversation.id));
    }
}

#[actix::test]
async fn of_many_claims_at_once_one_is_had() {
    for lab in Lab::all().await {
        lab.wait_in_line().await;
        let claims = join_all((0..8).map(|_| lab.claim_next())).await;
        assert_eq!(claims.iter().flatten().count(), 1, "{claims:?}");
    }
}

#[actix::test]
async fn inv_106_no_request_that_is_over_keeps_what_was_asked() {
    for lab in Lab::all().await {
        let failed = lab.wait_in_line().await;
        let claim = lab.claim_next().await.unwrap();
        assert!(lab.kept(failed).is_some_and(|kept| kept.contains(SECRET)));
        assert!(
            lab.end_claim(claim, RequestOutcome::Failed("vault_not_found".into()))
                .await
        );
        assert_eq!(lab.request(failed).await.error.as_deref(), Some("vault_not_found"));

        let cancelled = lab.wait_in_line().await;
        let audit = || lab.audit("sandbox_request.cancelled");
        let cancel = |of| lab.store().cancel_request(lab.account, of, audit(), lab.now());
        cancel(cancelled).await.unwrap();
        not_found(cancel(cancelled).await);

        let overdue = lab.wait_in_line().await;
        let young = lab.store().expire_requests(lab.in_seconds(-3600), lab.now(), 10).await;
        assert_eq!(young.unwrap().value, 0);
        let late = lab.store().expire_requests(lab.in_seconds(3600), lab.now(), 10).await;
        assert_eq!(late.unwrap().value, 1);
        for (over, status) in [
            (failed, RequestStatus::Failed),
            (cancelled, RequestStatus::Cancelled),
            (overdue, RequestStatus::Expired),
        ] {
            assert_eq!((lab.request(over).await.status, lab.kept(over)), (status, None));
        }
        let told: Vec<_> = lab
            .audited()
            .into_iter()
            .filter(|action| action != "sandbox_request.enqueued")
            .collect();
        assert_eq!(
            told,
            [
                "sandbox_request.failed",
                "sandbox_request.cancelled",
                "sandbox_request.expired"
            ]
        );
    }
}

#[actix::test]
async fn a_claimed_request_cannot_be_cancelled_and_no_other_account_sees_it() {
    for lab in Lab::all().await {
        let waiting = lab.wait_in_line().await;
        let (other, _) = lab.tenant();
        assert_eq!(lab.store().queue_request(other, waiting).await.unwrap(), None);
        assert!(lab.store().queue_requests(other).await.unwrap().is_empty());
        let audit = || lab.audit("sandbox_request.cancelled");
        not_found(lab.store().cancel_request(other, waiting, audit(), lab.now()).await);
        lab.claim_next().await.unwrap();
        not_found(
            lab.store()
                .cancel_request(lab.account, waiting, audit(), lab.now())
                .await,
        );
    }
}

#[actix::test]
async fn dead_claims_are_found_and_old_requests_forgotten() {
    for lab in Lab::all().await {
        lab.wait_in_line().await;
        lab.claim_next().await.unwrap();
        let waiting = |before| lab.store().waiting_accounts(before, 10);
        assert!(waiting(lab.in_seconds(-300)).await.unwrap().is_empty());
        assert_eq!(waiting(lab.in_seconds(300)).await.unwrap(), [lab.account]);
        let claim = lab.take_over().await.unwrap();
        assert_eq!(lab.store().forget_requests(lab.in_seconds(300), 10).await.unwrap(), 0);
        assert!(lab.end_claim(claim, RequestOutcome::Failed("no".into())).await);
        assert_eq!(lab.store().forget_requests(lab.in_seconds(-300), 10).await.unwrap(), 0);
        assert_eq!(lab.store().forget_requests(lab.in_seconds(300), 10).await.unwrap(), 1);
    }
}
