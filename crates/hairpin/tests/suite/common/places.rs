//! Where a process of a test runs: on the loopback interface of this machine, or in a network namespace of its own.
//!
//! ```text
//!  clients (the thread of the test)          each other place
//!   bridge 10.99.0.1 ---- veth ---- eth 10.99.0.2, 10.99.0.3, ...
//! ```
//! The kernel removes the namespaces when the last process and the last file handle are gone.

use std::io::{ErrorKind, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::process::{Command, Stdio};
use std::sync::Arc;

use io::NetNs;

/// A place for servers, and where their clients are.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    pub(crate) address: Ipv4Addr,
    pub(crate) clients: Ipv4Addr,
    space: Option<Arc<NetNs>>,
}

impl Place {
    pub(crate) const LOOPBACK: Place = Place {
        address: Ipv4Addr::LOCALHOST,
        clients: Ipv4Addr::LOCALHOST,
        space: None,
    };

    /// The port of a service: this one if nobody else can have it.
    pub(crate) fn port(&self, port: u16) -> u16 {
        if self.space.is_some() { port } else { 0 }
    }

    /// Whether this is a namespace of its own.
    pub(crate) fn is_namespace(&self) -> bool {
        self.space.is_some()
    }

    /// Does something there. Sockets that it opens stay there.
    pub(crate) fn within<T: Send>(&self, act: impl FnOnce() -> T + Send) -> T {
        let Some(space) = &self.space else {
            return act();
        };
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                space.enter().expect("a namespace of this test");
                act()
            });
            thread.join().expect("it does not panic")
        })
    }

    /// Runs lines of a shell there.
    pub(crate) fn shell(&self, script: &str) {
        self.within(|| shell(script)).expect("it succeeds");
    }
}

fn shell(script: &str) -> Result<(), String> {
    let output = Command::new("sh")
        .args(["-ec", script])
        .stdin(Stdio::null())
        .output();
    let output = output.map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("{script}: {}", super::stderr(&output))),
    }
}

/// Runs a test on a thread in a namespace for clients, with these many other places on its link. Without the privilege
/// to make namespaces, the test says so and passes.
pub(crate) fn with_places<const N: usize>(test: impl FnOnce([Place; N]) + Send + 'static) {
    let thread = std::thread::spawn(move || match build() {
        Ok(places) => test(places),
        Err(reason) => skipped(&reason),
    });
    thread.join().expect("the test passes");
}

fn unshare() -> Result<NetNs, String> {
    match NetNs::unshare() {
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(error.to_string()),
        made => Ok(made.expect("a namespace")),
    }
}

fn build<const N: usize>() -> Result<[Place; N], String> {
    unshare()?;
    shell(
        "ip link set lo up; ip link add bridge type bridge; ip link set bridge up; \
         ip address add 10.99.0.1/24 dev bridge",
    )?;
    let clients = Ipv4Addr::new(10, 99, 0, 1);
    let mut places = Vec::new();
    for number in 2.. {
        if places.len() == N {
            break;
        }
        let space = std::thread::scope(|scope| {
            let thread = scope.spawn(unshare);
            thread.join().expect("it does not panic")
        })?;
        let place = Place {
            address: Ipv4Addr::new(10, 99, 0, number),
            clients,
            space: Some(Arc::new(space)),
        };
        place.connect(number)?;
        places.push(place);
    }
    Ok(places.try_into().expect("so many were made"))
}

impl Place {
    /// A link to the bridge, with the name `to2` there.
    fn connect(&self, number: u8) -> Result<(), String> {
        let Some(space) = &self.space else {
            return Ok(());
        };
        let path = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            space.as_fd().as_raw_fd()
        );
        shell(&format!(
            "ip link add to{number} type veth peer name eth; ip link set eth netns {path}; \
             ip link set to{number} master bridge up"
        ))?;
        let address = self.address;
        self.within(|| {
            shell(&format!(
                "ip link set lo up; ip link set eth up; ip address add {address}/24 dev eth"
            ))
        })
    }
}

/// Says that a test does nothing, and why: also to `cargo xtask test`, which counts them.
fn skipped(reason: &str) {
    eprintln!("skipped: {reason}");
    if let Some(list) = std::env::var_os("HAIRPIN_TESTS_SKIPPED") {
        let mut options = std::fs::OpenOptions::new();
        if let Ok(mut file) = options.append(true).create(true).open(list) {
            let _ = writeln!(file, "namespaces: {}", reason.replace('\n', " "));
        }
    }
}
