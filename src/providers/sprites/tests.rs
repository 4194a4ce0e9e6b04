//! The adapter against a scripted server.
