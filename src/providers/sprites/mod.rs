//! Machines at a Sprites service, hosted or our own (providers 1, sandbox-contract).
