//! The daemon against a real WebSocket server on the loopback interface. Names follow runner-protocol 10 (`rp_v…`) and 4
//! (`rp_p…`); `server` is the small control plane that the tests play.

mod commands;
mod connection;
mod sandboxes;
mod server;
mod sessions;
