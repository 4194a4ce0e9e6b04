//! The highest lease epoch seen for each sandbox name (RUL-L-2).
//!
//! A request that carries a lower one comes from a process that lost its machine, perhaps frozen for minutes, and is
//! refused. A name is remembered for a day after its sandbox was destroyed, and over restarts of the daemon: the file
//! `<root>/.epochs` is written before the request is done.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

/// How long a destroyed sandbox's epoch is kept.
const KEPT_AFTER_DESTROY: Duration = Duration::from_secs(24 * 60 * 60);

/// The detail of a refusal.
pub const STALE: &str = "stale_epoch";

/// Epochs by name, in memory and on disk.
#[derive(Clone, Debug)]
pub struct Epochs(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    path: PathBuf,
    known: Mutex<BTreeMap<String, Known>>,
    /// Whether the file lags behind; a failed write must be made up for by the next request.
    is_unsaved: AtomicBool,
    /// Writers of the file, one after the other; held on blocking threads only.
    disk: Mutex<()>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Known {
    epoch: u64,
    /// Seconds since 1970 at which its sandbox was destroyed.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    destroyed_at: Option<u64>,
}

/// What an epoch means here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The highest so far, and not on disk yet: it has to be saved before anything is done.
    Unsaved,
    /// The highest so far.
    Current,
    /// Lower than one that was seen.
    Stale,
}

impl Epochs {
    /// Reads the file of a root. Blocks.
    ///
    /// # Errors
    /// The file is there and cannot be read or understood; ignoring it would let stale requests through.
    pub fn open(root: &Path) -> io::Result<Self> {
        let path = root.join(".epochs");
        let known = match fs::read(&path) {
            Ok(json) => serde_json::from_slice(&json)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error),
        };
        Ok(Self(Arc::new(Shared {
            path,
            known: Mutex::new(known),
            is_unsaved: AtomicBool::new(false),
            disk: Mutex::default(),
        })))
    }

    /// Judges an epoch and remembers it when it is the highest.
    pub fn judge(&self, name: &str, epoch: u64) -> Standing {
        let mut known = self.known();
        match known.get_mut(name) {
            Some(seen) if epoch < seen.epoch => return Standing::Stale,
            // Whatever comes after a destroy may build the sandbox anew.
            Some(seen) if epoch == seen.epoch => seen.destroyed_at = None,
            _ => {
                known.insert(
                    name.to_owned(),
                    Known {
                        epoch,
                        destroyed_at: None,
                    },
                );
                self.0.is_unsaved.store(true, Ordering::Release);
            }
        }
        if self.0.is_unsaved.load(Ordering::Acquire) {
            Standing::Unsaved
        } else {
            Standing::Current
        }
    }

    /// Notes that a sandbox is gone; its epoch is forgotten a day later. Answers whether there was one.
    pub fn destroyed(&self, name: &str, now: SystemTime) -> bool {
        let mut known = self.known();
        let Some(seen) = known.get_mut(name) else { return false };
        seen.destroyed_at = Some(seconds(now));
        true
    }

    /// Writes the file, without what is a day past its end. Blocks.
    ///
    /// # Errors
    /// The file could not be replaced; the old one is whole.
    pub fn save(&self, now: SystemTime) -> io::Result<()> {
        let _turn = self.0.disk.lock().unwrap_or_else(PoisonError::into_inner);
        let json = {
            let mut known = self.known();
            let oldest = seconds(now).saturating_sub(KEPT_AFTER_DESTROY.as_secs());
            known.retain(|_, seen| seen.destroyed_at.is_none_or(|at| at >= oldest));
            self.0.is_unsaved.store(false, Ordering::Release);
            serde_json::to_vec(&*known)?
        };
        self.replace(&json)
            .inspect_err(|_| self.0.is_unsaved.store(true, Ordering::Release))
    }

    fn replace(&self, json: &[u8]) -> io::Result<()> {
        let draft = self.0.path.with_extension("new");
        let mut file = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .mode(0o600)
            .open(&draft)?;
        file.write_all(json)?;
        file.sync_data()?;
        fs::rename(draft, &self.0.path)
    }

    fn known(&self) -> MutexGuard<'_, BTreeMap<String, Known>> {
        // The map is whole after every line under this lock.
        self.0.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(hours: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(hours * 3600)
    }

    #[test]
    fn rul_l_2_the_highest_epoch_of_a_name_rules() {
        let root = tempfile::tempdir().unwrap();
        let epochs = Epochs::open(root.path()).unwrap();
        assert_eq!(epochs.judge("a", 5), Standing::Unsaved);
        epochs.save(at(0)).unwrap();
        assert_eq!(epochs.judge("a", 5), Standing::Current);
        assert_eq!(epochs.judge("a", 4), Standing::Stale);
        assert_eq!(epochs.judge("b", 1), Standing::Unsaved);
    }

    #[test]
    fn rul_l_2_a_restart_and_a_destroy_do_not_forget_for_a_day() {
        let root = tempfile::tempdir().unwrap();
        let epochs = Epochs::open(root.path()).unwrap();
        epochs.judge("a", 5);
        assert!(epochs.destroyed("a", at(0)));
        epochs.save(at(0)).unwrap();

        let next = Epochs::open(root.path()).unwrap();
        assert_eq!(next.judge("a", 4), Standing::Stale);
        next.save(at(24)).unwrap();
        assert_eq!(Epochs::open(root.path()).unwrap().judge("a", 4), Standing::Stale);
        next.save(at(25)).unwrap();
        assert_eq!(Epochs::open(root.path()).unwrap().judge("a", 4), Standing::Unsaved);
    }

    #[test]
    fn an_epoch_that_could_not_be_saved_is_saved_by_the_next_request() {
        let root = tempfile::tempdir().unwrap();
        let epochs = Epochs::open(&root.path().join("missing")).unwrap();
        assert_eq!(epochs.judge("a", 5), Standing::Unsaved);
        assert!(epochs.save(at(0)).is_err());
        assert_eq!(epochs.judge("a", 5), Standing::Unsaved);
    }

    #[test]
    fn a_live_sandbox_is_remembered_for_ever() {
        let root = tempfile::tempdir().unwrap();
        let epochs = Epochs::open(root.path()).unwrap();
        epochs.judge("a", 5);
        epochs.save(at(1_000_000)).unwrap();
        assert_eq!(Epochs::open(root.path()).unwrap().judge("a", 4), Standing::Stale);
    }

    #[test]
    fn a_file_that_cannot_be_understood_is_an_error_and_not_an_empty_memory() {
        let root = tempfile::tempdir().unwrap();
        std::fs::write(root.path().join(".epochs"), "{").unwrap();
        assert!(Epochs::open(root.path()).is_err());
    }
}
