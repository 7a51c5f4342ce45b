//! One audit line per change. A command writes it to stderr, a server to its log. Both also send it to the system log.

use std::os::unix::net::UnixDatagram;

use crate::commands::printable;

/// The socket of syslog and journald.
const SYSTEM_LOG: &str = "/dev/log";
/// RFC 5424 §6.2.1: facility 10 (authorization), severity 5 (notice).
const PRIORITY: u8 = 10 * 8 + 5;
/// The target of audit lines in the log. `log.level` does not apply to it.
pub(crate) const TARGET: &str = "audit";

/// The audit line of one change.
#[derive(Debug)]
pub(crate) struct Audit<'a> {
    action: &'static str,
    fields: Vec<(&'a str, String)>,
}

impl<'a> Audit<'a> {
    pub(crate) fn new(action: &'static str) -> Self {
        Self {
            action,
            fields: Vec::new(),
        }
    }

    pub(crate) fn with(mut self, name: &'a str, value: &str) -> Self {
        self.fields.push((name, value.to_owned()));
        self
    }

    /// Writes the audit line of a command to stderr and to the system log. Without a system log, the command still
    /// succeeds.
    pub(crate) fn write(self) {
        let line = self.line(&current_user());
        eprintln!("{line}");
        to_system_log(&line);
    }

    /// Writes the line of a server, with level `info`, for every `log.level`.
    pub(crate) fn log(self, by: &str) {
        let line = self.line(by);
        tracing::info!(target: TARGET, "{line}");
        to_system_log(&line);
    }

    fn line(&self, who: &str) -> String {
        let field = |(name, value): &(&str, String)| format!(" {name}={:?}", printable(value));
        let fields: String = self.fields.iter().map(field).collect();
        format!("audit: {}{fields} by={:?}", self.action, printable(who))
    }
}

fn to_system_log(line: &str) {
    let message = format!("<{PRIORITY}>hairpin[{}]: {line}", std::process::id());
    if let Ok(socket) = UnixDatagram::unbound() {
        // A full system log must not block the server.
        let _ = socket.set_nonblocking(true);
        let _ = socket.send_to(message.as_bytes(), SYSTEM_LOG);
    }
}

/// The user of this command: the caller of sudo, else the login name, and the effective user ID in brackets.
fn current_user() -> String {
    let name = ["SUDO_USER", "LOGNAME", "USER"]
        .iter()
        .find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    let name = name.unwrap_or_else(|| "unknown".to_owned());
    format!("{name} ({})", server::privileges::effective_user())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_the_change_and_nothing_can_forge_another() {
        let audit = Audit::new("user.add").with("store", "sqlite");
        let audit = audit.with("realm", "example.org").with("user", "a\"b\nc");
        assert_eq!(
            audit.line("root (0)"),
            "audit: user.add store=\"sqlite\" realm=\"example.org\" user=\"a\\\"b?c\" by=\"root (0)\""
        );
    }
}
