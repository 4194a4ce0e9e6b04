//! Agents, environments, vaults and secrets.
