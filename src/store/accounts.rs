//! Accounts, keys and the audit trail.
