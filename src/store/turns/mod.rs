//! Turns: admission, endings, interrupts and permissions.
