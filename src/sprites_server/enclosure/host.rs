//! The enclosures of this host: what it can do, found out by doing it, and how one is opened.
//!
//! At start an empty enclosure is made in each way, from the best on, until one works. What did not work is said as a
//! sentence in the facilities. Later there is no falling back: a sprite that cannot be opened the same way is not opened.

use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use fountain_process::Waiting;

use super::birth;
use super::cgroup::{Group, Hierarchies};
use super::layout::{Given, copy_directory, make};
use super::plain::{Plain, refuse_enforced};
use super::sandbox::Sandbox;
use super::settings::{Isolation, Settings};
use super::wire::{Identity, OnDisk, Setup};
use super::{Disk, Enclosure, EnclosureError, Enclosures, Facilities, Network, Plan};
use crate::policy::Policy;

/// The kernel's limit.
const LONGEST_HOSTNAME: usize = 64;
/// What a sentence about the tun device starts with; see `init::outer`.
const TUN: &str = "tun device";

/// Makes enclosures on this host.
pub struct Host(Arc<Inner>);

struct Inner {
    settings: Settings,
    given: Given,
    groups: Hierarchies,
    way: Way,
    facilities: Facilities,
}

/// How enclosures are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Namespaces {
        identity: Identity,
        disk: Disk,
        uplink: bool,
    },
    Plain,
}

impl Host {
    /// Looks at this host and tries. Blocks for some 50 ms.
    ///
    /// # Errors
    /// The directory of the settings cannot be made or written.
    pub fn probe(mut settings: Settings) -> io::Result<Self> {
        fs::create_dir_all(&settings.root)?;
        settings.root = settings.root.canonicalize()?;
        settings.helper = settings.helper.canonicalize()?;
        // Whoever may enter it could reach what sprites leave there.
        fs::set_permissions(&settings.root, fs::Permissions::from_mode(0o700))?;
        let given = Given::here();
        if settings.most == Isolation::Overlay {
            given.build_base(&base(&settings), &settings.root)?;
        }
        let mut host = Inner {
            groups: Hierarchies::find(),
            way: Way::Plain,
            facilities: unisolated(),
            given,
            settings,
        };
        host.find_way();
        Ok(Self(Arc::new(host)))
    }
}

/// What a host gives that can keep nothing apart.
fn unisolated() -> Facilities {
    Facilities {
        user_namespace: false,
        mount_namespace: false,
        pid_namespace: false,
        network: Network::Host,
        disk: Disk::Copy,
        limits: false,
        missing: Vec::new(),
    }
}

fn base(settings: &Settings) -> PathBuf {
    settings.root.join("base")
}

impl Inner {
    fn find_way(&mut self) {
        let mut missing = Vec::new();
        for way in self.candidates() {
            match self.attempt(way) {
                Ok(()) => {
                    self.adopt(way, &mut missing);
                    self.facilities.missing = missing;
                    return;
                }
                Err(error) => missing.push(sentence(way, &error)),
            }
        }
        missing.push("Commands run as ordinary processes of this host: nothing is kept apart.".to_owned());
        self.facilities.missing = missing;
    }

    /// From the best on.
    fn candidates(&self) -> Vec<Way> {
        let root = nix::unistd::geteuid().is_root();
        let identities = [root.then_some(Identity::Range), Some(Identity::Single)];
        let mut ways = Vec::new();
        for (isolation, disk) in [(Isolation::Overlay, Disk::Overlay), (Isolation::Copy, Disk::Copy)] {
            if isolation > self.settings.most {
                continue;
            }
            for identity in identities.into_iter().flatten() {
                if self.settings.uplink.is_some() {
                    ways.push(Way::Namespaces {
                        identity,
                        disk,
                        uplink: true,
                    });
                }
                ways.push(Way::Namespaces {
                    identity,
                    disk,
                    uplink: false,
                });
            }
        }
        ways
    }

    fn adopt(&mut self, way: Way, missing: &mut Vec<String>) {
        let Way::Namespaces { identity, disk, uplink } = way else {
            return;
        };
        if !uplink {
            missing.push("Sprites have no way out to any network.".to_owned());
        }
        if identity == Identity::Single {
            missing
                .push("The server is not root: inside, the host's files outside of /etc cannot be changed.".to_owned());
        }
        let mut limits = true;
        for (wanted, can, what) in [
            (
                self.settings.processes_limit,
                self.groups.limits_processes(),
                "the number of processes",
            ),
            (self.settings.memory_limit, self.groups.limits_memory(), "memory"),
        ] {
            if !can {
                limits = false;
                if wanted.is_some() {
                    missing.push(format!(
                        "This host lets the server make no control group that limits {what}."
                    ));
                }
            }
        }
        self.way = way;
        self.facilities = Facilities {
            user_namespace: true,
            mount_namespace: true,
            pid_namespace: true,
            network: if uplink { Network::Gateway } else { Network::None },
            disk,
            limits,
            missing: Vec::new(),
        };
    }

    /// Makes an enclosure in this way and ends it.
    fn attempt(&self, way: Way) -> Result<(), EnclosureError> {
        static ATTEMPTS: AtomicU32 = AtomicU32::new(0);
        let id = format!("probe-{}", ATTEMPTS.fetch_add(1, Ordering::Relaxed));
        let plan = Plan {
            hostname: "probe".to_owned(),
            directory: self.settings.root.join(&id),
            layers: Vec::new(),
            policy: Policy::default(),
            id,
        };
        let Way::Namespaces { identity, disk, uplink } = way else {
            return Ok(());
        };
        make(&plan.directory, 0o700)?;
        let made = self
            .setup(&plan, identity, disk, uplink)
            .and_then(|setup| birth::make(&setup, self.group(&plan)?))
            .map(drop);
        let removed = fs::remove_dir_all(&plan.directory);
        made.and(removed.map_err(EnclosureError::Io))
    }

    fn group(&self, plan: &Plan) -> Result<Group, EnclosureError> {
        let limits = (self.settings.processes_limit, self.settings.memory_limit);
        Ok(self.groups.group(&plan.id, limits.0, limits.1)?)
    }

    /// Makes the directories of the plan, and says what the first process has to know.
    fn setup(&self, plan: &Plan, identity: Identity, disk: Disk, uplink: bool) -> Result<Setup, EnclosureError> {
        let root = plan.directory.join("root");
        make(&root, 0o755)?;
        let mut trees = self.given.trees.clone();
        let disk = match disk {
            Disk::Overlay => self.overlay(plan)?,
            Disk::Copy => {
                // What a copy holds itself.
                trees.retain(|tree| !tree.path.starts_with("var/"));
                self.copy(plan)?
            }
        };
        let mut hostname = plan.hostname.clone();
        while hostname.len() > LONGEST_HOSTNAME {
            hostname.pop();
        }
        Ok(Setup {
            identity,
            disk,
            root,
            hostname,
            helper: self.settings.helper.clone(),
            helper_args: self.settings.helper_args.clone(),
            trees,
            uplink,
            resolver: self
                .settings
                .uplink
                .as_ref()
                .filter(|_| uplink)
                .and_then(|uplink| uplink.resolver()),
        })
    }

    fn overlay(&self, plan: &Plan) -> Result<OnDisk, EnclosureError> {
        let (upper, work) = (plan.directory.join("upper"), plan.directory.join("work"));
        make(&upper, 0o700)?;
        make(&work, 0o700)?;
        for name in self.given.names() {
            make(&work.join(name), 0o755)?;
            let (new, mut layers) = (upper.join(name), plan.layers.iter().map(|layer| layer.join(name)));
            // The uppermost directory of a tree hides the others' owner and mode.
            match layers.find(|layer| layer.is_dir()) {
                Some(layer) if !new.exists() => copy_directory(&layer, &new)?,
                _ => make(&new, 0o755)?,
            }
        }
        Ok(OnDisk::Overlay {
            upper,
            work,
            layers: plan.layers.clone(),
            base: base(&self.settings),
        })
    }

    fn copy(&self, plan: &Plan) -> Result<OnDisk, EnclosureError> {
        let disk = plan.directory.join("disk");
        if !disk.exists() {
            // A half-made one is not taken for a disk.
            let new = plan.directory.join("disk.new");
            if new.exists() {
                fs::remove_dir_all(&new)?;
            }
            self.given.system(&new)?;
            fs::rename(new, &disk)?;
        }
        Ok(OnDisk::Copy { disk })
    }

    /// Blocks; called inside a tokio runtime.
    fn open(&self, plan: &Plan) -> Result<Arc<dyn Enclosure>, EnclosureError> {
        let Way::Namespaces { identity, disk, uplink } = self.way else {
            refuse_enforced(&plan.policy)?;
            return Ok(Arc::new(Plain::open(plan)?));
        };
        let setup = self.setup(plan, identity, disk, uplink)?;
        let mut made = birth::make(&setup, self.group(plan)?)?;
        let handle = match (&self.settings.uplink, made.device.take()) {
            (Some(uplink), Some(device)) => Some(uplink.attach(device, plan)?),
            _ if uplink => return Err(EnclosureError::Failed("it has no network device".to_owned())),
            _ => None,
        };
        Ok(Arc::new(Sandbox::run(made, handle)?))
    }
}

/// Says for people why a way does not work here.
fn sentence(way: Way, error: &EnclosureError) -> String {
    let why = match error {
        EnclosureError::Failed(why) => why.clone(),
        other => other.to_string(),
    };
    let Way::Namespaces { identity, disk, .. } = way else {
        return why;
    };
    if why.starts_with(TUN) {
        return format!("A network device for sprites cannot be made ({why}).");
    }
    let disk = match disk {
        Disk::Overlay => "overlays",
        Disk::Copy => "plain directories",
    };
    let ids = match identity {
        Identity::Range => "a range of ids",
        Identity::Single => "a single id",
    };
    format!("Namespaces with {disk} and {ids} cannot be made ({why}).")
}

impl Enclosures for Host {
    fn facilities(&self) -> &Facilities {
        &self.0.facilities
    }

    fn check(&self, policy: &Policy) -> Result<(), EnclosureError> {
        match self.0.facilities.network {
            // Without a way out more is denied than asked, and nothing less.
            Network::Gateway | Network::None => Ok(()),
            Network::Host => refuse_enforced(policy),
        }
    }

    fn open(&self, plan: Plan) -> Waiting<Result<Arc<dyn Enclosure>, EnclosureError>> {
        let inner = Arc::clone(&self.0);
        let opening = tokio::task::spawn_blocking(move || inner.open(&plan));
        Box::pin(async move { opening.await.map_err(io::Error::other)? })
    }
}
