//! Operations that not every provider has: arguments first, then the capability, then the call (sandbox-contract 5).
//!
//! There is never a fallback to a plain operation: `create_new` does not become `create`. An adapter checks its arguments
//! as well, because tests and the machine's facade reach it directly.

use super::{
    Capability, CheckpointOnce, CreateNew, DestroyOnce, Handle, SandboxAdapter, SandboxError, Terminate, TerminateMode,
};

/// Most milliseconds of a receipt operation (sandbox-contract 10.1 to 10.3).
const LONGEST_RECEIPT_MS: i64 = 120_000;
/// Most milliseconds of a termination (10.4).
const LONGEST_TERMINATION_MS: i64 = 30_000;

fn invalid(what: &str) -> SandboxError {
    SandboxError::Invalid(what.to_owned())
}

fn in_range(timeout_ms: i64, longest: i64, what: &str) -> Result<(), SandboxError> {
    if (1..=longest).contains(&timeout_ms) {
        Ok(())
    } else {
        Err(invalid(what))
    }
}

/// Whether this can name a session or an operation: 1 to `most` of `A-Z a-z 0-9 _ -`.
fn is_token(text: &str, most: usize) -> bool {
    (1..=most).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-')
}

impl CreateNew {
    /// # Errors
    /// `invalid(create_timeout)`.
    pub fn check(&self) -> Result<(), SandboxError> {
        in_range(self.timeout_ms, LONGEST_RECEIPT_MS, "create_timeout")
    }
}

impl DestroyOnce {
    /// # Errors
    /// `invalid(delete_timeout)`.
    pub fn check(&self) -> Result<(), SandboxError> {
        in_range(self.timeout_ms, LONGEST_RECEIPT_MS, "delete_timeout")
    }
}

impl CheckpointOnce {
    /// # Errors
    /// `invalid(checkpoint_timeout)`, then `invalid(checkpoint_operation_id)`.
    pub fn check(&self) -> Result<(), SandboxError> {
        in_range(self.timeout_ms, LONGEST_RECEIPT_MS, "checkpoint_timeout")?;
        if is_token(&self.operation_id, 128) {
            Ok(())
        } else {
            Err(invalid("checkpoint_operation_id"))
        }
    }
}

impl Terminate {
    /// # Errors
    /// `invalid(termination_request)`.
    pub fn check(&self, session_id: &str) -> Result<(), SandboxError> {
        if !is_token(session_id, 256) {
            return Err(invalid("termination_request"));
        }
        in_range(self.timeout_ms, LONGEST_TERMINATION_MS, "termination_request")
    }
}

fn offered(adapter: &dyn SandboxAdapter, capability: Capability) -> Result<(), SandboxError> {
    if adapter.capabilities().contains(&capability) {
        Ok(())
    } else {
        Err(SandboxError::NotSupported)
    }
}

/// Creates and never adopts.
///
/// # Errors
/// `already_exists`; as the contract says otherwise.
pub async fn create_new(adapter: &dyn SandboxAdapter, name: &str, how: CreateNew) -> Result<Handle, SandboxError> {
    how.check()?;
    offered(adapter, Capability::CreateNew)?;
    adapter.create_new(name, how).await
}

/// One delete whose success is confirmed absence.
///
/// # Errors
/// `unavailable(delete_unconfirmed)` and the other answers of sandbox-contract 10.2.
pub async fn destroy_once(adapter: &dyn SandboxAdapter, handle: &Handle, how: DestroyOnce) -> Result<(), SandboxError> {
    how.check()?;
    offered(adapter, Capability::DestroyOnce)?;
    adapter.destroy_once(handle, how).await
}

/// One checkpoint with a receipt.
///
/// # Errors
/// `unavailable(checkpoint_unconfirmed)` and the other answers of sandbox-contract 10.3.
pub async fn create_checkpoint_once(
    adapter: &dyn SandboxAdapter,
    handle: &Handle,
    how: &CheckpointOnce,
) -> Result<String, SandboxError> {
    how.check()?;
    offered(adapter, Capability::CreateCheckpointOnce)?;
    adapter.create_checkpoint_once(handle, how).await
}

/// Ends one session with proof.
///
/// # Errors
/// `unavailable(termination_unconfirmed)` and the other answers of sandbox-contract 10.4. A forced end needs a
/// capability of its own: an adapter without it might ignore the mode.
pub async fn terminate_session(
    adapter: &dyn SandboxAdapter,
    handle: &Handle,
    session_id: &str,
    how: Terminate,
) -> Result<(), SandboxError> {
    how.check(session_id)?;
    offered(adapter, Capability::TerminateSession)?;
    if how.mode == TerminateMode::Force {
        offered(adapter, Capability::ForceTerminateSession)?;
    }
    adapter.terminate_session(handle, session_id, how).await
}
