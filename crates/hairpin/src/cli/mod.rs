//! The command line: one file of arguments per command. What they do is in `commands`.

pub(crate) mod bench;
pub(crate) mod check;
pub(crate) mod control;
pub(crate) mod creds;
pub(crate) mod describe;
pub(crate) mod directory;
#[cfg(test)]
mod docs_test;
pub(crate) mod doctor;
mod help;
pub(crate) mod import;
pub(crate) mod load;
pub(crate) mod nodes;
pub(crate) mod peer;
pub(crate) mod probe;
pub(crate) mod remote;
pub(crate) mod serve;
pub(crate) mod sessions;
pub(crate) mod sip;
pub(crate) mod tls;
mod value;

use clap::{Parser, Subcommand};

const EXAMPLES: &str = "\
Examples:
  hairpin serve                         a server on this machine, ready to paste into a web page
  hairpin serve --config hairpin.toml   the same for production
  hairpin check hairpin.toml            every mistake in a configuration at once
  hairpin probe turn turn.example.org --secret \"$SECRET\"

Examples of each command: hairpin COMMAND --help";

/// STUN server and TURN relay.
#[derive(Debug, Parser)]
#[command(name = "hairpin", version = describe::version(), about, after_help = EXAMPLES, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Run the STUN server and TURN relay
    Serve(Box<serve::Args>),
    /// Check a configuration file and report every mistake at once
    Check(check::Args),
    /// Find what is wrong on this machine for a server, and the command that fixes it
    Doctor(doctor::Args),
    /// Convert the configuration of another server into one of hairpin
    Import(import::Args),
    /// Show the state of a running server
    Status(control::Status),
    /// Make a running server read its configuration again
    Reload(control::Reload),
    /// Make a running server admit no new clients
    Drain(control::Drain),
    /// Replace a running server by a new process, without the loss of an allocation
    Upgrade(control::Upgrade),
    /// List and end the allocations of a running server
    Sessions(Box<sessions::Sessions>),
    /// List the nodes of the cluster of a running server
    Nodes(nodes::Nodes),
    /// Add, delete and list users in a database
    #[command(subcommand)]
    User(directory::User),
    /// Add, delete and list secrets of time-limited credentials in a database
    #[command(subcommand)]
    Secret(directory::Secret),
    /// Set and list realms in a database
    #[command(subcommand)]
    Realm(directory::Realm),
    /// Explain routing decisions of the SIP proxy, and show bindings, calls and trunks
    Sip(Box<sip::Args>),
    /// Make time-limited credentials from a shared secret
    Creds(creds::Args),
    /// Send requests to a STUN or TURN server as a client does, and print its responses
    Probe(probe::Args),
    /// Load a STUN or TURN server and measure what it does
    Load(load::Args),
    /// Be the other end of a measurement: send back, check or stream datagrams
    Peer(peer::Args),
    /// Compare servers on one processor of this machine, with a load that looks like traffic
    Bench(Box<bench::Args>),
    /// Write the completions of a shell
    Completions(describe::Completions),
    /// Write the manual pages, one for each command
    Man(describe::Man),
    /// A bare relay, for the use of bench
    #[command(hide = true)]
    BenchFloor(bench::Floor),
}

pub(crate) use help::parse;
#[cfg(test)]
pub(crate) use help::{escape, shown};

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_says_what_it_is_for_and_gives_two_examples() {
        fn visit(command: &clap::Command) {
            let name = command.get_name().to_owned();
            let about = command
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(
                !about.is_empty() && !about.contains('\n'),
                "{name} needs a purpose in one line"
            );
            let after = command
                .get_after_help()
                .map(ToString::to_string)
                .unwrap_or_default();
            let examples = after
                .lines()
                .filter(|line| line.trim_start().starts_with("hairpin "))
                .count();
            assert!(examples >= 2, "{name} needs two examples");
            command
                .get_subcommands()
                .filter(|sub| sub.get_name() != "help" && !sub.is_hide_set())
                .for_each(visit);
        }
        visit(&Cli::command());
    }
}
