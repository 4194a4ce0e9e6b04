//! Random text: keys of handshakes and names of one-time files.
//!
//! From the TLS library's own source, which is there anyway. Nothing random decides anything, so no seed reproduces it.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

fn bytes() -> Option<[u8; 16]> {
    let mut bytes = [0; 16];
    rustls::crypto::ring::default_provider()
        .secure_random
        .fill(&mut bytes)
        .ok()
        .map(|()| bytes)
}

/// 16 random bytes as a `Sec-WebSocket-Key`. None: the system has no randomness to give.
pub(crate) fn base64_key() -> Option<String> {
    Some(STANDARD.encode(bytes()?))
}

/// 16 random bytes in hexadecimal.
pub(crate) fn hex_name() -> Option<String> {
    let mut name = String::with_capacity(32);
    for byte in bytes()? {
        let _ = write!(name, "{byte:02x}");
    }
    Some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_sixteen_bytes_and_a_name_is_hexadecimal() {
        assert_eq!(STANDARD.decode(base64_key().unwrap()).unwrap().len(), 16);
        let name = hex_name().unwrap();
        assert!(name.len() == 32 && name.bytes().all(|byte| byte.is_ascii_hexdigit()));
        assert_ne!(name, hex_name().unwrap());
    }
}
