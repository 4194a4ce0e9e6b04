//! The shell of Fountain: the doors, the database, the processes. What it all means is decided in `fountain-actors`.

pub mod api;
pub mod cli;
pub mod config;
pub mod daemon;
pub mod demo_agent;
pub use fountain_process as process;
pub mod providers;
pub mod server;
pub mod store;
pub mod telemetry;
