//! Embedded migrations.
