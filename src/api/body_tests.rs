use serde_json::json;

use super::*;
use crate::api::error::faults_of;

#[test]
fn rul_08_all_faults_are_named_at_once() {
    let mut body = Body::of(json!({"a": 1, "b": "x", "c": "no", "d": {}, "e": "2026-13-01T00:00:00Z"}));
    body.text("a");
    body.flag("b");
    body.id::<fountain_actors::domain::AgentId>("c");
    body.list("d");
    body.optional("e", |value| moment_of(&value));
    body.required_text("f");
    assert_eq!(faults_of(body.finish().unwrap_err()), ["a", "b", "c", "d", "e", "f"]);
}

#[test]
fn rul_08_a_nul_is_named_by_its_path_wherever_it_stands() {
    let body = Body::of(json!({
        "name": "a\0b",
        "metadata": {"x": ["ok", {"y": "\0"}]},
        "labels": {"k\0": "v"},
    }));
    assert_eq!(
        faults_of(body.finish().unwrap_err()),
        ["labels", "metadata/x/1/y", "name"]
    );
}

#[test]
fn a_whole_that_is_no_object_is_a_fault_of_the_body() {
    for value in [json!([]), json!("x"), json!(null), json!(1)] {
        assert_eq!(faults_of(Body::of(value).finish().unwrap_err()), ["body"]);
    }
}

#[test]
fn null_means_not_given_unless_it_clears() {
    let mut body = Body::of(json!({"a": null, "b": null, "c": "x"}));
    assert_eq!(body.text("a"), None);
    assert_eq!(body.given("b", text_of), Given::Null);
    assert_eq!(body.given("c", text_of), Given::Value("x".into()));
    assert_eq!(body.given("d", text_of), Given::Absent);
    body.finish().unwrap();
}

#[test]
fn a_strict_body_names_what_it_does_not_know() {
    let mut body = Body::of(json!({"expires_at": null, "value": "x"}));
    body.only(&["expires_at"]);
    assert_eq!(faults_of(body.finish().unwrap_err()), ["value"]);
}

#[test]
fn times_are_cut_to_microseconds() {
    let moment = moment_of(&json!("2026-01-02T03:04:05.123456789+01:00")).unwrap();
    assert_eq!(moment.to_rfc3339(), "2026-01-02T02:04:05.123456+00:00");
}
