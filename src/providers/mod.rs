//! The sandbox adapters.
