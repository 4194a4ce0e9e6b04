//! Cases 1 to 9: who it is, and whether it is there.

use fountain_actors::ports::sandbox::*;

use crate::bench::{Bench, Lab};

pub async fn case_01_identity<B: Bench>(lab: &Lab<B>) {
    let handle = lab.adapter.handle(&lab.name);
    assert_eq!(handle.provider, lab.adapter.provider());
    assert_eq!((handle.name.as_str(), handle.instance_id), (lab.name.as_str(), None));
}

/// The type holds the eleven known names and no other; the bench says which of them are true.
pub async fn case_02_capabilities<B: Bench>(lab: &Lab<B>) {
    assert_eq!(lab.adapter.capabilities(), lab.bench.capabilities());
}

pub async fn case_03_public_url<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    match lab.adapter.public_url(&handle).await {
        Ok(url) => assert!(lab.has(Capability::PublicUrl) && url.starts_with("http"), "{url}"),
        Err(PublicUrlError::Unsupported) => assert!(!lab.has(Capability::PublicUrl)),
        Err(PublicUrlError::Failed(error)) => assert!(lab.has(Capability::PublicUrl), "{error}"),
    }
}

pub async fn case_04_create_new_never_adopts<B: Bench>(lab: &Lab<B>) {
    let create = async || lab.adapter.create_new(&lab.name, CreateNew::default()).await;
    if !lab.has(Capability::CreateNew) {
        assert_eq!(create().await, Err(SandboxError::NotSupported));
        let there = lab.adapter.get(&lab.adapter.handle(&lab.name)).await;
        assert_eq!(there, Err(SandboxError::NotFound), "there is no fallback to create");
        return;
    }
    let first = create().await.unwrap();
    let instance = first.instance_id.clone().unwrap_or_default();
    assert!(!instance.is_empty());
    let second = create().await;
    assert!(
        matches!(second, Err(SandboxError::AlreadyExists | SandboxError::Invalid(_))),
        "{second:?}"
    );
    lab.adapter.destroy(&first, None).await.unwrap();
    let third = create().await.unwrap();
    assert!(third.instance_id.is_some_and(|id| !id.is_empty() && id != instance));
}

pub async fn case_05_create_adopts<B: Bench>(lab: &Lab<B>) {
    let first = lab.adapter.create(&lab.name, None).await.unwrap();
    let second = lab.adapter.create(&lab.name, None).await.unwrap();
    assert_eq!((&first.handle.name, &second.handle.name), (&lab.name, &lab.name));
    // RUL-L-90: whether it stood there already is said.
    assert_eq!((first.adopted, second.adopted), (false, true));
    lab.adapter.get(&second.handle).await.unwrap();
}

pub async fn case_06_absence_is_not_found<B: Bench>(lab: &Lab<B>) {
    let never = lab.adapter.handle(&lab.name);
    assert_eq!(lab.adapter.get(&never).await, Err(SandboxError::NotFound));
}

pub async fn case_07_destroy_of_nothing_is_done<B: Bench>(lab: &Lab<B>) {
    let never = lab.adapter.handle(&lab.name);
    assert_eq!(lab.adapter.destroy(&never, None).await, Ok(()));
    let handle = lab.made().await;
    assert_eq!(lab.adapter.destroy(&handle, None).await, Ok(()));
    assert_eq!(lab.adapter.get(&handle).await, Err(SandboxError::NotFound));
}

pub async fn case_08_the_listing_has_it<B: Bench>(lab: &Lab<B>) {
    lab.made().await;
    let names = lab.adapter.list_all_names().await.unwrap();
    assert!(names.contains(&lab.name), "{names:?}");
}

pub async fn case_09_suspend_and_resume<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    if !lab.has(Capability::Suspend) {
        // RUL-L-98.
        let refused = Err(SandboxError::NotSupported);
        assert_eq!(lab.adapter.suspend(&handle, None).await, refused);
        assert_eq!(lab.adapter.resume(&handle, None).await, refused);
        return;
    }
    for _ in 0..2 {
        assert_eq!(lab.adapter.suspend(&handle, None).await, Ok(()), "idempotent");
    }
    assert_eq!(lab.adapter.resume(&handle, None).await, Ok(()));
    lab.adapter.get(&handle).await.unwrap();
    assert_eq!(
        lab.output(&handle, &lab.bench.ok()).await.trim_ascii(),
        b"hello",
        "usable"
    );
}
