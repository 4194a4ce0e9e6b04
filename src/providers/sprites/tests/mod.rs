//! The adapter against a scripted server on a real socket, case by case (sandbox-contract 12.2, 14).

use std::time::Duration;

use super::*;

mod commands;
mod machines;
mod receipts;
mod server;
mod tls;

use server::Server;

pub(crate) const TOKEN: &str = "sekrit-token";

/// Limits that a stalled server reaches soon.
const SHORT: Limits = Limits {
    create: Duration::from_millis(700),
    policy: Duration::from_millis(700),
    checkpoint: Duration::from_millis(700),
    upgrade: Duration::from_millis(700),
    acknowledge: Duration::from_millis(700),
    termination_margin: Duration::from_millis(500),
    ping: Duration::from_millis(20),
    silence: Duration::from_millis(200),
};

fn settings(base_url: &str) -> SpritesSettings {
    SpritesSettings {
        base_url: base_url.to_owned(),
        token: TOKEN.to_owned().into(),
        timeout: Duration::from_secs(10),
        public_urls: true,
        checkpoints: true,
    }
}

/// An adapter with the limits of the contract.
fn adapter(server: &Server) -> SpritesAdapter {
    SpritesAdapter::with_limits(settings(&server.base_url), LIMITS, tls(public_roots()))
}

/// An adapter that gives up soon.
fn impatient(server: &Server) -> SpritesAdapter {
    let settings = SpritesSettings {
        timeout: Duration::from_millis(700),
        ..settings(&server.base_url)
    };
    SpritesAdapter::with_limits(settings, SHORT, tls(public_roots()))
}

/// An adapter of a place where nobody listens.
async fn nowhere() -> SpritesAdapter {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base_url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    SpritesAdapter::with_limits(settings(&base_url), LIMITS, tls(public_roots()))
}

fn unavailable(detail: &str) -> SandboxError {
    SandboxError::Unavailable(detail.to_owned())
}

fn invalid(detail: &str) -> SandboxError {
    SandboxError::Invalid(detail.to_owned())
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}
