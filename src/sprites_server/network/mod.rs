//! The network of a sprite: loopback, and one tun device whose other end the server holds (sandbox-contract 9).
//!
//! What leaves a sprite is a packet in a file of the server and nothing else: no address of the host, no firewall and no
//! other device has a part in it. Where nobody holds the other end, nothing gets out.

pub mod inside;
mod netlink;
#[cfg(test)]
mod tests;
