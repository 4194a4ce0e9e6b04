//! Who may be reached: addresses by the names that gave them, names by the policy (providers 1.9, sandbox-contract 13).
//!
//! An address is let through because this sprite was answered it for a name that the policy allows, and for as long as it
//! does. Without an enforced policy every public address is. Addresses of the host and of private networks never are,
//! whatever a name says: a name that points there is an attack on the host.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV4};

use crate::policy::{Action, Policy};

/// Addresses that one sprite's names are remembered for; the oldest goes.
const REMEMBERED: usize = 4096;
/// Names of one address that are remembered.
const NAMES: usize = 32;

/// A place that the operator gives a name, wherever it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// As sprites ask for it.
    pub name: String,
    pub address: IpAddr,
    /// Only this port; None: every port.
    pub port: Option<u16>,
    /// Reachable whatever the policy says.
    pub always: bool,
}

/// Where a flow goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// To this address.
    To(SocketAddr),
    Refused,
}

/// The judge of one sprite.
#[derive(Debug)]
pub struct Judge {
    policy: Policy,
    hosts: Vec<Host>,
    names: HashMap<Ipv4Addr, Vec<String>>,
    order: VecDeque<Ipv4Addr>,
}

/// What a query is answered without asking anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Nobody is asked.
    Refused,
    /// The operator's host has this address inside.
    Host(Ipv4Addr),
    /// Ask.
    No,
}

/// What a name looks like in a comparison.
fn canonical(name: &str) -> String {
    name.trim_end_matches('.').to_ascii_lowercase()
}

/// The address inside by which the operator's host of this number is reached.
fn stand_in(number: usize) -> Option<Ipv4Addr> {
    let number = u8::try_from(number).ok()?.checked_add(1)?;
    Some(Ipv4Addr::new(10, 200, 1, number))
}

impl Judge {
    /// A judge that knows no address yet.
    pub fn new(policy: Policy, hosts: Vec<Host>) -> Self {
        Self {
            policy,
            hosts,
            names: HashMap::new(),
            order: VecDeque::new(),
        }
    }

    /// From now on this is the policy.
    pub fn replace(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// What is known about a name that is asked for.
    pub fn known(&self, name: &str) -> Known {
        let name = canonical(name);
        let host = self.hosts.iter().position(|host| canonical(&host.name) == name);
        let always = host.and_then(|at| self.hosts.get(at)).is_some_and(|host| host.always);
        if !always && self.policy.verdict(&name) == Action::Deny {
            return Known::Refused;
        }
        host.and_then(stand_in).map_or(Known::No, Known::Host)
    }

    /// This sprite was answered these addresses for a name.
    pub fn learn(&mut self, name: &str, addresses: &[Ipv4Addr]) {
        let name = canonical(name);
        for address in addresses {
            let names = self.names.entry(*address).or_insert_with(|| {
                self.order.push_back(*address);
                Vec::new()
            });
            if !names.contains(&name) {
                if names.len() == NAMES {
                    names.remove(0);
                }
                names.push(name.clone());
            }
        }
        while self.order.len() > REMEMBERED {
            if let Some(oldest) = self.order.pop_front() {
                self.names.remove(&oldest);
            }
        }
    }

    /// Where packets to this address go.
    pub fn judge(&self, to: SocketAddrV4) -> Verdict {
        let host = (0..self.hosts.len()).find(|number| stand_in(*number) == Some(*to.ip()));
        if let Some(host) = host.and_then(|number| self.hosts.get(number)) {
            let port = host.port.is_none_or(|port| port == to.port());
            let named = host.always || self.policy.verdict(&host.name) == Action::Allow;
            return if port && named {
                Verdict::To(SocketAddr::new(host.address, to.port()))
            } else {
                Verdict::Refused
            };
        }
        if is_public(*to.ip()) && !is_of_this_host(*to.ip()) && self.is_allowed(*to.ip()) {
            Verdict::To(to.into())
        } else {
            Verdict::Refused
        }
    }

    fn is_allowed(&self, address: Ipv4Addr) -> bool {
        if !self.policy.is_enforced() {
            return true;
        }
        // An address that nobody gave a name can only be meant by a rule about everything.
        self.policy.verdict(&address.to_string()) == Action::Allow
            || self
                .names
                .get(&address)
                .is_some_and(|names| names.iter().any(|name| self.policy.verdict(name) == Action::Allow))
    }
}

/// Whether an address is one of the public network.
fn is_public(address: Ipv4Addr) -> bool {
    let [a, b, c, _] = address.octets();
    let reserved = a == 0
        || a >= 240
        || (a == 100 && (64..128).contains(&b))
        || (a == 192 && b == 0 && c == 0)
        || (a == 198 && (b == 18 || b == 19));
    !(reserved
        || address.is_private()
        || address.is_loopback()
        || address.is_link_local()
        || address.is_multicast()
        || address.is_broadcast()
        || address.is_documentation())
}

/// Whether an interface of this host has the address, a public one included.
fn is_of_this_host(address: Ipv4Addr) -> bool {
    let Ok(interfaces) = nix::ifaddrs::getifaddrs() else {
        // Nobody knows, so it could be.
        return true;
    };
    interfaces
        .filter_map(|interface| interface.address)
        .filter_map(|found| found.as_sockaddr_in().map(|found| SocketAddrV4::from(*found)))
        .any(|found| *found.ip() == address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Rule;

    fn allow(domains: &[&str]) -> Policy {
        let rule = |domain: &&str| Rule {
            domain: Some((*domain).to_owned()),
            action: Some(Action::Allow),
            include: None,
        };
        Policy {
            rules: domains.iter().map(rule).collect(),
        }
    }

    fn at(address: &str) -> SocketAddrV4 {
        SocketAddrV4::new(address.parse().unwrap(), 443)
    }

    #[test]
    fn an_address_is_reached_by_a_name_that_the_policy_allows_and_for_as_long_as_it_does() {
        let mut judge = Judge::new(allow(&["api.example.com"]), Vec::new());
        assert_eq!(judge.judge(at("93.184.216.34")), Verdict::Refused);
        assert_eq!(judge.known("API.example.com."), Known::No);
        assert_eq!(judge.known("other.example.com"), Known::Refused);
        judge.learn("api.example.com.", &["93.184.216.34".parse().unwrap()]);
        assert_eq!(
            judge.judge(at("93.184.216.34")),
            Verdict::To(at("93.184.216.34").into())
        );
        judge.replace(allow(&["other.example.com"]));
        assert_eq!(judge.judge(at("93.184.216.34")), Verdict::Refused);
    }

    #[test]
    fn no_name_and_no_policy_opens_the_host_or_a_private_network() {
        let mut open = Judge::new(Policy::default(), Vec::new());
        for inside in [
            "127.0.0.1",
            "10.0.0.1",
            "172.16.3.4",
            "192.168.1.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
        ] {
            open.learn("rebinding.example", &[inside.parse().unwrap()]);
            assert_eq!(open.judge(at(inside)), Verdict::Refused, "{inside}");
        }
        assert_eq!(open.judge(at("1.1.1.1")), Verdict::To(at("1.1.1.1").into()));
    }

    #[test]
    fn a_rule_about_everything_means_addresses_without_a_name_too() {
        assert_eq!(
            Judge::new(allow(&["*"]), Vec::new()).judge(at("1.1.1.1")),
            Verdict::To(at("1.1.1.1").into())
        );
        assert_eq!(
            Judge::new(allow(&["*.com"]), Vec::new()).judge(at("1.1.1.1")),
            Verdict::Refused
        );
    }

    #[test]
    fn the_operators_hosts_are_reached_by_name_on_their_port() {
        let host = |name: &str, always| Host {
            name: name.to_owned(),
            address: IpAddr::from([127, 0, 0, 1]),
            port: Some(4000),
            always,
        };
        let judge = Judge::new(
            allow(&["named.internal"]),
            vec![
                host("control.internal", true),
                host("named.internal", false),
                host("closed.internal", false),
            ],
        );
        let Known::Host(control) = judge.known("control.internal") else {
            panic!("not known");
        };
        let to = |port| SocketAddrV4::new(control, port);
        assert_eq!(judge.judge(to(4000)), Verdict::To(([127, 0, 0, 1], 4000).into()));
        assert_eq!(judge.judge(to(4001)), Verdict::Refused);
        assert!(matches!(judge.known("named.internal"), Known::Host(_)));
        assert_eq!(judge.known("closed.internal"), Known::Refused);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut judge = Judge::new(allow(&["a.example"]), Vec::new());
        for number in 0..u32::try_from(REMEMBERED).unwrap() + 10 {
            judge.learn("a.example", &[Ipv4Addr::from(0x0800_0000 + number)]);
        }
        assert_eq!((judge.names.len(), judge.order.len()), (REMEMBERED, REMEMBERED));
    }
}
