//! The ACP client peer: framing, the session state machine, updates to blocks.
