//! Giving up the privileges that only the start takes.
//!
//! Capabilities are required to load and attach programs, for large receive buffers, and for ports below 1024. Serving
//! requires none, with one exception. The control thread of the in-kernel relay keeps CAP_NET_ADMIN to make the kernel
//! confirm neighbours. Capabilities belong to threads, so each thread drops its own. The workers and the control thread
//! do so if [`Builder::drop_privileges`](crate::Builder::drop_privileges) is set. The embedding program does so for its
//! threads with [`drop_all`].

use io::capabilities::{self, Capability};

pub use io::tasks::effective_user;

/// What loading and attaching the programs takes.
const TO_LOAD: [Capability; 3] = [Capability::Bpf, Capability::NetAdmin, Capability::Perfmon];

/// Which capabilities this thread lacks that relaying in the kernel takes; `None` if it has them all.
#[must_use]
pub fn missing_for_offload() -> Option<String> {
    if capabilities::has(Capability::SysAdmin) && capabilities::has(Capability::NetAdmin) {
        return None;
    }
    let lacking: Vec<&str> = TO_LOAD
        .into_iter()
        .filter(|one| !capabilities::has(*one))
        .map(Capability::name)
        .collect();
    if lacking.is_empty() {
        return None;
    }
    let all = TO_LOAD.map(Capability::name).join(",");
    let program =
        std::env::current_exe().map_or("hairpin".to_owned(), |path| path.display().to_string());
    Some(format!(
        "{} missing (setcap {all}+p {program}, or AmbientCapabilities= in its systemd unit)",
        lacking.join(", ")
    ))
}

/// Makes every permitted capability of the calling thread effective, as file capabilities without the effective flag
/// require (`setcap cap_bpf,cap_net_admin,cap_perfmon+p`). Call it before other threads start.
///
/// # Errors
/// If the system refuses; then the thread keeps what it had.
pub fn use_permitted() -> std::io::Result<()> {
    capabilities::use_permitted()
}

/// Gives up every capability of the calling thread, and of those that it starts from now on.
///
/// # Errors
/// If the system refuses; then the thread keeps what it had.
pub fn drop_all() -> std::io::Result<()> {
    capabilities::keep_only(&[])
}

/// Like [`drop_all`], but the thread may still read any file. It is for a program that reads its configuration again
/// and otherwise would not be allowed to.
///
/// # Errors
/// As [`drop_all`].
pub fn drop_all_but_file_access() -> std::io::Result<()> {
    capabilities::keep_only(&[Capability::DacReadSearch])
}

/// Whether `work` succeeds on a thread without any capability.
#[must_use]
pub fn works_without_capabilities(work: impl FnOnce() -> bool + Send) -> bool {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| drop_all().is_ok() && work());
        thread.join().unwrap_or(false)
    })
}

/// What threads keep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeptCapabilities {
    /// Nothing is given up.
    everything: bool,
    /// Before Linux 5.19, tables take CAP_BPF where `kernel.unprivileged_bpf_disabled` is set.
    bpf: bool,
}

impl KeptCapabilities {
    /// Every thread keeps what it has.
    pub(crate) const EVERYTHING: KeptCapabilities = KeptCapabilities {
        everything: true,
        bpf: false,
    };

    /// Only what is needed; `tables` says whether tables can be written without any.
    pub(crate) const fn needed(tables: bool) -> KeptCapabilities {
        KeptCapabilities {
            everything: false,
            bpf: !tables,
        }
    }

    /// For the calling worker's thread.
    pub(crate) fn restrict_worker_thread(self) {
        let kept: &[Capability] = if self.bpf { &[Capability::Bpf] } else { &[] };
        self.keep(kept);
    }

    /// For the calling thread that follows the host's addresses, which takes no capability.
    pub(crate) fn restrict_watch_thread(self) {
        self.keep(&[]);
    }

    /// For the calling control thread: it asks about neighbours, and may have to attach a program.
    pub(crate) fn restrict_control_thread(self) {
        let kept: &[Capability] = if self.bpf {
            &[Capability::NetAdmin, Capability::Bpf]
        } else {
            &[Capability::NetAdmin]
        };
        self.keep(kept);
    }

    fn keep(self, kept: &[Capability]) {
        if self.everything || !capabilities::any() {
            return;
        }
        if let Err(error) = capabilities::keep_only(kept) {
            tracing::warn!(%error, "cannot give up capabilities");
        }
    }
}
