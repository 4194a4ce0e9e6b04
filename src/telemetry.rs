//! Traces and metrics: the one place with metric names.
