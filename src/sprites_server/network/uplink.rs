//! The gateways of a server, on a thread of their own: packets of sprites take no time from its doors.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use fountain_process::Waiting;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::gateway::{Gateway, GatewaySettings};
use super::inside::RESOLVER;
use crate::enclosure::{Plan, Uplink, UplinkHandle};
use crate::policy::Policy;

/// Makes a gateway for every enclosure.
pub struct Gateways {
    settings: GatewaySettings,
    runtime: Handle,
    /// The thread ends when this goes.
    _end: oneshot::Sender<()>,
}

impl Gateways {
    /// Starts the thread.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn start(settings: GatewaySettings) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (end, ends) = oneshot::channel();
        std::thread::Builder::new()
            .name("sprites-network".to_owned())
            .spawn(move || {
                // Its error is the end.
                let _ = runtime.block_on(ends);
            })?;
        Ok(Self {
            settings,
            runtime: handle,
            _end: end,
        })
    }
}

impl Uplink for Gateways {
    fn resolver(&self) -> Option<IpAddr> {
        Some(RESOLVER.into())
    }

    fn attach(&self, device: OwnedFd, plan: &Plan) -> io::Result<Box<dyn UplinkHandle>> {
        let _inside = self.runtime.enter();
        let gateway = Gateway::start(device, self.settings.clone(), plan.policy.clone())?;
        Ok(Box::new(Attached(gateway)))
    }
}

struct Attached(Gateway);

impl UplinkHandle for Attached {
    fn set_policy(&self, policy: Policy) -> Waiting<io::Result<()>> {
        Box::pin(self.0.setting_policy(policy))
    }
}
