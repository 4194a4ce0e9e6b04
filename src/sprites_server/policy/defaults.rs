//! What `include: "defaults"` allows: where the usual tools fetch packages and sources from.
//!
//! Only hosts that serve what others published; none to which whoever asks could send bytes for a third party to read
//! without an account there, as far as names can tell. Changing the list changes what running sprites may reach.

/// Names and suffixes, in canonical form, sorted.
pub const DEFAULTS: &[&str] = &[
    "*.githubusercontent.com",
    "api.github.com",
    "codeload.github.com",
    "crates.io",
    "deb.debian.org",
    "files.pythonhosted.org",
    "ghcr.io",
    "github.com",
    "index.crates.io",
    "pypi.org",
    "registry.npmjs.org",
    "security.debian.org",
    "static.crates.io",
];
