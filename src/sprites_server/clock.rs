//! The time of this host. The server keeps records of it and waits by it; no rule of the control plane reads them.

use std::time::SystemTime;

use chrono::{DateTime, Utc};

/// Now.
pub fn now() -> DateTime<Utc> {
    SystemTime::now().into()
}
