//! What is kept of sprites and checkpoints, as it is written on disk.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::policy::Policy;
use crate::services::Service;

/// Who may use the address of a sprite.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum UrlAuth {
    #[default]
    Sprite,
    Public,
}

/// A change of the disk that was begun; whoever finds it after a crash finishes it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Begun {
    /// `upper` becomes the layer of this id, which the stack names already.
    Freeze(String),
    /// `upper` goes; the stack is already the one to continue from.
    Empty,
    /// `disk` is replaced by `disk.new`.
    Swap,
    /// The sprite goes.
    Delete,
}

/// One sprite.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Sprite {
    /// `sprite-<uuid>`: this incarnation of the name.
    pub id: String,
    pub name: String,
    pub owner: String,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub auth: UrlAuth,
    pub labels: Vec<String>,
    pub environment: BTreeMap<String, String>,
    pub config: Option<serde_json::Value>,
    pub policy: Policy,
    /// Layers of its past, newest first.
    pub layers: Vec<String>,
    pub next_checkpoint: u64,
    /// The checkpoint it was last restored from, by its global id.
    pub source: Option<String>,
    pub begun: Option<Begun>,
    /// By name.
    #[serde(default)]
    pub services: BTreeMap<String, Service>,
}

/// One checkpoint. It needs its layers, not its sprite.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Checkpoint {
    pub number: u64,
    /// The id of the sprite it was made of.
    pub sprite: String,
    pub owner: String,
    pub created_at: DateTime<Utc>,
    pub used_at: DateTime<Utc>,
    pub comment: String,
    pub layers: Vec<String>,
}

impl Checkpoint {
    /// The id below its sprite.
    pub fn id(&self) -> String {
        format!("v{}", self.number)
    }

    /// The id below its token (RUL-L-111).
    pub fn global_id(&self) -> String {
        format!("{}.v{}", self.sprite, self.number)
    }
}

/// The highest epoch seen of a name (RUL-L-2).
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Epoch {
    pub highest: u64,
    /// When the sprite went; kept 24 h from then.
    pub gone_at: Option<DateTime<Utc>>,
}
