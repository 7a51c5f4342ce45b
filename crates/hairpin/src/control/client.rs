//! The other side of the control socket: one request, one reply.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};
use serde_json::Value;

use super::protocol::{self, Command, MAX_REPLY, Reply};

/// More than a server takes for any command.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(90);

/// Sends a request to the server at `path`, and waits for its reply.
///
/// # Errors
/// If there is no server, or no reply. What the server refuses is a reply.
pub(crate) fn ask(path: &Path, command: Command, arguments: &Value) -> Result<Reply> {
    let line = exchange(path, &protocol::request_with(command, arguments))?;
    protocol::read_reply(&line)
        .map_err(|error| anyhow!("the server at {}: {error}", path.display()))
}

fn exchange(path: &Path, request: &str) -> Result<Vec<u8>> {
    let mut stream = UnixStream::connect(path).map_err(|error| explain(path, &error))?;
    let from = || format!("the server at {} does not reply", path.display());
    stream.set_read_timeout(Some(RESPONSE_TIMEOUT))?;
    stream.set_write_timeout(Some(RESPONSE_TIMEOUT))?;
    // A server that refuses this user replies before it reads.
    let written = stream.write_all(request.as_bytes());
    let mut line = Vec::new();
    let limit = MAX_REPLY as u64 + 1;
    let read = stream.take(limit).read_to_end(&mut line);
    if line.last() != Some(&b'\n') {
        written.with_context(from)?;
        read.with_context(from)?;
        if line.len() > MAX_REPLY {
            bail!("{}: a reply has at most {MAX_REPLY} bytes", from());
        }
        bail!("{}: it has ended the connection", from());
    }
    Ok(line)
}

/// Why no server responds, and what to do.
fn explain(path: &Path, error: &std::io::Error) -> anyhow::Error {
    let why = match error.kind() {
        ErrorKind::NotFound => {
            "there is no such socket; is the server running? Its banner says where its control socket is: name that with --socket"
        }
        ErrorKind::ConnectionRefused => "nobody listens there: the server has ended",
        ErrorKind::PermissionDenied => {
            "permission denied; run the command as the user of the server, or as root"
        }
        _ => return anyhow!("cannot reach a server at {}: {error}", path.display()),
    };
    anyhow!("cannot reach a server at {}: {why}", path.display())
}
