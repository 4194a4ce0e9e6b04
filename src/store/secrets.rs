//! Envelope encryption of users' secrets (DESIGN 5, lifecycle 1.1 and 1.4): AES-256-GCM under one random data key per
//! account, which the master key wraps. Deleting the wrapped key shreds every secret of the account.
//!
//! A nonce is random and used once. The additional data is the identity of the row, so a sealed value that is moved
//! to another row, account or key does not open. Nothing here can be printed: keys live in boxes that are wiped, and
//! the one error says nothing about what it met.

use std::sync::Arc;

use aes_gcm::aead::{Aead, KeyInit, Nonce, Payload};
use aes_gcm::{Aes256Gcm, Key};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use secrecy::zeroize::Zeroizing;
use secrecy::{ExposeSecret, SecretBox, SecretString};

use fountain_actors::domain::AccountId;
use fountain_actors::domain::environment::SecretHome;
use fountain_actors::ports::Rng;

/// Length of master and data keys, in bytes.
const KEY_BYTES: usize = 32;
/// What GCM is specified for, in bytes.
const NONCE_BYTES: usize = 12;

/// A key of AES-256. Prints as nothing and is wiped when the last clone goes.
#[derive(Clone)]
struct Secret32(Arc<SecretBox<[u8; KEY_BYTES]>>);

impl Secret32 {
    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        if bytes.len() != KEY_BYTES {
            return None;
        }
        let mut key = Box::new([0u8; KEY_BYTES]);
        key.copy_from_slice(bytes);
        Some(Self(Arc::new(SecretBox::new(key))))
    }

    fn cipher(&self) -> Aes256Gcm {
        let key: &Key<Aes256Gcm> = self.0.expose_secret().into();
        Aes256Gcm::new(key)
    }

    fn seal(&self, plain: &[u8], identity: &str, rng: &dyn Rng) -> Sealed {
        let mut nonce = [0u8; NONCE_BYTES];
        rng.fill(&mut nonce);
        let payload = Payload {
            msg: plain,
            aad: identity.as_bytes(),
        };
        let sealed = self
            .cipher()
            .encrypt(&Nonce::<Aes256Gcm>::from(nonce), payload)
            .expect("GCM seals everything shorter than 64 GiB");
        Sealed {
            nonce: nonce.to_vec(),
            sealed,
        }
    }

    fn open(&self, row: &Sealed, identity: &str) -> Result<Zeroizing<Vec<u8>>, CannotOpen> {
        let nonce: [u8; NONCE_BYTES] = row.nonce.as_slice().try_into().map_err(|_| CannotOpen)?;
        let payload = Payload {
            msg: &row.sealed,
            aad: identity.as_bytes(),
        };
        let plain = self.cipher().decrypt(&Nonce::<Aes256Gcm>::from(nonce), payload);
        plain.map(Zeroizing::new).map_err(|_| CannotOpen)
    }
}

/// A sealed value as its row holds it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sealed {
    pub nonce: Vec<u8>,
    /// Ciphertext and tag.
    pub sealed: Vec<u8>,
}

/// The value does not open: it was sealed under another master key, or the row was changed or moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a secret does not open: MASTER_SECRETS_KEY is not the one it was sealed under, or the row was changed")]
pub struct CannotOpen;

/// `MASTER_SECRETS_KEY`: wraps every account's data key.
#[derive(Clone)]
pub struct MasterKey(Secret32);

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
        Secret32::from_bytes(&bytes).map(Self).ok_or(NotAMasterKey)
    }

    /// A fresh master key, as the setting's text.
    pub fn generate(rng: &dyn Rng) -> SecretString {
        let mut bytes = Zeroizing::new([0u8; KEY_BYTES]);
        rng.fill(bytes.as_mut_slice());
        SecretString::from(URL_SAFE_NO_PAD.encode(bytes.as_slice()))
    }

    /// A fresh data key of an account, and how its row holds it.
    pub fn new_data_key(&self, account: AccountId, rng: &dyn Rng) -> (DataKey, Sealed) {
        let mut bytes = Zeroizing::new([0u8; KEY_BYTES]);
        rng.fill(bytes.as_mut_slice());
        let key = Secret32::from_bytes(bytes.as_slice()).expect("it is 32 bytes long");
        let wrapped = self.0.seal(bytes.as_slice(), &data_key_identity(account), rng);
        (DataKey(key), wrapped)
    }

    /// The data key of an account from its row.
    ///
    /// # Errors
    /// Under another master key, or when the row is another account's.
    pub fn unwrap_data_key(&self, account: AccountId, wrapped: &Sealed) -> Result<DataKey, CannotOpen> {
        let bytes = self.0.open(wrapped, &data_key_identity(account))?;
        Secret32::from_bytes(&bytes).map(DataKey).ok_or(CannotOpen)
    }
}

/// The key of one account's secrets.
pub struct DataKey(Secret32);

impl std::fmt::Debug for DataKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("DataKey([redacted])")
    }
}

impl DataKey {
    pub fn seal(&self, value: &SecretString, identity: &Identity<'_>, rng: &dyn Rng) -> Sealed {
        self.0.seal(value.expose_secret().as_bytes(), &identity.text(), rng)
    }

    /// # Errors
    /// When the value was sealed under another key or for another row.
    pub fn open(&self, row: &Sealed, identity: &Identity<'_>) -> Result<SecretString, CannotOpen> {
        let plain = self.0.open(row, &identity.text())?;
        let text = std::str::from_utf8(&plain).map_err(|_| CannotOpen)?;
        // An exact copy: `from` would leave the longer buffer behind in freed memory.
        Ok(SecretString::from(Box::<str>::from(text)))
    }
}

/// Which row a secret is sealed for.
#[derive(Clone, Copy, Debug)]
pub struct Identity<'a> {
    pub account: AccountId,
    pub home: SecretHome,
    pub key: &'a str,
}

impl Identity<'_> {
    fn text(&self) -> String {
        let (kind, home) = match self.home {
            SecretHome::Environment(id) => ("environment", id.0),
            SecretHome::Vault(id) => ("vault", id.0),
        };
        // The key comes last, because it alone has no fixed length.
        format!("fountain/1/secret/{}/{kind}/{home}/{}", self.account, self.key)
    }
}

fn data_key_identity(account: AccountId) -> String {
    format!("fountain/1/data-key/{account}")
}

#[cfg(test)]
mod tests {
    use super::*;
    use fountain_actors::domain::{EnvironmentId, VaultId};
    use uuid::Uuid;

    /// Counts up: enough to tell two draws apart.
    struct Counter(std::sync::atomic::AtomicU8);

    impl Rng for Counter {
        fn fill(&self, bytes: &mut [u8]) {
            for byte in bytes {
                *byte = self.0.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }

    fn rng() -> Counter {
        Counter(std::sync::atomic::AtomicU8::new(0))
    }

    fn account(n: u128) -> AccountId {
        AccountId(Uuid::from_u128(n))
    }

    fn master() -> MasterKey {
        MasterKey::parse(&MasterKey::generate(&rng())).unwrap()
    }

    fn identity(key: &str) -> Identity<'_> {
        Identity {
            account: account(1),
            home: SecretHome::Environment(EnvironmentId(Uuid::from_u128(9))),
            key,
        }
    }

    #[test]
    fn a_secret_opens_again_through_its_wrapped_key() {
        let rng = rng();
        let (key, wrapped) = master().new_data_key(account(1), &rng);
        let sealed = key.seal(&"s3cret".to_owned().into(), &identity("TOKEN"), &rng);
        assert!(!sealed.sealed.windows(6).any(|part| part == b"s3cret"));
        let again = master().unwrap_data_key(account(1), &wrapped).unwrap();
        assert_eq!(
            again.open(&sealed, &identity("TOKEN")).unwrap().expose_secret(),
            "s3cret"
        );
    }

    #[test]
    fn the_same_value_is_never_sealed_to_the_same_bytes() {
        let rng = rng();
        let (key, _) = master().new_data_key(account(1), &rng);
        let one = key.seal(&"s3cret".to_owned().into(), &identity("TOKEN"), &rng);
        let two = key.seal(&"s3cret".to_owned().into(), &identity("TOKEN"), &rng);
        assert_ne!(one, two);
    }

    #[test]
    fn every_changed_bit_and_every_other_row_is_refused() {
        let rng = rng();
        let (key, _) = master().new_data_key(account(1), &rng);
        let good = key.seal(&"s3cret".to_owned().into(), &identity("TOKEN"), &rng);
        for at in 0..good.sealed.len() {
            let mut bad = good.clone();
            bad.sealed[at] ^= 1;
            assert_eq!(key.open(&bad, &identity("TOKEN")).unwrap_err(), CannotOpen, "byte {at}");
        }
        for at in 0..good.nonce.len() {
            let mut bad = good.clone();
            bad.nonce[at] ^= 1;
            assert_eq!(
                key.open(&bad, &identity("TOKEN")).unwrap_err(),
                CannotOpen,
                "nonce byte {at}"
            );
        }
        let vault = Identity {
            home: SecretHome::Vault(VaultId(Uuid::from_u128(9))),
            ..identity("TOKEN")
        };
        let foreign = Identity {
            account: account(2),
            ..identity("TOKEN")
        };
        for other in [identity("TOKEN2"), vault, foreign] {
            assert_eq!(key.open(&good, &other).unwrap_err(), CannotOpen, "{other:?}");
        }
    }

    #[test]
    fn a_wrapped_key_is_bound_to_its_account_and_its_master_key() {
        let rng = rng();
        let (_, wrapped) = master().new_data_key(account(1), &rng);
        assert!(master().unwrap_data_key(account(2), &wrapped).is_err());
        let other = MasterKey::parse(&MasterKey::generate(&rng)).unwrap();
        assert!(other.unwrap_data_key(account(1), &wrapped).is_err());
    }

    #[test]
    fn a_master_key_is_32_bytes_without_padding_and_prints_as_nothing() {
        let text = URL_SAFE_NO_PAD.encode([0xfbu8; 32]);
        assert_eq!(text.len(), 43);
        let key = MasterKey::parse(&text.clone().into()).unwrap();
        assert!(!format!("{key:?}").contains(&text));
        let padded = format!("{text}=");
        let short = URL_SAFE_NO_PAD.encode([1u8; 31]);
        let standard = text.replace('-', "+").replace('_', "/");
        for wrong in ["", "hunter2", &padded, &short, &standard] {
            let error = MasterKey::parse(&wrong.to_owned().into()).unwrap_err();
            assert!(wrong.is_empty() || !error.to_string().contains(wrong));
        }
    }
}
