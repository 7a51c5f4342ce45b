//! Drops the capabilities that only the start requires, after everything is open.

use std::fs::File;
use std::path::Path;

use server::privileges::{drop_all, drop_all_but_file_access, works_without_capabilities};

/// Drops the capabilities of the main thread, and of the threads that it starts from now on. The threads of the server
/// have already dropped theirs. A configuration that only root's power opens can still be read when it is loaded again.
pub(super) fn give_up(config: Option<&Path>) {
    let readable = |path: &Path| File::open(path).is_ok();
    let hidden =
        config.is_some_and(|path| readable(path) && !works_without_capabilities(|| readable(path)));
    let outcome = if hidden {
        tracing::info!("CAP_DAC_READ_SEARCH is kept to read the configuration again");
        drop_all_but_file_access()
    } else {
        drop_all()
    };
    if let Err(error) = outcome {
        tracing::warn!(%error, "cannot give up capabilities");
    }
}
