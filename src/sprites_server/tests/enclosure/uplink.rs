//! The seam to the network: who gets the device, and when a policy is in force.

use std::fs::read_link;
use std::io;
use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, Mutex};

use fountain_process::Waiting;
use fountain_sprites::enclosure::{Enclosures, Network, Plan, Uplink, UplinkHandle};
use fountain_sprites::policy::Policy;

use crate::inside::{World, sh};

/// Notes what happens to it.
#[derive(Clone, Default)]
struct Notes(Arc<Mutex<Vec<String>>>);

impl Notes {
    fn add(&self, note: String) {
        self.0.lock().unwrap().push(note);
    }

    fn all(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

impl Uplink for Notes {
    fn resolver(&self) -> Option<IpAddr> {
        Some(Ipv4Addr::new(198, 18, 0, 1).into())
    }

    fn attach(&self, device: OwnedFd, plan: &Plan) -> io::Result<Box<dyn UplinkHandle>> {
        let device = read_link(format!("/proc/self/fd/{}", device.as_raw_fd()))?;
        let device = Path::new(device.file_name().unwrap_or_default());
        let rules = plan.policy.rules.len();
        self.add(format!("attach {} with {rules} rules", device.display()));
        if plan.hostname == "unlucky" {
            return Err(io::Error::other("no more addresses"));
        }
        Ok(Box::new(Handle(self.clone())))
    }
}

struct Handle(Notes);

impl UplinkHandle for Handle {
    fn set_policy(&self, policy: Policy) -> Waiting<io::Result<()>> {
        self.0.add(format!("policy with {} rules", policy.rules.len()));
        Box::pin(async { Ok(()) })
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.add("dropped".to_owned());
    }
}

fn policy(rules: usize) -> Policy {
    Policy {
        rules: vec![Default::default(); rules],
    }
}

fn world(notes: &Notes, has_device: bool) -> World {
    World::with(|settings| {
        settings.uplink = Some(Arc::new(notes.clone()));
        if has_device {
            settings.helper_args = vec!["device".into()];
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn rul_l_113_the_way_out_has_its_policy_before_the_first_command() {
    let notes = Notes::default();
    let world = world(&notes, true);
    assert_eq!(
        world.host.facilities().network,
        Network::Gateway,
        "{:?}",
        world.host.facilities()
    );
    assert_eq!(
        notes.all(),
        Vec::<String>::new(),
        "looking at the host attaches nothing"
    );
    let mut plan = world.plan("alpha");
    plan.policy = policy(2);
    let sprite = world.open_plan(plan).await;
    assert_eq!(notes.all(), ["attach zero with 2 rules"]);
    assert_eq!(sh(&*sprite, "cat /etc/resolv.conf").await.ok(), "nameserver 198.18.0.1");
    sprite.set_policy(policy(3)).await.unwrap();
    sprite.close().await;
    assert_eq!(
        notes.all(),
        ["attach zero with 2 rules", "policy with 3 rules", "dropped"]
    );
    assert!(sprite.set_policy(policy(1)).await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn rul_l_113_a_sprite_whose_way_out_fails_is_not_opened() {
    let notes = Notes::default();
    let world = world(&notes, true);
    let error = world.host.open(world.plan("unlucky")).await.err().unwrap();
    assert_eq!(error.to_string(), "no more addresses");
    assert_eq!(notes.all(), ["attach zero with 0 rules"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_without_a_device_gives_sprites_no_way_out_and_says_why() {
    let notes = Notes::default();
    let world = world(&notes, false);
    let facilities = world.host.facilities();
    assert_eq!(facilities.network, Network::None);
    let why = "A network device for sprites cannot be made (tun device: unsupported).";
    assert!(facilities.missing.iter().any(|each| each == why), "{facilities:?}");
    let sprite = world.open("alpha").await;
    assert_eq!(sh(&*sprite, "cat /etc/resolv.conf; ls /sys/class/net").await.ok(), "lo");
    sprite.close().await;
    assert_eq!(notes.all(), Vec::<String>::new());
}
