//! Cases 10 and 11: a command and its code.

use fountain_actors::ports::sandbox::*;

use crate::bench::{Bench, Lab, contains};

pub async fn case_10_exec_succeeds<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let done = lab
        .exec(&handle, &lab.bench.ok(), ExecOptions::default())
        .await
        .unwrap();
    assert_eq!(done.code, 0);
    assert!(contains(&done.output, b"hello"), "{done:?}");
}

pub async fn case_11_a_nonzero_code_is_data<B: Bench>(lab: &Lab<B>) {
    let handle = lab.made().await;
    let done = lab.exec(&handle, &lab.bench.fails(), ExecOptions::default()).await;
    assert_eq!(done.unwrap().code, 3);
}
