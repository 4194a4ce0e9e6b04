//! The network of a sprite: loopback, and one tun device whose other end the server holds (sandbox-contract 9, 13).
//!
//! What leaves a sprite is a packet in a file of the server and nothing else: no address of the host, no firewall and no
//! other device has a part in it. The [`Gateway`] at the other end opens every connection itself and judges it first.
//! Where nobody holds the other end, nothing gets out.

mod flow;
mod gateway;
pub mod inside;
mod judge;
mod names;
mod netlink;
mod packets;
mod stack;
#[cfg(test)]
mod tests;
mod uplink;

pub(crate) use gateway::watched;
pub use gateway::{Gateway, GatewaySettings};
pub use judge::Host;
pub use names::NameServers;
pub use uplink::Gateways;
