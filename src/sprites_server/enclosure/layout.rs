//! What of the host a sprite may see, and where on the disk its layers are.
//!
//! The rule is a list of what is allowed: the system's directories, without whatever "others" may not read. Everything
//! else of a root directory (`/root`, `/home`, `/var`, `/run`, `/tmp`, the server's own directory) comes from a skeleton
//! that is built once for all sprites, and `/etc` is a copy there: a secret that appears in it later is not seen. Each
//! other directory is an overlay of its own: the root of the host cannot be a layer in a user namespace, because the
//! mounts below it are locked there, and a directory that is a mount is seen too.

use std::collections::BTreeSet;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use nix::sys::stat::{Mode, SFlag};

use super::wire::Tree;

/// The home directory of commands.
pub const HOME: &str = "/home/sprite";
/// Where the server's executable is inside: a directory below the root, and its name.
pub(super) const BOUND: (&str, &str) = (".fountain", "fountain");
/// The name of the root's own layers.
pub(super) const ROOT: &str = "tree";

/// Directories of the host that are seen, as far as they exist.
const SEEN: [&str; 11] = [
    "usr",
    "opt",
    "nix",
    "bin",
    "sbin",
    "lib",
    "lib32",
    "lib64",
    "libx32",
    "var/lib/dpkg",
    "var/lib/apt",
];
/// Below these, whatever others may not read is hidden, this deep. System packages hide nothing in the rest.
const SEARCHED: [(&str, usize); 3] = [("opt", 3), ("usr/local", 4), ("nix/var", 3)];
/// Directories that are everywhere, and their modes.
const USUAL: [(&str, u32); 25] = [
    (".fountain", 0o755),
    ("boot", 0o755),
    ("dev", 0o755),
    ("etc", 0o755),
    ("home", 0o755),
    ("home/sprite", 0o755),
    ("media", 0o755),
    ("mnt", 0o755),
    ("opt", 0o755),
    ("proc", 0o755),
    ("root", 0o700),
    ("run", 0o755),
    ("srv", 0o755),
    ("sys", 0o755),
    ("tmp", 0o1777),
    ("usr", 0o755),
    ("var", 0o755),
    ("var/cache", 0o755),
    ("var/lib", 0o755),
    ("var/lib/misc", 0o755),
    ("var/local", 0o755),
    ("var/log", 0o755),
    ("var/opt", 0o755),
    ("var/spool", 0o755),
    ("var/tmp", 0o1777),
];

/// The server's executable, as commands see it.
pub fn bound() -> PathBuf {
    Path::new("/").join(BOUND.0).join(BOUND.1)
}

/// What this host gives every sprite.
#[derive(Clone, Debug)]
pub(super) struct Given {
    /// Directories, each an overlay (or a bind mount).
    pub trees: Vec<Tree>,
    /// Links in the root directory, such as `/bin`, and where they lead.
    links: Vec<(String, PathBuf)>,
}

impl Given {
    /// Looks at this host.
    pub fn here() -> Self {
        let (mut trees, mut links) = (Vec::new(), Vec::new());
        for path in SEEN {
            let host = Path::new("/").join(path);
            let Ok(meta) = fs::symlink_metadata(&host) else {
                continue;
            };
            if meta.is_symlink()
                && let Ok(to) = fs::read_link(&host)
            {
                links.push((path.to_owned(), to));
            } else if meta.is_dir() && readable(&meta) {
                trees.push(Tree {
                    path: path.to_owned(),
                    name: path.replace('/', "."),
                });
            }
        }
        Self { trees, links }
    }

    /// The names of all layers.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        [ROOT]
            .into_iter()
            .chain(self.trees.iter().map(|tree| tree.name.as_str()))
    }

    /// Builds the layer that lies over the host's, in `base`, which is replaced. `hidden` is hidden wherever it is.
    pub fn build_base(&self, base: &Path, hidden: &Path) -> io::Result<()> {
        if base.exists() {
            fs::remove_dir_all(base)?;
        }
        make(base, 0o755)?;
        self.system(&base.join(ROOT))?;
        for tree in &self.trees {
            let mask = base.join(&tree.name);
            let host = Path::new("/").join(&tree.path);
            copy_directory(&host, &mask)?;
            for path in self.unreadable(tree) {
                white_out(&host, &mask, &path)?;
            }
            if let Ok(inside) = hidden.strip_prefix(&host) {
                white_out(&host, &mask, inside)?;
            }
        }
        Ok(())
    }

    /// A root directory for sprites, except for the trees. It must not exist.
    pub fn system(&self, root: &Path) -> io::Result<()> {
        self.skeleton(root)?;
        copy_readable(Path::new("/etc"), &root.join("etc"))
    }

    /// The root directory without the host: usual directories, links, and a place for every tree.
    fn skeleton(&self, root: &Path) -> io::Result<()> {
        make(root, 0o755)?;
        for (name, mode) in USUAL {
            make(&root.join(name), mode)?;
        }
        for tree in &self.trees {
            make(&root.join(&tree.path), 0o755)?;
        }
        let run = [
            ("var/run".to_owned(), "/run".into()),
            ("var/lock".to_owned(), "/run/lock".into()),
        ];
        for (name, to) in self.links.iter().chain(&run) {
            match symlink(to, root.join(name)) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    /// Paths below the tree that others may not read.
    fn unreadable(&self, tree: &Tree) -> BTreeSet<PathBuf> {
        let mut found = BTreeSet::new();
        for (path, depth) in SEARCHED {
            if let Ok(below) = Path::new(path).strip_prefix(&tree.path) {
                search(&Path::new("/").join(&tree.path), below, depth, &mut found);
            }
        }
        found
    }
}

/// Whether everybody may see it.
fn readable(meta: &Metadata) -> bool {
    let needed = if meta.is_dir() { 0o005 } else { 0o004 };
    meta.is_symlink() || meta.mode() & needed == needed
}

fn search(tree: &Path, below: &Path, depth: usize, found: &mut BTreeSet<PathBuf>) {
    let Ok(entries) = fs::read_dir(tree.join(below)) else {
        return;
    };
    for entry in entries.flatten() {
        let path = below.join(entry.file_name());
        match entry.metadata() {
            Ok(meta) if !readable(&meta) => {
                found.insert(path);
            }
            Ok(meta) if meta.is_dir() && depth > 1 => search(tree, &path, depth - 1, found),
            _ => {}
        }
    }
}

/// Hides `path` of the lower `host` directory: a device without a number, in a directory that is like the one below.
fn white_out(host: &Path, mask: &Path, path: &Path) -> io::Result<()> {
    if !host.join(path).exists() {
        return Ok(());
    }
    let mut parent = PathBuf::new();
    for part in path.parent().into_iter().flat_map(Path::components) {
        parent.push(part);
        copy_directory(&host.join(&parent), &mask.join(&parent))?;
    }
    let made = nix::sys::stat::mknod(&mask.join(path), SFlag::S_IFCHR, Mode::empty(), 0);
    match made {
        Err(nix::errno::Errno::EEXIST) => Ok(()),
        other => Ok(other?),
    }
}

/// A directory like this one, without what is in it.
pub(super) fn copy_directory(from: &Path, to: &Path) -> io::Result<()> {
    let meta = fs::metadata(from)?;
    make(to, meta.mode() & 0o7777)?;
    // An ordinary user cannot, and then owns what is seen inside; so below.
    let _ = std::os::unix::fs::chown(to, Some(meta.uid()), Some(meta.gid()));
    Ok(())
}

/// A directory of exactly this mode. It may exist.
pub(super) fn make(path: &Path, mode: u32) -> io::Result<()> {
    match fs::DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        Err(error) => Err(error),
        Ok(()) => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
    }
}

/// Lets an ordinary user remove what the overlay leaves in its work directories.
pub(super) fn open_work(work: &Path) -> io::Result<()> {
    for entry in fs::read_dir(work).into_iter().flatten() {
        let entry = entry?.path();
        for left in ["work", "index"] {
            let left = entry.join(left);
            if left.exists() {
                fs::set_permissions(&left, fs::Permissions::from_mode(0o700))?;
            }
        }
    }
    Ok(())
}

/// Copies what others may read.
fn copy_readable(from: &Path, to: &Path) -> io::Result<()> {
    copy_directory(from, to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (meta, target) = (entry.metadata()?, to.join(entry.file_name()));
        if meta.is_symlink() {
            symlink(fs::read_link(entry.path())?, &target)?;
        } else if !readable(&meta) {
            continue;
        } else if meta.is_dir() {
            copy_readable(&entry.path(), &target)?;
        } else if meta.is_file() {
            fs::copy(entry.path(), &target)?;
            let _ = std::os::unix::fs::chown(&target, Some(meta.uid()), Some(meta.gid()));
        }
    }
    Ok(())
}
