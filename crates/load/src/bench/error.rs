//! Why a benchmark stops.

use std::io;

use bpf::BpfError;

/// Why a benchmark could not be set up or finished. What goes wrong with a single server in a
/// single scenario does not end the benchmark; it is in the report.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BenchError {
    /// Namespaces, devices and BPF programs require root.
    #[error("the benchmark needs root: it makes network namespaces and loads BPF programs ({0})")]
    NotRoot(io::Error),
    /// Another benchmark would disturb this one, and be disturbed by it.
    #[error("another hairpin bench is running on this machine; wait for it to end")]
    Busy,
    /// Both roles of the measurement need a processor of their own.
    #[error(
        "processor {0} is not available to this process; choose others with the generator and server options"
    )]
    NoSuchCpu(usize),
    /// One processor cannot be generator and server at once.
    #[error("generator and server must be on different processors, and both are on {0}")]
    SameCpu(usize),
    /// The wrong number of servers to compare.
    #[error("a benchmark compares 1 to 10 servers, not {0}")]
    Sides(usize),
    /// A gate has no server to compare with.
    #[error(
        "--quick and --fail-below compare the presets `hairpin` and `floor`; add both, such as --a hairpin --b floor"
    )]
    NothingToCompare,
    /// No scenario is left to run.
    #[error("none of the servers can run any of the chosen scenarios")]
    NoScenarios,
    /// The description of a server cannot be understood.
    #[error("server description `{spec}`: {reason}")]
    Spec {
        /// As it was given.
        spec: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A scenario that does not exist.
    #[error("there is no scenario `{0}`; the names are in the report of any run, or `all`")]
    UnknownScenario(String),
    /// The measured network cannot be built.
    #[error("cannot {what}: {source}")]
    Network {
        /// The step that failed.
        what: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The generator or the counter cannot be loaded or run.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

/// Why one server could not be measured in one scenario.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SideError {
    /// The command cannot be run.
    #[error("cannot start `{command}`: {source}")]
    Start {
        /// The program.
        command: String,
        /// The system's answer.
        source: io::Error,
    },
    /// It ended.
    #[error("the server ended ({status}); its last output: {output}")]
    Ended {
        /// How.
        status: String,
        /// The end of its output.
        output: String,
    },
    /// It does not do what it should within the time allowed.
    #[error("{what} within {seconds} s; the server's last output: {output}")]
    Silent {
        /// What did not happen.
        what: &'static str,
        /// How long it was given.
        seconds: u64,
        /// The end of its output.
        output: String,
    },
    /// It refuses what a client asks for.
    #[error("the server refuses {method} with {code} {reason}")]
    Refused {
        /// The request.
        method: String,
        /// STUN error code.
        code: u16,
        /// Its reason phrase.
        reason: String,
    },
    /// A datagram came through changed, or to the wrong place.
    #[error("payload check: {0}")]
    Payload(String),
    /// A datagram of the payload check did not come through.
    #[error("payload check: a datagram sent alone did not arrive")]
    Lost,
    /// It held no rate that was tried: more than 1 % was lost, or the goodput was below 90 % of the rate.
    #[error(
        "no rate from {from:.0}/s down to {to:.0}/s was held (at most 1 % lost, at least 90 % delivered in time); {wrong} datagrams arrived changed or in the wrong place, {duplicated} arrived again"
    )]
    NotHeld {
        /// The highest rate.
        from: f64,
        /// The lowest rate.
        to: f64,
        /// Datagrams that arrived changed or in the wrong place.
        wrong: u64,
        /// Datagrams that arrived again.
        duplicated: u64,
    },
    /// The harness itself.
    #[error("{what}: {source}")]
    Io {
        /// The step that failed.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// Its clients cannot connect, or their load cannot be made.
    #[error("TCP clients: {0}")]
    Connections(String),
    /// The generator or a counter.
    #[error(transparent)]
    Bpf(#[from] BpfError),
}

impl SideError {
    /// Whether a datagram arrived changed, in the wrong place or again.
    pub(crate) fn is_damage(&self) -> bool {
        match self {
            SideError::Payload(_) => true,
            SideError::NotHeld {
                wrong, duplicated, ..
            } => wrong + duplicated > 0,
            _ => false,
        }
    }
}

/// Names the step of an I/O error.
pub(crate) trait IoContext<T> {
    /// While setting up the network.
    fn network(self, what: &'static str) -> Result<T, BenchError>;
    /// While measuring a server.
    fn doing(self, what: &'static str) -> Result<T, SideError>;
}

impl<T> IoContext<T> for io::Result<T> {
    fn network(self, what: &'static str) -> Result<T, BenchError> {
        self.map_err(|source| match source.kind() {
            io::ErrorKind::PermissionDenied => BenchError::NotRoot(source),
            _ => BenchError::Network { what, source },
        })
    }

    fn doing(self, what: &'static str) -> Result<T, SideError> {
        self.map_err(|source| SideError::Io { what, source })
    }
}
