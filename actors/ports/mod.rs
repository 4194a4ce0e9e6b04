//! What the shell implements.
