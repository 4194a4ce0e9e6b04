//! The store over SQLite and PostgreSQL.
