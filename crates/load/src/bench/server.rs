//! A server under test, as a process.

use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use ::io::process::{GuardedChild, ProcessPlacement};

use super::error::SideError;
use super::side::Side;
use super::topology::Topology;

/// Of a server's output, the end is kept, for when it fails.
const TAIL_BYTES: usize = 2000;

/// A running server; killed when dropped.
#[derive(Debug)]
pub(crate) struct Server {
    /// `None` only while it is being dropped.
    process: Option<GuardedChild>,
    output: Arc<Mutex<Vec<u8>>>,
    readers: Vec<JoinHandle<()>>,
}

impl Server {
    /// Starts a side's command in the server's namespace, on the server's processor.
    pub(crate) fn start(side: &Side, topology: &Topology, flows: u16) -> Result<Server, SideError> {
        let words = topology.fill(side.command_line(flows));
        let (program, arguments) = words
            .split_first()
            .map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let cpus = topology.cpus().of_server();
        let place = ProcessPlacement {
            namespace: topology.server(),
            cpus: &cpus,
            preferred: topology.cpus().preferred,
        };
        let mut process =
            GuardedChild::spawn(command, &place).map_err(|source| SideError::Start {
                command: words.join(" "),
                source,
            })?;
        let output = Arc::default();
        let child = process.child();
        let streams: [Option<Box<dyn Read + Send>>; 2] = [
            child.stdout.take().map(|stream| Box::new(stream) as _),
            child.stderr.take().map(|stream| Box::new(stream) as _),
        ];
        let readers = streams
            .into_iter()
            .flatten()
            .map(|stream| keep_tail(stream, Arc::clone(&output)))
            .collect();
        Ok(Server {
            process: Some(process),
            output,
            readers,
        })
    }

    /// Its process.
    pub(crate) fn id(&self) -> u32 {
        self.process.as_ref().map_or(0, GuardedChild::id)
    }

    /// An error if the server has ended.
    pub(crate) fn check_alive(&mut self) -> Result<(), SideError> {
        match self
            .process
            .as_mut()
            .map_or(Ok(None), GuardedChild::try_wait)
        {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(SideError::Ended {
                status: status.to_string(),
                output: self.tail(),
            }),
            Err(source) => Err(SideError::Io {
                what: "look after the server",
                source,
            }),
        }
    }

    /// The error for a server that is there but does not do what it should.
    pub(crate) fn silent(&self, what: &'static str, limit: Duration) -> SideError {
        SideError::Silent {
            what,
            seconds: limit.as_secs(),
            output: self.tail(),
        }
    }

    fn tail(&self) -> String {
        // What a process wrote last is still on its way through the pipe when its end is noticed.
        std::thread::sleep(Duration::from_millis(20));
        let bytes = self.output.lock().unwrap_or_else(PoisonError::into_inner);
        match String::from_utf8_lossy(&bytes).trim() {
            "" => "(none)".to_owned(),
            text => text.to_owned(),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Killed first: the pipes end with the process, and a reader would wait forever.
        self.process.take();
        for reader in self.readers.drain(..) {
            let _ = reader.join();
        }
    }
}

fn keep_tail(mut stream: Box<dyn Read + Send>, output: Arc<Mutex<Vec<u8>>>) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut buffer = [0; 4096];
        while let Ok(length @ 1..) = stream.read(&mut buffer) {
            let mut tail = output.lock().unwrap_or_else(PoisonError::into_inner);
            tail.extend_from_slice(&buffer[..length]);
            let surplus = tail.len().saturating_sub(TAIL_BYTES);
            tail.drain(..surplus);
        }
    })
}
