//! The peer against scripted and recorded agents.
