//! Background passes.
