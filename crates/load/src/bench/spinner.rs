//! A task that soaks up what the server's processor has left.
//!
//! It runs only when nothing else wants the processor (SCHED_IDLE), so it takes nothing from the
//! server. It keeps a virtual processor from halting. Otherwise the hypervisor's wake-up time would
//! be part of every measurement. Its own CPU time shows the time of other work: neither the
//! server's nor the spinner's.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;

use super::procfs;

/// A running spinner.
#[derive(Debug)]
pub(crate) struct Spinner {
    task: u32,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Spinner {
    /// Starts one on `cpu`.
    pub(crate) fn start(cpu: usize) -> io::Result<Spinner> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (sender, started) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("spinner".into())
            .spawn(move || {
                let ready = ::io::tasks::make_idle(0)
                    .and_then(|()| ::io::tasks::pin(0, cpu))
                    .map(|()| ::io::tasks::current());
                let spin = ready.is_ok();
                if sender.send(ready).is_ok() && spin {
                    while !stopped.load(Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                }
            })?;
        let task = started
            .recv()
            .map_err(|_| io::Error::other("the spinner panicked"))??;
        Ok(Spinner {
            task,
            stop,
            thread: Some(thread),
        })
    }

    /// Processor time it has had, in nanoseconds.
    pub(crate) fn cpu_ns(&self) -> u64 {
        procfs::task_cpu_ns(self.task)
    }
}

impl Drop for Spinner {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
