//! The one retry policy.
