//! The constants of the harness that may favour some servers. docs/benchmarking.md says which.

use super::floor::{BATCH_LIMIT, LISTENER_BUFFER};
use super::packets::{BURST, FLOW_WARM_UP_RATE, FOREIGN_SHARE, MAX_TRIES, MOST_LOSS};
use super::sip;

/// Their names and values, for every report.
pub(super) fn settings() -> Vec<(String, String)> {
    [
        ("frames that leave together", BURST.to_string()),
        (
            "listener buffers of hairpin and of the bare relays",
            format!("{} MiB", LISTENER_BUFFER >> 20),
        ),
        (
            "batch size limit of hairpin and of floor-gro",
            BATCH_LIMIT.to_string(),
        ),
        (
            "loss at which a rate counts as held",
            format!("at most {:.0} %", MOST_LOSS * 100.0),
        ),
        (
            "measurements of a load while others use a processor",
            format!(
                "at most {MAX_TRIES} above {:.0} %, the least disturbed counts",
                FOREIGN_SHARE * 100.0
            ),
        ),
        (
            "warm-up of flows of a TURN server",
            format!("{FLOW_WARM_UP_RATE:.0}/s"),
        ),
        ("users of proxied calls", sip::CALLING.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into()
}
