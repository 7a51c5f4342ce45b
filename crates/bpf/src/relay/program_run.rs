//! Test runs of the programs (BPF_PROG_TEST_RUN): the frame neither arrives nor leaves by an interface.

use std::time::Duration;

use aya::programs::{SchedClassifier, Xdp};
use aya::{TestRun, TestRunOptions};

use super::Relay;
use crate::BpfError;

/// The verdict of a program on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// On to the stack.
    Pass,
    /// The program drops the packet.
    Drop,
    /// Out by the interface that it came in by (XDP only).
    Transmit,
    /// Out by the interface that was named.
    Redirect,
    /// A verdict that these programs never give.
    Other(u32),
}

/// A run of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramRun {
    /// The verdict of the last run.
    pub verdict: Verdict,
    /// The frame afterwards.
    pub frame: Vec<u8>,
    /// How long a run took, on average.
    pub duration: Duration,
}

/// Bytes that a frame may grow by.
const MAX_GROWTH_BYTES: usize = 64;

impl Relay {
    /// Runs the XDP program repeatedly, each time on the result of the last run. Packets arrive as if from interface 1
    /// (loopback) of the network namespace of the calling thread.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn try_xdp(&mut self, frame: &[u8], repeat: u32) -> Result<ProgramRun, BpfError> {
        self.load_xdp()?;
        let mut out = vec![0; frame.len() + MAX_GROWTH_BYTES];
        let run = self
            .object
            .program::<Xdp>("relay_xdp")?
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                repeat,
                ..TestRunOptions::new()
            })?;
        out.truncate(run.data_size_out as usize);
        let verdict = match run.return_value {
            1 => Verdict::Drop,
            2 => Verdict::Pass,
            3 => Verdict::Transmit,
            4 => Verdict::Redirect,
            other => Verdict::Other(other),
        };
        Ok(ProgramRun {
            verdict,
            frame: out,
            duration: run.duration,
        })
    }

    /// Runs the tc program `repeat` times, each time on the result of the last run. Packets arrive as if from interface
    /// 1. `segments` presents the frame as a packet of several datagrams.
    ///
    /// # Errors
    /// When the kernel refuses the run.
    pub fn try_tc(
        &mut self,
        frame: &[u8],
        segments: Option<u32>,
        repeat: u32,
    ) -> Result<ProgramRun, BpfError> {
        self.load_tc()?;
        let mut out = vec![0; frame.len() + MAX_GROWTH_BYTES];
        // `struct __sk_buff`, 192 bytes, with gso_segs at 164 and gso_size at 176.
        let mut context = [0; 192];
        if let Some(segments) = segments {
            context[164..168].copy_from_slice(&segments.to_ne_bytes());
            context[176..180].copy_from_slice(&100_u32.to_ne_bytes());
        }
        let run = self
            .object
            .program::<SchedClassifier>("relay_tc")?
            .test_run(TestRunOptions {
                data_in: Some(frame),
                data_out: Some(&mut out),
                ctx_in: Some(&context),
                repeat,
                ..TestRunOptions::new()
            })?;
        out.truncate(run.data_size_out as usize);
        let verdict = match run.return_value {
            u32::MAX => Verdict::Pass,
            2 => Verdict::Drop,
            7 => Verdict::Redirect,
            other => Verdict::Other(other),
        };
        Ok(ProgramRun {
            verdict,
            frame: out,
            duration: run.duration,
        })
    }
}
