//! The one routine that inserts log events.
