//! A TCP connector whose sockets send at once.
//!
//! The daemon answers with several small messages in a row: an acknowledgement, then the output that it led to. Left to
//! itself the kernel holds the second back until the first is acknowledged, and the far end, with nothing to say, waits
//! 40 ms before it does: that was nine tenths of a warm prompt (`benches/README.md`). Messages are whole when they are
//! written, so nothing is lost by not gathering them.

use std::task::{Context, Poll};

use actix_rt::net::TcpStream;
use actix_tls::connect::{ConnectError, ConnectInfo, Connection, ConnectorService};
use actix_web::dev::Service;
use awc::http::Uri;
use futures_util::future::LocalBoxFuture;

/// The usual connector with `TCP_NODELAY` set on what it opens.
#[derive(Clone, Default)]
pub struct AtOnce {
    usual: ConnectorService,
}

impl Service<ConnectInfo<Uri>> for AtOnce {
    type Response = Connection<Uri, TcpStream>;
    type Error = ConnectError;
    type Future = LocalBoxFuture<'static, Result<Self::Response, ConnectError>>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), ConnectError>> {
        Service::<ConnectInfo<Uri>>::poll_ready(&self.usual, cx)
    }

    fn call(&self, target: ConnectInfo<Uri>) -> Self::Future {
        let connecting = self.usual.call(target);
        Box::pin(async move {
            let connection = connecting.await?;
            // A socket that will not is slower, not wrong.
            let _ = connection.io_ref().set_nodelay(true);
            Ok(connection)
        })
    }
}
