//! What this server knows, on disk below its root (RUL-L-110, 111, 114; DESIGN 8).
//!
//! `sprites/<id>/sprite.json` and the directory beside it, `layers/<id>` shared by the stacks of sprites and checkpoints,
//! `checkpoints/<sprite id>.vN.json`, and `epochs.json`. A record is written before what it announces is done and says
//! so (`begun`); opening the store finishes it. A sprite directory without a record, and a layer that no stack names,
//! was never shown to anybody and is swept. Everything here blocks; call it from the blocking pool.

pub mod disk;
pub mod record;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::fs::{self, DirBuilder, File, TryLockError};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use chrono::{DateTime, TimeDelta, Utc};

use disk::{copy_tree, read_json, remove_tree, sync_parent, write_json};
use record::{Begun, Checkpoint, Epoch, Sprite};

/// How long the epoch of a name outlives its sprite (RUL-L-2).
const EPOCH_KEPT: TimeDelta = TimeDelta::hours(24);
/// How long a checkpoint without its sprite is kept unused (RUL-L-111).
const ORPHAN_KEPT: TimeDelta = TimeDelta::days(30);

/// A lower epoch than was seen already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stale {
    pub highest: u64,
}

/// The state of one server.
#[derive(Debug)]
pub struct Store {
    root: PathBuf,
    book: Mutex<Book>,
    _lock: File,
}

#[derive(Debug, Default)]
struct Book {
    /// By owner and name.
    sprites: BTreeMap<(String, String), Sprite>,
    /// By global id.
    checkpoints: BTreeMap<String, Checkpoint>,
    epochs: BTreeMap<String, Epoch>,
    /// Layers that are being made and that no stack names yet.
    pending: HashSet<String>,
}

impl Store {
    /// Opens the root, finishes what was begun and sweeps what is nobody's.
    ///
    /// # Errors
    /// Another server lives here, or a directory or record cannot be used.
    pub fn open(root: &Path) -> io::Result<Self> {
        for directory in ["sprites", "layers", "checkpoints", "trash"] {
            DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(root.join(directory))?;
        }
        let lock = File::options()
            .create(true)
            .truncate(false)
            .write(true)
            .mode(0o600)
            .open(root.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(io::Error::other("another server uses this root")),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let store = Self {
            root: root.to_owned(),
            book: Mutex::default(),
            _lock: lock,
        };
        store.load()?;
        store.collect()?;
        Ok(store)
    }

    fn load(&self) -> io::Result<()> {
        let mut book = self.book();
        book.epochs = read_json(&self.root.join("epochs.json"))?.unwrap_or_default();
        for entry in fs::read_dir(self.root.join("sprites"))? {
            let directory = entry?.path();
            match read_json::<Sprite>(&directory.join("sprite.json"))? {
                None => remove_tree(&directory)?,
                Some(sprite) if sprite.begun == Some(Begun::Delete) => remove_tree(&directory)?,
                Some(mut sprite) => {
                    self.finish(&mut sprite)?;
                    book.sprites.insert((sprite.owner.clone(), sprite.name.clone()), sprite);
                }
            }
        }
        for entry in fs::read_dir(self.root.join("checkpoints"))? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != "json") {
                fs::remove_file(&path)?;
            } else if let Some(checkpoint) = read_json::<Checkpoint>(&path)? {
                book.checkpoints.insert(checkpoint.global_id(), checkpoint);
            }
        }
        Ok(())
    }

    /// Finishes what the record says was begun.
    ///
    /// # Errors
    /// The disk; the record still says so then.
    pub fn finish(&self, sprite: &mut Sprite) -> io::Result<()> {
        let directory = self.directory(&sprite.id);
        match &sprite.begun {
            Some(Begun::Freeze(layer)) => {
                let (upper, layer) = (directory.join("upper"), self.layer(layer));
                if !layer.exists() {
                    fs::create_dir_all(&upper)?;
                    fs::rename(&upper, &layer)?;
                    sync_parent(&layer)?;
                    sync_parent(&upper)?;
                }
                remove_tree(&directory.join("work"))?;
            }
            Some(Begun::Empty) => {
                remove_tree(&directory.join("upper"))?;
                remove_tree(&directory.join("work"))?;
            }
            Some(Begun::Swap) => {
                let (disk, new) = (directory.join("disk"), directory.join("disk.new"));
                if new.exists() {
                    remove_tree(&disk)?;
                    fs::rename(&new, &disk)?;
                    sync_parent(&disk)?;
                }
            }
            Some(Begun::Delete) => return Ok(()),
            None => return remove_tree(&directory.join("disk.new")),
        }
        sprite.begun = None;
        write_json(&directory.join("sprite.json"), sprite)
    }

    /// The directory of a sprite.
    pub fn directory(&self, id: &str) -> PathBuf {
        self.root.join("sprites").join(id)
    }

    /// The directory of a layer.
    pub fn layer(&self, id: &str) -> PathBuf {
        self.root.join("layers").join(id)
    }

    /// One sprite.
    pub fn sprite(&self, owner: &str, name: &str) -> Option<Sprite> {
        self.book().sprites.get(&(owner.to_owned(), name.to_owned())).cloned()
    }

    /// The sprite of this id, whoever owns it.
    pub fn sprite_of(&self, id: &str) -> Option<Sprite> {
        self.book().sprites.values().find(|sprite| sprite.id == id).cloned()
    }

    /// The sprites of an owner, by name.
    pub fn sprites(&self, owner: &str) -> Vec<Sprite> {
        let book = self.book();
        book.sprites
            .values()
            .filter(|sprite| sprite.owner == owner)
            .cloned()
            .collect()
    }

    /// Makes the directory of a new sprite and its record.
    ///
    /// # Errors
    /// The disk; nothing is left then.
    pub fn add(&self, sprite: &Sprite) -> io::Result<()> {
        let directory = self.directory(&sprite.id);
        DirBuilder::new().mode(0o700).create(&directory)?;
        let saved = self.save(sprite);
        if saved.is_err() {
            let _ = remove_tree(&directory);
        }
        saved
    }

    /// Replaces a record.
    ///
    /// # Errors
    /// The disk; the old one is in force then.
    pub fn save(&self, sprite: &Sprite) -> io::Result<()> {
        write_json(&self.directory(&sprite.id).join("sprite.json"), sprite)?;
        self.book()
            .sprites
            .insert((sprite.owner.clone(), sprite.name.clone()), sprite.clone());
        Ok(())
    }

    /// Removes a sprite whose processes and mounts are gone. Its checkpoints stay.
    ///
    /// # Errors
    /// The disk; it is finished at the next start, or by another call.
    pub fn remove(&self, sprite: &Sprite) -> io::Result<()> {
        remove_tree(&self.directory(&sprite.id))?;
        {
            let mut book = self.book();
            book.sprites.remove(&(sprite.owner.clone(), sprite.name.clone()));
            if let Some(epoch) = book.epochs.get_mut(&epoch_key(&sprite.owner, &sprite.name)) {
                epoch.gone_at = Some(crate::clock::now());
                write_json(&self.root.join("epochs.json"), &book.epochs)?;
            }
        }
        self.collect()
    }

    /// Notes an epoch, unless a higher one was seen (RUL-L-2).
    ///
    /// # Errors
    /// The disk, outside; a stale epoch, inside.
    pub fn observe(&self, owner: &str, name: &str, epoch: u64) -> io::Result<Result<(), Stale>> {
        let mut book = self.book();
        let (now, key) = (crate::clock::now(), epoch_key(owner, name));
        let lives = book.sprites.contains_key(&(owner.to_owned(), name.to_owned()));
        let known = book.epochs.get(&key).copied();
        let known = known.filter(|known| lives || known.gone_at.is_none_or(|at| now - at < EPOCH_KEPT));
        let highest = known.map_or(0, |known| known.highest);
        if epoch < highest {
            return Ok(Err(Stale { highest }));
        }
        if known.is_none_or(|known| known.highest < epoch || (lives && known.gone_at.is_some())) {
            let mut epochs = book.epochs.clone();
            epochs.retain(|_, epoch| epoch.gone_at.is_none_or(|at| now - at < EPOCH_KEPT));
            // A name without a sprite is forgotten in time, unless a creation follows.
            let gone_at = (!lives).then_some(now);
            epochs.insert(
                key,
                Epoch {
                    highest: epoch,
                    gone_at,
                },
            );
            write_json(&self.root.join("epochs.json"), &epochs)?;
            book.epochs = epochs;
        }
        Ok(Ok(()))
    }

    /// The checkpoints that were made of a sprite, newest first.
    pub fn checkpoints(&self, sprite: &str) -> Vec<Checkpoint> {
        let book = self.book();
        let of_it = book
            .checkpoints
            .values()
            .filter(|checkpoint| checkpoint.sprite == sprite);
        let mut found: Vec<_> = of_it.cloned().collect();
        found.sort_by_key(|checkpoint| std::cmp::Reverse(checkpoint.number));
        found
    }

    /// A checkpoint of this owner by its global id.
    pub fn checkpoint(&self, owner: &str, global: &str) -> Option<Checkpoint> {
        let book = self.book();
        book.checkpoints
            .get(global)
            .filter(|found| found.owner == owner)
            .cloned()
    }

    /// Writes a checkpoint down.
    ///
    /// # Errors
    /// The disk; the list is as before then.
    pub fn save_checkpoint(&self, checkpoint: &Checkpoint) -> io::Result<()> {
        let global = checkpoint.global_id();
        write_json(&self.manifest(&global), checkpoint)?;
        self.book().checkpoints.insert(global, checkpoint.clone());
        Ok(())
    }

    /// Removes a checkpoint and what only it needed.
    ///
    /// # Errors
    /// The disk.
    pub fn remove_checkpoint(&self, global: &str) -> io::Result<()> {
        match fs::remove_file(self.manifest(global)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        self.book().checkpoints.remove(global);
        self.collect()
    }

    /// Removes checkpoints whose sprite is gone and that nobody used for long (RUL-L-111).
    ///
    /// # Errors
    /// The disk.
    pub fn expire(&self, now: DateTime<Utc>) -> io::Result<()> {
        let expired: Vec<_> = {
            let book = self.book();
            let living: BTreeSet<_> = book.sprites.values().map(|sprite| sprite.id.as_str()).collect();
            let orphans = book
                .checkpoints
                .values()
                .filter(|found| !living.contains(found.sprite.as_str()));
            let old = orphans.filter(|found| now - found.used_at > ORPHAN_KEPT);
            old.map(Checkpoint::global_id).collect()
        };
        expired.iter().try_for_each(|global| self.remove_checkpoint(global))
    }

    /// A new layer, a copy of this directory. It is safe from [`Self::collect`] until [`Self::settle`].
    ///
    /// # Errors
    /// The disk; nothing is left then.
    pub fn copy_layer(&self, from: &Path) -> io::Result<String> {
        let id = self.begin_layer();
        let aside = self.root.join("trash").join(&id);
        let copied = copy_tree(from, &aside).and_then(|()| fs::rename(&aside, self.layer(&id)));
        match copied.and_then(|()| sync_parent(&self.layer(&id))) {
            Ok(()) => Ok(id),
            Err(error) => {
                self.settle(&id);
                let _ = remove_tree(&aside);
                Err(error)
            }
        }
    }

    /// The id of a layer that is about to be made.
    pub fn begin_layer(&self) -> String {
        let id = format!("{:032x}", rand::random::<u128>());
        self.book().pending.insert(id.clone());
        id
    }

    /// A stack names the layer now, or none ever will.
    pub fn settle(&self, layer: &str) {
        self.book().pending.remove(layer);
    }

    /// Removes the layers that nothing needs.
    ///
    /// # Errors
    /// The disk; it is tried again at the next call.
    pub fn collect(&self) -> io::Result<()> {
        let trash = self.root.join("trash");
        let mut doomed = Vec::new();
        {
            let book = self.book();
            let stacks = book.sprites.values().map(|sprite| &sprite.layers);
            let stacks = stacks.chain(book.checkpoints.values().map(|found| &found.layers));
            let needed: HashSet<&str> = stacks.flatten().chain(&book.pending).map(String::as_str).collect();
            for entry in fs::read_dir(self.root.join("layers"))? {
                let entry = entry?;
                if !entry.file_name().to_str().is_some_and(|name| needed.contains(name)) {
                    let to = trash.join(entry.file_name());
                    fs::rename(entry.path(), &to)?;
                    doomed.push(to);
                }
            }
            for entry in fs::read_dir(&trash)? {
                let entry = entry?;
                let is_pending = entry
                    .file_name()
                    .to_str()
                    .is_some_and(|name| book.pending.contains(name));
                if !is_pending {
                    doomed.push(entry.path());
                }
            }
        }
        doomed.iter().try_for_each(|path| remove_tree(path))
    }

    fn manifest(&self, global: &str) -> PathBuf {
        self.root.join("checkpoints").join(format!("{global}.json"))
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        // Every change is one insertion or removal.
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn epoch_key(owner: &str, name: &str) -> String {
    format!("{owner}/{name}")
}
