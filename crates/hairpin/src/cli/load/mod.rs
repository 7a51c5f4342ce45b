//! `hairpin load`.

pub(crate) mod compare;
pub(crate) mod course;
pub(crate) mod sip;
pub(crate) mod stun;
pub(crate) mod turn;

const EXAMPLES: &str = "\
Examples:
  hairpin load stun 127.0.0.1 --rate 10k/s
        10,000 Binding requests a second, for ten seconds
  hairpin load turn 127.0.0.1 --secret \"$SECRET\" --clients 100 --rate 50k/s
        100 allocations relay 50,000 datagrams a second to this machine
  hairpin load turn 10.0.0.5 --user alice:s3cret --find-max --json before.json
        the highest rate with at most 0.1 % of loss
  hairpin load sip 127.0.0.1 --workload call --rate 1k/s
        1,000 calls a second
  hairpin load compare before.json after.json

How to measure honestly: docs/load.md. Coming from turnutils_uclient: docs/load-from-uclient.md.";

/// Arguments of `hairpin load`.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// What to do
    #[command(subcommand)]
    pub(crate) what: What,
}

/// What to do.
#[derive(Debug, clap::Subcommand)]
pub(crate) enum What {
    /// Load a TURN server: relaying, allocating, calls, garbage
    Turn(Box<turn::Args>),
    /// Load a STUN server: Binding requests, garbage
    Stun(Box<stun::Args>),
    /// Load a SIP server: OPTIONS, registrations, calls, overload; or answer them
    Sip(Box<sip::Args>),
    /// Print two reports side by side
    Compare(compare::Args),
}
