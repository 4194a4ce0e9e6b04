//! Checkpoints that truly restore (providers 1.8; RUL-L-111, 114).
//!
//! On an overlay a checkpoint of a sprite in which nothing runs turns its writable layer into a read-only one: nothing is
//! copied. While something runs, or when the stack is long, the writable layer is copied. On plain directories everything
//! is copied. A layer is made aside and renamed, the manifest follows: where one of them fails, list and disk are as
//! before. A crash in between leaves a layer that nothing names, which is swept.

use std::sync::Arc;

use crate::api::refusal::Refusal;
use crate::enclosure::Disk;
use crate::state::Store;
use crate::state::record::{Begun, Checkpoint, Sprite};
use crate::world::{World, blocking};

/// From this many layers on, a checkpoint copies instead of adding to its sprite's stack.
const STACK: usize = 32;
/// A stack that the kernel may refuse to mount.
const TALLEST: usize = 64;

/// What may stand where an id of a checkpoint is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reference {
    /// `vN` of the sprite itself.
    Own(u64),
    /// `<sprite id>.vN` of any sprite of the token.
    Global(String),
}

impl Reference {
    /// Reads one; nothing else is ever looked up.
    pub fn parse(text: &str) -> Option<Self> {
        let number = |text: &str| {
            let digits = text.strip_prefix('v')?;
            let number: u64 = digits.parse().ok()?;
            (number.to_string() == digits).then_some(number)
        };
        if let Some(own) = number(text) {
            return Some(Self::Own(own));
        }
        let (sprite, own) = text.rsplit_once('.')?;
        number(own)?;
        let is_id = sprite.starts_with("sprite-") && sprite.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
        is_id.then(|| Self::Global(text.to_owned()))
    }
}

/// The checkpoint that a caller means; never another token's.
pub fn find(store: &Store, sprite: &Sprite, text: &str) -> Option<Checkpoint> {
    let global = match Reference::parse(text)? {
        Reference::Own(number) => format!("{}.v{number}", sprite.id),
        Reference::Global(global) => global,
    };
    store.checkpoint(&sprite.owner, &global)
}

/// Makes one. Call with the name held.
///
/// # Errors
/// The disk; nothing changed then.
pub async fn create(world: &World, mut sprite: Sprite, comment: String) -> Result<Checkpoint, Refusal> {
    if sprite.layers.len() >= TALLEST {
        return Err(Refusal::new(
            actix_web::http::StatusCode::CONFLICT,
            "too many restored checkpoints lie on top of each other",
        ));
    }
    let disk = world.enclosures.facilities().disk;
    let freezes = disk == Disk::Overlay && sprite.layers.len() < STACK && !world.is_busy(&sprite);
    if freezes {
        world.close(&sprite).await;
    } else {
        // The directory that is copied is made by opening.
        world.enter(&sprite).await?;
    }
    let store = Arc::clone(&world.store);
    let made = blocking(move || {
        let number = sprite.next_checkpoint;
        sprite.next_checkpoint += 1;
        let layers = if freezes {
            freeze(&store, &mut sprite)?
        } else {
            copy(&store, &mut sprite, disk)?
        };
        let now = crate::clock::now();
        let checkpoint = Checkpoint {
            number,
            sprite: sprite.id.clone(),
            owner: sprite.owner.clone(),
            created_at: now,
            used_at: now,
            comment,
            layers,
        };
        let saved = store.save_checkpoint(&checkpoint);
        if let Some(layer) = checkpoint.layers.first() {
            store.settle(layer);
        }
        if saved.is_err() {
            store.collect()?;
        }
        saved.map(|()| checkpoint)
    });
    made.await?.map_err(|error| failed(&error))
}

/// The writable layer becomes one of the stack.
fn freeze(store: &Store, sprite: &mut Sprite) -> std::io::Result<Vec<String>> {
    let layer = store.begin_layer();
    sprite.layers.insert(0, layer.clone());
    sprite.begun = Some(Begun::Freeze(layer.clone()));
    let frozen = store.save(sprite).and_then(|()| store.finish(sprite));
    store.settle(&layer);
    frozen?;
    store.save(sprite)?;
    Ok(sprite.layers.clone())
}

/// A copy; the sprite's own stack stays.
fn copy(store: &Store, sprite: &mut Sprite, disk: Disk) -> std::io::Result<Vec<String>> {
    let writable = match disk {
        Disk::Overlay => "upper",
        Disk::Copy => "disk",
    };
    let layer = store.copy_layer(&store.directory(&sprite.id).join(writable))?;
    if let Err(error) = store.save(sprite) {
        store.settle(&layer);
        store.collect()?;
        return Err(error);
    }
    let mut layers = vec![layer];
    if disk == Disk::Overlay {
        layers.extend(sprite.layers.iter().cloned());
    }
    Ok(layers)
}

/// Ends all sessions and returns the disk to the checkpoint; the policy stays. Call with the name held.
///
/// # Errors
/// The disk, or 503 when the sprite does not open again; its next command tries again.
pub async fn restore(world: &World, mut sprite: Sprite, mut checkpoint: Checkpoint) -> Result<(), Refusal> {
    let store = Arc::clone(&world.store);
    let copies = world.enclosures.facilities().disk == Disk::Copy;
    if copies {
        let layer = checkpoint.layers.first().map(|layer| store.layer(layer));
        let new = store.directory(&sprite.id).join("disk.new");
        let copied = blocking(move || match layer {
            Some(layer) => {
                crate::state::disk::remove_tree(&new)?;
                crate::state::disk::copy_tree(&layer, &new)
            }
            None => Err(std::io::Error::other("the checkpoint has no layer")),
        });
        copied.await?.map_err(|error| failed(&error))?;
    }
    world.close(&sprite).await;
    sprite.source = Some(checkpoint.global_id());
    sprite.updated_at = crate::clock::now();
    sprite.begun = Some(if copies { Begun::Swap } else { Begun::Empty });
    if !copies {
        sprite.layers.clone_from(&checkpoint.layers);
    }
    let restored = blocking(move || {
        store.save(&sprite)?;
        store.finish(&mut sprite)?;
        store.save(&sprite)?;
        checkpoint.used_at = crate::clock::now();
        store.save_checkpoint(&checkpoint)?;
        store.collect()?;
        Ok::<_, std::io::Error>(sprite)
    });
    let sprite = restored.await?.map_err(|error| failed(&error))?;
    world.enter(&sprite).await.map(drop)
}

/// The reason, for the stream.
fn failed(error: &std::io::Error) -> Refusal {
    tracing::error!(%error, "a checkpoint operation failed");
    let text = match error.kind() {
        std::io::ErrorKind::StorageFull => "the disk is full".to_owned(),
        _ => error.to_string(),
    };
    Refusal::new(actix_web::http::StatusCode::INSUFFICIENT_STORAGE, &text)
}
