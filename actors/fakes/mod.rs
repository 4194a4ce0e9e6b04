//! The world of the tests.
