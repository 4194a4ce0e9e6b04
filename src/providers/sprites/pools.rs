//! Ordinary REST calls over pooled connections.
//!
//! Clients are not `Send`, so every thread has its own, per adapter. Network-policy calls have a pool to themselves: the
//! service answers them only when a booting machine is up, and a late answer once was read by the next request on the
//! same connection (providers 1.2). A call that ran out takes its connection with it.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use actix_http::header;
use actix_http::{Method, StatusCode};
use awc::error::{ConnectError, PayloadError, SendRequestError};
use rustls::ClientConfig;

use crate::call::{Call, Lost, Reply};
use crate::wire::CONNECT_LIMIT;

/// Which connections a call may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Pool {
    General,
    Policy,
}

thread_local! {
    static CLIENTS: RefCell<HashMap<(u64, Pool), awc::Client>> = RefCell::new(HashMap::new());
}

/// The client of adapter number `adapter` on this thread.
fn client(adapter: u64, pool: Pool, tls: &Arc<ClientConfig>) -> awc::Client {
    CLIENTS.with_borrow_mut(|clients| {
        clients
            .entry((adapter, pool))
            .or_insert_with(|| {
                let connector = awc::Connector::new()
                    .rustls_0_23(Arc::clone(tls))
                    .timeout(CONNECT_LIMIT)
                    .handshake_timeout(CONNECT_LIMIT);
                awc::Client::builder()
                    .connector(connector)
                    .disable_redirects()
                    .disable_timeout()
                    .finish()
            })
            .clone()
    })
}

/// What a call needs beside itself.
pub(crate) struct Via<'a> {
    pub adapter: u64,
    pub pool: Pool,
    pub tls: &'a Arc<ClientConfig>,
    pub token: &'a str,
    pub limit: Duration,
    /// Most bytes of the answer.
    pub longest: usize,
}

/// Sends a call to an absolute URL and reads the whole answer, all within the limit.
pub(crate) async fn send(call: Call, url: String, via: Via<'_>) -> Result<Reply, Lost> {
    let limit = via.limit;
    tokio::time::timeout(limit, exchange(call, url, via))
        .await
        .map_err(|_| Lost::Late)?
}

async fn exchange(call: Call, url: String, via: Via<'_>) -> Result<Reply, Lost> {
    let headers = call.headers(via.token).ok_or(Lost::Unsendable)?;
    let mut request = client(via.adapter, via.pool, via.tls)
        .request(call.method.clone(), url)
        .no_decompress();
    for (name, value) in headers {
        request.headers_mut().insert(name, value);
    }
    let body = call.body.map(|(bytes, _)| bytes);
    let sent = match body {
        Some(bytes) => request.send_body(bytes).await,
        // A POST without a body says so.
        None if call.method == Method::POST => request.content_length(0).send().await,
        None => request.send().await,
    };
    let mut response = sent.map_err(|error| lost(&error))?;
    let (status, headers) = (response.status(), response.headers().clone());
    let body = match response.body().limit(via.longest).await {
        Ok(body) => body,
        Err(PayloadError::Overflow) => return Err(Lost::TooLong),
        Err(_) => return Err(Lost::Broken),
    };
    let promised = headers
        .get(header::CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse().ok());
    // The client takes an early end for the end.
    if promised.is_some_and(|promised: usize| promised != body.len() && status != StatusCode::NO_CONTENT) {
        return Err(Lost::Broken);
    }
    Ok(Reply { status, headers, body })
}

fn lost(error: &SendRequestError) -> Lost {
    match error {
        // This one says that a connection ended under the request.
        SendRequestError::Connect(ConnectError::Disconnected) => Lost::Broken,
        SendRequestError::Connect(_) => Lost::NotConnected,
        SendRequestError::Url(_) | SendRequestError::Http(_) => Lost::Unsendable,
        _ => Lost::Broken,
    }
}
