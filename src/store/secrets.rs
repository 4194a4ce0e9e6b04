//! Envelope encryption of users' secrets: one random data key per account, wrapped by the master key (DESIGN 5).

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::{ExposeSecret, SecretBox, SecretString, zeroize::Zeroizing};

/// Length of master and data keys, in bytes.
const KEY_BYTES: usize = 32;

/// `MASTER_SECRETS_KEY`: wraps every account's data key. Prints as nothing.
#[derive(Clone)]
pub struct MasterKey(std::sync::Arc<SecretBox<[u8; KEY_BYTES]>>);

impl std::fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("MasterKey([redacted])")
    }
}

/// The text is no master key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a master key is 43 characters of url-safe base64 without padding: 32 random bytes")]
pub struct NotAMasterKey;

impl MasterKey {
    /// Reads the setting's text.
    ///
    /// # Errors
    /// When it is not 32 bytes of url-safe base64 without padding.
    pub fn parse(text: &SecretString) -> Result<Self, NotAMasterKey> {
        let bytes = Zeroizing::new(
            URL_SAFE_NO_PAD
                .decode(text.expose_secret())
                .map_err(|_| NotAMasterKey)?,
        );
        Self::from_bytes(&bytes).ok_or(NotAMasterKey)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut key = Box::new([0u8; KEY_BYTES]);
        if bytes.len() != KEY_BYTES {
            return None;
        }
        key.copy_from_slice(bytes);
        Some(Self(std::sync::Arc::new(SecretBox::new(key))))
    }
}
