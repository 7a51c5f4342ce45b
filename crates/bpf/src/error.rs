//! What can go wrong between a program's object and the kernel.

use std::io;

use aya::maps::MapError;
use aya::maps::xdp::XdpMapError;
use aya::programs::{ProgramError, tc::TcError};

/// Why a BPF program could not be loaded, attached, configured, read or run.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The kernel (or this process's privileges) refused the object.
    #[error(
        "the kernel refuses the BPF object {object} (root, or CAP_BPF with CAP_NET_ADMIN, is needed): {source}{}",
        causes(source)
    )]
    Load {
        /// Which embedded object.
        object: &'static str,
        /// The loader's reason.
        source: Box<aya::EbpfError>,
    },
    /// The embedded object lacks a map or a program: objects and loader are out of step.
    #[error(
        "the embedded BPF object has no `{0}`: run crates/bpf/build-objects.sh and build again"
    )]
    Missing(&'static str),
    /// The kernel refuses the program, its attachment or a test run.
    #[error("BPF program: {source}{}", reason(source))]
    Program {
        /// The loader's text, with its system call.
        #[from]
        source: Box<ProgramError>,
    },
    /// A map cannot be read or written.
    #[error("BPF map: {0}")]
    Map(#[from] Box<MapError>),
    /// The classifier's queueing discipline cannot be created.
    #[error("tc on {interface}: {source}")]
    Tc {
        /// The interface, as named in the calling thread's namespace.
        interface: String,
        /// The kernel's answer.
        source: Box<TcError>,
    },
    /// The timer that ends a run cannot be set up.
    #[error("timer of the frame injector: {0}")]
    Timer(io::Error),
    /// There is no file descriptor for another handle.
    #[error("BPF map: {0}: raise the limit on open files (ulimit -n)")]
    Descriptor(io::Error),
    /// The settings of the relay cannot be met.
    #[error("in-kernel relay: {0}")]
    Settings(&'static str),
    /// The program cannot be attached to an interface.
    #[error("BPF program on interface {interface}: {}", attach_reason(source))]
    Attach {
        /// The interface's index.
        interface: u32,
        /// The kernel's answer.
        source: io::Error,
    },
    /// An element of a map cannot be read or written.
    #[error("BPF map {map}: {source}")]
    Element {
        /// The map's name.
        map: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The system lacks something that is no BPF matter.
    #[error("{what}: {source}")]
    System {
        /// What was wanted.
        what: &'static str,
        /// The system's answer.
        source: io::Error,
    },
    /// The caller's load does not fit the programs.
    #[error("frames cannot be injected: {0}")]
    Flows(&'static str),
}

impl BpfError {
    /// Whether somebody else's program is where this one was to be attached.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, BpfError::Attach { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
    }

    /// Whether the kernel or the driver does not know how: no native XDP in the driver, no TCX before Linux 6.6.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, BpfError::Attach { source, .. }
            if matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)))
    }
}

/// What the kernel's number means here.
fn attach_reason(error: &io::Error) -> String {
    match error.raw_os_error() {
        Some(libc::EBUSY) => "another program is attached there, which stays".to_owned(),
        Some(libc::EOPNOTSUPP) => "the driver has no native XDP".to_owned(),
        Some(libc::EINVAL) => {
            "the kernel does not know this kind of attachment (TCX needs Linux 6.6, XDP links 5.9)"
                .to_owned()
        }
        Some(libc::ENODEV) => "there is no such interface".to_owned(),
        Some(libc::EPERM) => "root, or CAP_BPF with CAP_NET_ADMIN, is needed".to_owned(),
        _ => error.to_string(),
    }
}

impl From<ProgramError> for BpfError {
    fn from(error: ProgramError) -> BpfError {
        BpfError::Program {
            source: Box::new(error),
        }
    }
}

impl From<XdpMapError> for BpfError {
    fn from(error: XdpMapError) -> BpfError {
        match error {
            XdpMapError::MapError(error) => error.into(),
            XdpMapError::ChainedProgramNotSupported => {
                BpfError::Missing("support for programs in device maps")
            }
        }
    }
}

impl From<MapError> for BpfError {
    fn from(error: MapError) -> BpfError {
        BpfError::Map(Box::new(error))
    }
}

/// The loader's text leaves the system call's own reason to its source.
fn reason(error: &ProgramError) -> String {
    match error {
        ProgramError::SyscallError(call) => format!(": {}", call.io_error),
        ProgramError::LoadError { io_error, .. } => format!(": {io_error}"),
        _ => String::new(),
    }
}

/// What the loader's text leaves out: the causes down to the system's.
fn causes(error: &dyn std::error::Error) -> String {
    let chain = std::iter::successors(error.source(), |cause| cause.source());
    let mut told = error.to_string();
    for cause in chain.map(ToString::to_string) {
        // Some texts hold their cause's already.
        if !told.contains(&cause) {
            told = format!("{told}: {cause}");
        }
    }
    told.split_off(error.to_string().len())
}
