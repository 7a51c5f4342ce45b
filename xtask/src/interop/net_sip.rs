//! Net::SIP, a library for Perl: user agents that register and call each other (`interop/net-sip`), over UDP and TCP.

use std::path::Path;
use std::time::Duration;

use anyhow::Result;

use super::domain::{Domain, PASSWORD};
use super::program;
use crate::process::{self, Process};
use crate::tally::Tally;

/// How many cases the program has.
const CASE_COUNT: usize = 7;
const RUN_TIMEOUT: Duration = Duration::from_secs(120);

/// The users that register.
const USERS: [&str; 5] = ["alice", "bob", "busy", "ringing", "short"];

/// Runs all cases.
pub(crate) fn run(binary: &Path, root: &Path, logs: &Path) -> Result<Tally> {
    let mut tally = Tally::default();
    for transport in ["udp", "tcp"] {
        let name = format!("net-sip-{transport}");
        let users = USERS.map(str::to_owned);
        // It knows MD5 alone.
        let more = "digest_algorithms = [\"MD5\"]\n";
        let mut domain = Domain::start(binary, logs, &name, &users, ["", more])?;
        let mut command = process::command("perl");
        command
            .arg(root.join("interop/net-sip/main.pl"))
            .arg(domain.port.to_string())
            .args([transport, PASSWORD]);
        let log = logs.join(format!("{name}-client.log"));
        let process = Process::start("the Net::SIP client", command, log)?;
        tally.add(program::record(
            "Net::SIP",
            process,
            CASE_COUNT,
            RUN_TIMEOUT,
        )?);
        let name = format!("the server of Net::SIP over {transport} stops when asked");
        tally.record(&name, &domain.finish());
    }
    Ok(tally)
}
