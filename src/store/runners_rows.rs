//! Runner rows.
