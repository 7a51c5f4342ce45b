//! The ways a datagram can take through the server.

use hairpin_server::Builder;
use hairpin_server::offload::{Offload, OffloadMode};

use crate::network::Checksums;

/// One of them, in a network that it is right for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Path {
    /// Sockets and workers.
    UserSpace,
    /// Native XDP. What arrives has whole checksums, as from a wire.
    Xdp,
    /// The classifier. What arrives has partial checksums, and leaves with them.
    Tc,
    /// The same, and the kernel completes them where they leave.
    TcCompleted,
}

impl Path {
    pub(crate) const ALL: [Path; 4] = [Path::UserSpace, Path::Xdp, Path::Tc, Path::TcCompleted];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Path::UserSpace => "user",
            Path::Xdp => "xdp",
            Path::Tc => "tc",
            Path::TcCompleted => "tc-completed",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Path> {
        Path::ALL.into_iter().find(|path| path.name() == name)
    }

    pub(crate) fn checksums(self) -> Checksums {
        Checksums {
            partial_at_ends: self != Path::Xdp,
            partial_at_server: self != Path::TcCompleted,
        }
    }

    /// Whether channels are relayed without the server's process.
    pub(crate) fn in_kernel(self) -> bool {
        self != Path::UserSpace
    }

    pub(crate) fn choose(self, builder: Builder) -> Builder {
        let mut offload = Offload::default();
        offload.mode = match self {
            Path::UserSpace => OffloadMode::Off,
            Path::Xdp => OffloadMode::Xdp,
            Path::Tc | Path::TcCompleted => OffloadMode::Tc,
        };
        builder.kernel_relay(offload)
    }
}
