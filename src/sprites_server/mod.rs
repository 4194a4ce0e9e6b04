//! A Sprites-compatible server (providers 1; RUL-L-110 to 115): sandboxes on one Linux host, without a vendor.
