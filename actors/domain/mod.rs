//! Plain data and total transition functions. No file here waits, reads a clock or draws a random number.

pub mod account;
pub mod agent;
pub mod conversation;
pub mod credit;
pub mod cron;
pub mod environment;
pub mod error;
pub mod event;
pub mod explain;
pub mod guest;
pub mod ids;
pub mod machine;
pub mod operation;
pub mod policy;
pub mod process;
pub mod queue;
pub mod runner;
pub mod schedule;
pub mod settings;
pub mod turn;

pub use error::{ErrorCode, Refusal};
pub use ids::*;

/// A moment: UTC, cut to microseconds at birth, because that is what both databases keep (STYLE 8).
pub type Moment = chrono::DateTime<chrono::Utc>;

/// Declares a closed vocabulary: an enum whose words are what stands in the rows and on the wire.
///
/// An unknown word is an error of whoever reads it, never a default.
#[macro_export]
macro_rules! vocabulary {
    ($(#[$meta:meta])* $name:ident { $($(#[$vmeta:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
        pub enum $name { $($(#[$vmeta])* #[serde(rename = $word)] $variant),+ }
        impl $name {
            /// Every word, in order.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];
            /// The word in rows and on the wire.
            pub const fn as_str(self) -> &'static str { match self { $(Self::$variant => $word),+ } }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result { f.write_str(self.as_str()) }
        }
        impl std::str::FromStr for $name {
            type Err = $crate::domain::UnknownWord;
            fn from_str(word: &str) -> Result<Self, Self::Err> {
                match word { $($word => Ok(Self::$variant),)+ _ => Err($crate::domain::UnknownWord { vocabulary: stringify!($name) }) }
            }
        }
    };
}

/// A word outside a closed vocabulary. The word itself is not kept: it may come from anywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown word for {vocabulary}")]
pub struct UnknownWord {
    pub vocabulary: &'static str,
}
