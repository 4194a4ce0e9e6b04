//! What a service is, as it is asked for and as it is kept (providers 1.10). Pure.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::api::is_valid_name;

/// Services of one sprite; more is a mistake.
const MOST: usize = 64;

/// One service.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Service {
    pub cmd: String,
    #[serde(default)]
    pub args: Vec<String>,
    /// Services that run before this one does.
    #[serde(default)]
    pub needs: Vec<String>,
    /// The port that the sprite's address leads to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub http_port: Option<u16>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dir: Option<String>,
    /// Somebody stopped it: it is not started when the sprite is opened.
    #[serde(default)]
    pub stopped: bool,
}

/// Why a service cannot be as it is asked for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    #[error("invalid service name format")]
    Name,
    #[error("a service needs a cmd")]
    NoCommand,
    #[error("a text of the service contains a zero byte, or an invalid variable")]
    Text,
    #[error("invalid http_port")]
    Port,
    #[error("too many services")]
    TooMany,
    #[error("it needs '{0}', which is no service")]
    Unknown(String),
    #[error("it needs '{0}', which needs it")]
    Circle(String),
    /// The one fault that is a conflict (409).
    #[error("service '{0}' has an http_port already; only one may")]
    SecondPort(String),
}

/// Whether `service` may be `name` among the others.
///
/// # Errors
/// The first [`Fault`].
pub fn check(services: &BTreeMap<String, Service>, name: &str, service: &Service) -> Result<(), Fault> {
    if !is_valid_name(name) || name == "signal" {
        return Err(Fault::Name);
    }
    if service.cmd.is_empty() {
        return Err(Fault::NoCommand);
    }
    let texts = service.args.iter().chain([&service.cmd]).chain(&service.dir);
    let is_variable =
        |(name, value): (&String, &String)| !name.is_empty() && !name.contains(['=', '\0']) && !value.contains('\0');
    if texts.into_iter().any(|text| text.contains('\0')) || !service.env.iter().all(is_variable) {
        return Err(Fault::Text);
    }
    if service.http_port == Some(0) {
        return Err(Fault::Port);
    }
    if !services.contains_key(name) && services.len() >= MOST {
        return Err(Fault::TooMany);
    }
    needed(services, name, service)?;
    let other = services
        .iter()
        .find(|(other, found)| *other != name && found.http_port.is_some());
    match other {
        Some((other, _)) if service.http_port.is_some() => Err(Fault::SecondPort(other.clone())),
        _ => Ok(()),
    }
}

/// Everything that it needs is there and does not need it.
fn needed(services: &BTreeMap<String, Service>, name: &str, service: &Service) -> Result<(), Fault> {
    let mut left: Vec<&String> = service.needs.iter().collect();
    let mut seen = BTreeSet::new();
    while let Some(need) = left.pop() {
        if need == name {
            return Err(Fault::Circle(need.clone()));
        }
        let found = services.get(need).ok_or_else(|| Fault::Unknown(need.clone()))?;
        if seen.insert(need) {
            if found.needs.iter().any(|further| further == name) {
                return Err(Fault::Circle(need.clone()));
            }
            left.extend(&found.needs);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(needs: &[&str], http_port: Option<u16>) -> Service {
        Service {
            cmd: "true".to_owned(),
            args: Vec::new(),
            needs: needs.iter().map(|need| (*need).to_owned()).collect(),
            http_port,
            env: BTreeMap::new(),
            dir: None,
            stopped: false,
        }
    }

    #[test]
    fn p_1_10_what_is_refused() {
        let mut services = BTreeMap::new();
        services.insert("db".to_owned(), service(&[], None));
        services.insert("web".to_owned(), service(&["db"], Some(80)));
        let fault = |name, wanted: Service| check(&services, name, &wanted).unwrap_err();
        assert_eq!(fault("a/b", service(&[], None)), Fault::Name);
        assert_eq!(fault("signal", service(&[], None)), Fault::Name);
        assert_eq!(fault("x", service(&[], Some(0))), Fault::Port);
        assert_eq!(fault("x", service(&[], Some(81))), Fault::SecondPort("web".to_owned()));
        assert_eq!(fault("x", service(&["y"], None)), Fault::Unknown("y".to_owned()));
        assert_eq!(fault("x", service(&["x"], None)), Fault::Circle("x".to_owned()));
        assert_eq!(fault("db", service(&["web"], None)), Fault::Circle("web".to_owned()));
        let with_zero = Service {
            args: vec!["a\0".to_owned()],
            ..service(&[], None)
        };
        assert_eq!(fault("x", with_zero), Fault::Text);
        assert_eq!(check(&services, "web", &service(&["db"], Some(81))), Ok(()));
        assert_eq!(check(&services, "x", &service(&["web"], None)), Ok(()));
    }
}
