//! The command line: one binary that is server, daemon, demo agent and client (DESIGN 10, RUL-61, RUL-62).
//!
//! Plural groups are canonical; the singular names and `show` of the published CLI are aliases. Standard output is for
//! answers (`--json`: one JSON value), standard error for progress and logs. Exit codes stand in [`Exit`] and in
//! `docs/cli.md`.

pub mod account;
pub mod audit;
pub mod auth;
pub mod client;
pub mod conversations;
pub mod data_dir;
pub mod dev;
pub mod kept_sprites;
pub mod profile;
pub mod reaper;
pub mod render;
pub mod resources;
pub mod run;
pub mod runner;
pub mod serve;
#[cfg(target_os = "linux")]
pub mod sprites;
pub mod sse;
pub mod why;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::config::{self, Environment};
use crate::telemetry;

/// How a command ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Ok = 0,
    /// It was tried and refused, or the turn failed.
    Failed = 1,
    /// The command line was wrong (clap's own code).
    Usage = 2,
    /// The server could not be reached, or would not let us in.
    NoServer = 3,
    /// Nothing was heard for too long (`FOUNTAIN_STREAM_IDLE_TIMEOUT`).
    Silent = 4,
}

/// Runs coding agents on real computers.
#[derive(Debug, Parser)]
#[command(
    name = "fountain",
    version,
    about,
    propagate_version = true,
    disable_help_subcommand = true
)]
struct Cli {
    /// Profile of the credentials file to use.
    #[arg(long, global = true)]
    profile: Option<String>,
    /// Print one JSON value instead of text.
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start everything on this machine: server, runner, an account, a demo agent. Needs no service and no network.
    Dev(dev::DevArgs),
    /// Serve the API.
    Serve(serve::ServeArgs),
    /// Offer this machine to your agents: dial out to a server and run what it asks for.
    Runner(runner::RunnerArgs),
    /// Serve sandboxes on this Linux host, over the Sprites protocol.
    #[cfg(target_os = "linux")]
    Sprites(sprites::SpritesArgs),
    /// Prompt an agent and stream its answer.
    Run(run::RunArgs),
    /// Sign in, and see as whom.
    #[command(subcommand)]
    Auth(auth::AuthCommand),
    /// Agents: what runs.
    #[command(subcommand, alias = "agent")]
    Agents(resources::Plain),
    /// Environments: what a machine is built from.
    #[command(subcommand, aliases = ["env", "environment"])]
    Environments(resources::Plain),
    /// Vaults: secrets for a conversation.
    #[command(subcommand, alias = "vault")]
    Vaults(resources::VaultCommand),
    /// Conversations: list, look, prompt, follow, stop.
    #[command(subcommand, aliases = ["conv", "conversation"])]
    Conversations(conversations::ConversationCommand),
    /// Sandboxes: the machines of your conversations.
    #[command(subcommand, alias = "sandbox")]
    Sandboxes(resources::SandboxCommand),
    /// Runners: machines that dialled in.
    #[command(subcommand)]
    Runners(resources::Listed),
    /// Why a machine is in its state: who holds it, what it waits for, what happens next.
    Why(why::WhyArgs),
    /// Accounts of this server; opens the database, not the API.
    #[command(subcommand)]
    Account(account::AccountCommand),
    /// What the reaper would do to machines now, and why. Changes nothing.
    Reaper(reaper::ReaperArgs),
    /// Apply the migrations that are pending.
    Migrate(serve::MigrateArgs),
    /// Look for rows that break a promise. Reads the database and changes nothing.
    #[command(hide = true)]
    Audit(audit::AuditArgs),
    /// The demo agent: an ACP agent on standard input and output.
    #[command(name = "demo-agent", hide = true)]
    DemoAgent,
    /// Print the completions of a shell.
    Completions { shell: clap_complete::Shell },
    /// Print the version.
    Version,
}

/// Which database a command opens: the directory that `dev` made, or `DATABASE_URL`.
#[derive(Clone, Debug, Args)]
pub struct DatabaseArgs {
    /// Data directory that `fountain dev` made; without it DATABASE_URL is used.
    #[arg(long)]
    pub data_dir: Option<PathBuf>,
}

/// Everything a client command starts from.
pub struct Context {
    pub env: Environment,
    pub variables: config::ClientVariables,
    pub profile: Option<String>,
    pub json: bool,
}

/// Parses the command line and runs it. The returned number is the exit code.
pub fn main() -> i32 {
    let cli = Cli::parse();
    let env = Environment::read();
    // awc panics on its first request without one, plain HTTP included.
    let _ = rustls::crypto::ring::default_provider().install_default();
    match dispatch(cli, env) {
        Ok(exit) => exit as i32,
        Err(error) => {
            render::complain(&error);
            match error.downcast_ref::<client::ClientError>() {
                Some(client::ClientError::Unreachable { .. } | client::ClientError::NotSignedIn(_)) => {
                    Exit::NoServer as i32
                }
                Some(client::ClientError::Api { status: 401 | 403, .. }) => Exit::NoServer as i32,
                _ => Exit::Failed as i32,
            }
        }
    }
}

fn dispatch(cli: Cli, env: Environment) -> anyhow::Result<Exit> {
    let quiet = match cli.command {
        Command::Dev(_) | Command::Serve(_) | Command::Runner(_) | Command::Migrate(_) => false,
        #[cfg(target_os = "linux")]
        Command::Sprites(_) => false,
        _ => true,
    };
    let filter = config::log_filter(&env);
    if !quiet || filter.is_some() {
        telemetry::init(filter.as_deref(), config::log_json(&env));
    }
    let variables = config::client(&env)?;
    let profile = cli.profile.clone().or_else(|| variables.profile.clone());
    let context = Context {
        env,
        variables,
        profile,
        json: cli.json,
    };
    let system = actix::System::new();
    match cli.command {
        Command::Dev(args) => system.block_on(dev::dev(context, args)),
        Command::Serve(args) => system.block_on(serve::serve(context, args)),
        Command::Runner(args) => system.block_on(runner::runner(context, args)),
        #[cfg(target_os = "linux")]
        Command::Sprites(args) => system.block_on(sprites::sprites(context, args)),
        Command::Run(args) => system.block_on(run::run(context, args)),
        Command::Auth(command) => system.block_on(auth::auth(context, command)),
        Command::Agents(command) => system.block_on(resources::plain(context, resources::AGENTS, command)),
        Command::Environments(command) => system.block_on(resources::plain(context, resources::ENVIRONMENTS, command)),
        Command::Vaults(command) => system.block_on(resources::vaults(context, command)),
        Command::Conversations(command) => system.block_on(conversations::conversations(context, command)),
        Command::Sandboxes(command) => system.block_on(resources::sandboxes(context, command)),
        Command::Runners(command) => system.block_on(resources::listed(context, resources::RUNNERS, command)),
        Command::Why(args) => system.block_on(why::why(context, args)),
        Command::Account(command) => system.block_on(account::account(context, command)),
        Command::Reaper(args) => system.block_on(reaper::reaper(context, args)),
        Command::Migrate(args) => system.block_on(serve::migrate(context, args)),
        Command::Audit(args) => system.block_on(audit::audit(context, args)),
        Command::DemoAgent => system.block_on(async {
            let home = context.variables.home.clone().unwrap_or_else(|| PathBuf::from("."));
            crate::demo_agent::run(home).await?;
            Ok(Exit::Ok)
        }),
        Command::Completions { shell } => {
            let mut command = <Cli as clap::CommandFactory>::command();
            clap_complete::generate(shell, &mut command, "fountain", &mut std::io::stdout());
            Ok(Exit::Ok)
        }
        Command::Version => {
            render::line(concat!("fountain ", env!("CARGO_PKG_VERSION")));
            Ok(Exit::Ok)
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn rul_62_the_published_names_are_aliases() {
        for line in [
            &["fountain", "agent", "list"][..],
            &["fountain", "env", "show", "x"],
            &["fountain", "vault", "list"],
            &["fountain", "conv", "show", "x"],
            &["fountain", "sandbox", "reset", "x"],
            &["fountain", "agents", "get", "x", "--json"],
            &["fountain", "runners", "list"],
        ] {
            assert!(Cli::try_parse_from(line).is_ok(), "{line:?}");
        }
    }
}
