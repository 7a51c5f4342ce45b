//! One unit of work before thousands: what is wrong with the arguments or the server is better said at once.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::options::{SipOptions, SipWorkload};
use crate::generator::{Run, Stopper};
use crate::report::LoadReport;
use crate::sip::Transport;

/// How long the answer is waited for: three requests over UDP.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(1600);

/// What a server said to one unit of work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ServerCheckError {
    /// ICMP, or a reset.
    #[error("nothing listens on {} {server}: start the server, or look for the right port", transport.in_via())]
    NothingListens {
        /// Where.
        server: SocketAddr,
        /// Over what.
        transport: Transport,
    },
    /// No connection.
    #[error("cannot connect to {server}: {source}")]
    Connect {
        /// Where.
        server: SocketAddr,
        /// What the system said.
        source: io::Error,
    },
    /// 401 or 407, and no credentials.
    #[error("{server} asks for a user name and a password ({code})")]
    CredentialsNeeded {
        /// Who.
        server: SocketAddr,
        /// 401 or 407.
        code: u16,
    },
    /// 401, 403 or 407 after an answer to the challenge.
    #[error(
        "{server} does not accept this user name and password ({code}): a wrong password, or users that it does not have"
    )]
    WrongPassword {
        /// Who.
        server: SocketAddr,
        /// What it answered.
        code: u16,
    },
    /// Another refusal.
    #[error("{server} refuses: it answered {method} with {code}{}", advice(*code))]
    Refused {
        /// Who.
        server: SocketAddr,
        /// What it was asked.
        method: &'static str,
        /// What it answered.
        code: u16,
    },
    /// No socket or no thread.
    #[error("cannot begin: {0}")]
    Local(String),
}

fn advice(code: u16) -> &'static str {
    match code {
        404 | 484 | 604 => ": it does not know this user or domain (--callee, --domain)",
        403 => ": it does not serve this domain, or not this source (--domain)",
        405 | 501 => ": it does not do this method",
        482 | 483 => ": requests go round in a circle",
        _ => "",
    }
}

/// Does one unit of work and says what is wrong, if that is certain: silence means nothing yet, and neither does 503.
///
/// # Errors
/// [`ServerCheckError`].
pub fn check_server(options: &SipOptions, stopper: &Stopper) -> Result<(), ServerCheckError> {
    let server = options.targets[0].address();
    if options.transport.is_stream() {
        check_listens(server, options.transport)?;
    }
    if options.workload == SipWorkload::Proxy {
        // Its callees register first, which tests the same.
        return Ok(());
    }
    let mut one = options.clone();
    (one.further, one.obey) = (Vec::new(), false);
    one.links = 1;
    one.runs = Some(1);
    one.hold = Duration::ZERO;
    let local = |error: &dyn std::fmt::Display| ServerCheckError::Local(error.to_string());
    let mut plan = super::sip(&one, stopper).map_err(|error| local(&error))?;
    plan.warm_up = Duration::ZERO;
    plan.duration = RESPONSE_TIMEOUT;
    plan.linger = Duration::ZERO;
    plan.close_loop(1);
    let report = Run::start(plan).map_err(|error| local(&error))?.finish();
    judge(options, &report)
}

fn check_listens(server: SocketAddr, transport: Transport) -> Result<(), ServerCheckError> {
    match TcpStream::connect_timeout(&server, RESPONSE_TIMEOUT) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            Err(ServerCheckError::NothingListens { server, transport })
        }
        Err(source) => Err(ServerCheckError::Connect { server, source }),
    }
}

/// Challenges of these requests are answered, if there are credentials.
fn may_be_challenged(options: &SipOptions) -> bool {
    options.workload != SipWorkload::Options
}

fn judge(options: &SipOptions, report: &LoadReport) -> Result<(), ServerCheckError> {
    let server = options.targets[0].address();
    let sip = report.sip.as_deref().cloned().unwrap_or_default();
    let code = report.errors.keys().copied().find(|&code| code != 0);
    if report.total.received > 0 {
        return Ok(());
    }
    if code.is_none() && sip.unreachable > 0 {
        return Err(ServerCheckError::NothingListens {
            server,
            transport: options.transport,
        });
    }
    let method = options.workload.method();
    let challenged = sip.challenges > 0;
    match code {
        None | Some(503) => Ok(()),
        Some(code @ (401 | 403 | 407)) if challenged => {
            Err(ServerCheckError::WrongPassword { server, code })
        }
        Some(code @ (401 | 407)) if may_be_challenged(options) => Err(match options.credentials {
            None => ServerCheckError::CredentialsNeeded { server, code },
            Some(_) => ServerCheckError::Refused {
                server,
                method,
                code,
            },
        }),
        Some(code) => Err(ServerCheckError::Refused {
            server,
            method,
            code,
        }),
    }
}
