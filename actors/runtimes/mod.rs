//! What is installed, written and spawned for a runtime.
