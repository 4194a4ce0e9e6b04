//! The facade (sandbox-contract 5): arguments, then the capability, then the call, and never a fallback (T6, T13, C7,
//! D8, K10).

use std::sync::Arc;

use fountain_actors::domain::machine::Provider;
use fountain_actors::fakes::{FakeClock, FakeSandbox};
use fountain_actors::ports::sandbox::*;

fn fake() -> FakeSandbox {
    FakeSandbox::new(Arc::new(FakeClock::default()))
}

fn invalid(what: &str) -> SandboxError {
    SandboxError::Invalid(what.to_owned())
}

/// Out of range at both ends of a receipt's 1 to 120,000.
const NO_RECEIPT: [i64; 4] = [0, -1, 120_001, i64::MAX];

#[actix_web::test]
async fn dispatch_is_on_the_tag_and_an_unknown_one_is_named() {
    let adapters = AdapterSet::default().with(Arc::new(fake()));
    assert_eq!(adapters.get(Provider::Fake).unwrap().provider(), Provider::Fake);
    let error = adapters.get(Provider::Sprites).map(drop).unwrap_err();
    assert!(
        matches!(&error, SandboxError::Invalid(why) if why.contains("sprites")),
        "{error}"
    );
}

#[actix_web::test]
async fn t06_a_forced_end_needs_its_own_capability_and_the_adapter_is_not_called() {
    let fake = fake().without(Capability::ForceTerminateSession);
    let handle = fake.create("m", None).await.unwrap().handle;
    let before = fake.log().len();
    let answer = checked::terminate_session(&fake, &handle, "session", Terminate::FORCE).await;
    assert_eq!(answer, Err(SandboxError::NotSupported));
    assert_eq!(fake.log().len(), before);
    let graceful = checked::terminate_session(&fake, &handle, "session", Terminate::GRACEFUL).await;
    assert_eq!(graceful, Ok(()));
}

#[actix_web::test]
async fn t13_a_bad_termination_request_is_refused_before_everything() {
    // Without the capability, so that the order of the checks shows.
    for fake in [fake(), fake().without(Capability::TerminateSession)] {
        let handle = fake.handle("m");
        let long = "x".repeat(257);
        for id in ["", "../other", "a/b", "a?x=1", long.as_str()] {
            let answer = checked::terminate_session(&fake, &handle, id, Terminate::GRACEFUL).await;
            assert_eq!(answer, Err(invalid("termination_request")), "{id}");
        }
        for timeout_ms in [0, -1, 30_001] {
            let how = Terminate {
                timeout_ms,
                ..Terminate::GRACEFUL
            };
            let answer = checked::terminate_session(&fake, &handle, "session", how).await;
            assert_eq!(answer, Err(invalid("termination_request")), "{timeout_ms}");
        }
        assert_eq!(fake.log(), []);
    }
}

#[actix_web::test]
async fn c07_create_new_checks_its_time_and_is_never_a_create() {
    let poor = fake().without(Capability::CreateNew);
    for timeout_ms in NO_RECEIPT {
        let how = CreateNew {
            timeout_ms,
            ..CreateNew::default()
        };
        let answer = checked::create_new(&poor, "m", how).await;
        assert_eq!(answer, Err(invalid("create_timeout")), "{timeout_ms}");
    }
    let answer = checked::create_new(&poor, "m", CreateNew::default()).await;
    assert_eq!(answer, Err(SandboxError::NotSupported));
    assert!(poor.machines().is_empty() && poor.log().is_empty());
    let handle = checked::create_new(&fake(), "m", CreateNew::default()).await.unwrap();
    assert!(handle.instance_id.is_some());
}

#[actix_web::test]
async fn d08_destroy_once_checks_its_time_and_is_never_a_destroy() {
    let poor = fake();
    let handle = poor.create("m", None).await.unwrap().handle;
    for timeout_ms in NO_RECEIPT {
        let how = DestroyOnce {
            timeout_ms,
            ..DestroyOnce::default()
        };
        let answer = checked::destroy_once(&poor, &handle, how).await;
        assert_eq!(answer, Err(invalid("delete_timeout")), "{timeout_ms}");
    }
    let answer = checked::destroy_once(&poor, &handle, DestroyOnce::default()).await;
    assert_eq!(answer, Err(SandboxError::NotSupported));
    assert_eq!(poor.machines(), ["m"]);
    let rich = poor.offering(Capability::DestroyOnce);
    assert_eq!(
        checked::destroy_once(&rich, &handle, DestroyOnce::default()).await,
        Ok(())
    );
    assert!(rich.machines().is_empty());
}

#[actix_web::test]
async fn k10_a_checkpoint_receipt_checks_its_options_and_is_never_a_checkpoint() {
    // It has plain checkpoints, so that a fallback would succeed.
    let poor = fake().offering(Capability::Checkpoint);
    let handle = poor.create("m", None).await.unwrap().handle;
    let once = |operation_id: &str, timeout_ms| CheckpointOnce {
        operation_id: operation_id.to_owned(),
        timeout_ms,
        epoch: None,
    };
    for timeout_ms in NO_RECEIPT {
        // The time is judged first.
        let answer = checked::create_checkpoint_once(&poor, &handle, &once("", timeout_ms)).await;
        assert_eq!(answer, Err(invalid("checkpoint_timeout")), "{timeout_ms}");
    }
    for id in ["", "a b", "a/b", "ä", &"x".repeat(129)] {
        let answer = checked::create_checkpoint_once(&poor, &handle, &once(id, 1)).await;
        assert_eq!(answer, Err(invalid("checkpoint_operation_id")), "{id}");
    }
    let good = once("operation-1", 30_000);
    let answer = checked::create_checkpoint_once(&poor, &handle, &good).await;
    assert_eq!(answer, Err(SandboxError::NotSupported));
    assert!(poor.checkpoints().is_empty());
    let rich = poor.offering(Capability::CreateCheckpointOnce);
    let id = checked::create_checkpoint_once(&rich, &handle, &good).await.unwrap();
    assert_eq!(rich.checkpoints(), [id]);
}
