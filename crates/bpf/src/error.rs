//! What can go wrong between a program's object and the kernel.

use std::fmt;
use std::io;

use aya::maps::MapError;
use aya::maps::xdp::XdpMapError;
use aya::programs::{ProgramError, tc::TcError};

use crate::reason::{self, Kernel, one_line};
use crate::sys::AttachType;

/// Why a BPF program could not be loaded, attached, configured, read or run. Its text is one line, also if the kernel's
/// text has several.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BpfError {
    /// The kernel does not make an object's maps.
    #[error("the kernel refuses the BPF object {object}: {why}")]
    Load {
        /// Which embedded object.
        object: &'static str,
        /// In words.
        why: String,
        /// The loader's reason.
        source: Box<aya::EbpfError>,
    },
    /// The kernel rejects a program.
    #[error(transparent)]
    Rejected(Box<Rejected>),
    /// The embedded object lacks a map or a program: objects and loader are out of step.
    #[error(
        "the embedded BPF object has no `{0}`: run crates/bpf/build-objects.sh and build again"
    )]
    Missing(&'static str),
    /// The kernel refuses an attachment or a test run.
    #[error("BPF program: {}", reason::of_loader(source))]
    Program {
        /// The loader's text, with its system call.
        #[from]
        source: Box<ProgramError>,
    },
    /// A map cannot be read or written.
    #[error("BPF map: {}", reason::of_loader(&**.0))]
    Map(#[from] Box<MapError>),
    /// The classifier's queueing discipline cannot be created.
    #[error("tc on {interface}: {}", reason::of_loader(source))]
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
    #[error("BPF program on interface {interface}: {why}")]
    Attach {
        /// The interface's index.
        interface: u32,
        /// In words.
        why: String,
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
    /// Whether another program is attached at this place.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self, BpfError::Attach { source, .. } if source.raw_os_error() == Some(libc::EBUSY))
    }

    /// Whether the kernel or the driver lacks the feature. Examples: no native XDP in the driver, no TCX before Linux
    /// 6.6.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, BpfError::Attach { source, .. }
            if matches!(source.raw_os_error(), Some(libc::EOPNOTSUPP | libc::EINVAL)))
    }

    /// The whole log of the verifier that rejected a program: up to megabytes, one line per instruction. `None` for
    /// other errors, and if the kernel wrote none.
    #[must_use]
    pub fn verifier_log(&self) -> Option<&str> {
        match self {
            BpfError::Rejected(rejected) => Some(rejected.log()).filter(|log| !log.is_empty()),
            _ => None,
        }
    }

    pub(crate) fn attach(interface: u32, at: AttachType, source: io::Error) -> BpfError {
        BpfError::Attach {
            interface,
            why: attach_reason(at, &source),
            source,
        }
    }

    /// An error of loading the program called `program`, which needs at least kernel `needs`.
    pub(crate) fn rejected(program: &'static str, needs: Kernel, error: ProgramError) -> BpfError {
        match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => BpfError::Rejected(Box::new(Rejected::new(
                program,
                needs,
                reason::release(),
                verifier_log.to_string(),
                io_error,
            ))),
            error => error.into(),
        }
    }
}

/// The kernel rejects a program: it lacks a feature, this thread lacks a capability, or the verifier cannot prove
/// it safe.
#[derive(Debug)]
pub struct Rejected {
    program: &'static str,
    release: String,
    why: String,
    log: String,
    source: io::Error,
}

impl Rejected {
    fn new(
        program: &'static str,
        needs: Kernel,
        release: String,
        log: String,
        source: io::Error,
    ) -> Rejected {
        let denied = source.kind() == io::ErrorKind::PermissionDenied;
        let verdict = reason::verdict(&log).unwrap_or_else(|| one_line(&source.to_string()));
        let why = if denied && log.is_empty() {
            reason::describe(&source)
        } else if reason::is_older(&release, needs) {
            format!("it needs {needs} or later ({verdict})")
        } else if denied && !reason::lacking().is_empty() {
            // Without CAP_PERFMON, the verifier rejects more.
            format!("{verdict}; {}", reason::describe(&source))
        } else {
            format!("{verdict}: try another kernel, docs/kernels.md lists which ones work")
        };
        Rejected {
            program,
            release,
            why,
            log,
            source,
        }
    }

    /// The name of the program.
    #[must_use]
    pub fn program(&self) -> &'static str {
        self.program
    }

    /// The whole log of the verifier; empty if the kernel wrote none.
    #[must_use]
    pub fn log(&self) -> &str {
        &self.log
    }
}

impl fmt::Display for Rejected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rejected {
            program,
            release,
            why,
            ..
        } = self;
        write!(
            f,
            "the kernel (Linux {release}) rejects the program {program}: {why}"
        )
    }
}

impl std::error::Error for Rejected {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.source)
    }
}

/// What the kernel's error number means for an attachment.
fn attach_reason(at: AttachType, error: &io::Error) -> String {
    let text = match (error.raw_os_error(), at) {
        (Some(libc::EBUSY), _) => "another program is attached there, which stays",
        (Some(libc::EOPNOTSUPP), _) => "the driver has no native XDP",
        (Some(libc::EINVAL), AttachType::Xdp) => {
            "the kernel has no links for XDP, which need Linux 5.9"
        }
        (Some(libc::EINVAL), AttachType::TcxIngress) => {
            "the kernel has no TCX, which needs Linux 6.6"
        }
        (Some(libc::ENODEV), _) => "there is no such interface",
        _ => return reason::describe(error),
    };
    text.to_owned()
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

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Kernel = Kernel(5, 12);

    fn system(number: i32) -> io::Error {
        io::Error::from_raw_os_error(number)
    }

    /// As the kernel writes it: a line per instruction, the verdict, statistics.
    fn long_log() -> String {
        let mut log = "0: (bf) r6 = r1    ; R1=ctx(off=0,imm=0)\n".repeat(3_000);
        log.push_str("R3 min value is outside of the allowed memory range, size=0\n");
        log.push_str("processed 3000 insns (limit 1000000) max_states_per_insn 4\n");
        log
    }

    fn rejected(release: &str, log: String, number: i32) -> BpfError {
        let release = release.to_owned();
        let rejected = Rejected::new("relay_tc", NEEDS, release, log, system(number));
        BpfError::Rejected(Box::new(rejected))
    }

    fn every_error() -> Vec<BpfError> {
        let attach = |number| {
            let at = [AttachType::Xdp, AttachType::TcxIngress];
            at.map(|at| BpfError::attach(7, at, system(number)))
        };
        let numbers = [
            libc::EBUSY,
            libc::EOPNOTSUPP,
            libc::EINVAL,
            libc::ENODEV,
            libc::EPERM,
            libc::EIO,
        ];
        let mut errors: Vec<BpfError> = numbers.into_iter().flat_map(attach).collect();
        let load = aya::EbpfError::MapError(MapError::InvalidName {
            name: "A\nB".to_owned(),
        });
        errors.extend([
            rejected("6.1.0", long_log(), libc::EINVAL),
            rejected("5.10.0", long_log(), libc::EINVAL),
            rejected("5.10.0", String::new(), libc::EPERM),
            BpfError::Load {
                object: "relay",
                why: reason::of_loader(&load),
                source: Box::new(load),
            },
            MapError::CreateError {
                name: "A\nB".to_owned(),
                io_error: system(libc::E2BIG),
            }
            .into(),
            BpfError::Tc {
                interface: "eth0".to_owned(),
                source: Box::new(TcError::AlreadyAttached),
            },
            BpfError::Missing("relay_tc"),
            BpfError::Timer(system(libc::EMFILE)),
            BpfError::Descriptor(system(libc::EMFILE)),
            BpfError::Settings("too many"),
            BpfError::Element {
                map: "FLOWS",
                source: system(libc::E2BIG),
            },
            BpfError::System {
                what: "/dev/urandom",
                source: system(libc::ENOENT),
            },
            BpfError::Flows("no flows"),
        ]);
        errors
    }

    #[test]
    fn every_error_is_one_line() {
        for error in every_error() {
            let text = error.to_string();
            assert!(!text.contains(char::is_control), "{text:?}");
            assert!(text.chars().count() < 400, "{text}");
        }
    }

    #[test]
    fn a_rejection_says_what_why_and_what_to_do_and_keeps_the_log() {
        let error = rejected("6.1.0-18-amd64", long_log(), libc::EACCES);
        let text = error.to_string();
        let start = "the kernel (Linux 6.1.0-18-amd64) rejects the program relay_tc: R3 min value";
        assert!(text.starts_with(start), "{text}");
        // A thread without the capabilities gets this error instead.
        let may_load = crate::reason::lacking().is_empty();
        assert_eq!(text.contains("docs/kernels.md"), may_load, "{text}");
        assert_eq!(error.verifier_log().unwrap(), long_log());

        let error = rejected("5.10.0", long_log(), libc::EINVAL).to_string();
        assert!(error.contains("it needs Linux 5.12 or later"), "{error}");
        assert_eq!(
            rejected("6.1.0", String::new(), libc::EPERM).verifier_log(),
            None
        );
    }

    #[test]
    fn an_attachment_that_the_kernel_does_not_know_names_the_kernel_that_does() {
        let text = |at| BpfError::attach(7, at, system(libc::EINVAL)).to_string();
        assert!(text(AttachType::TcxIngress).contains("needs Linux 6.6"));
        assert!(text(AttachType::Xdp).contains("need Linux 5.9"));
    }
}
