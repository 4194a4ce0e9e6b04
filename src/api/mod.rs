//! The HTTP doors.
