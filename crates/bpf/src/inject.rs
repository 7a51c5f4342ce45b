//! The frame injector: a paced load of individual frames, made below the socket layer.
//!
//! One run of a program by BPF_PROG_TEST_RUN with live frames. The kernel takes frames from a page
//! pool, runs the program on each, and sends those that it redirects. About 5 million frames per
//! second on one core. Each frame is a separate packet with a valid checksum, as a network card
//! delivers it. A socket generator over a virtual link does not produce such packets.
//!
//! The thread that calls [`Injector::run`] spends the whole run in the kernel; pin it first. Linux
//! 5.18 or later.

use std::io;
use std::time::Duration;

use aya::maps::Array;
use aya::maps::xdp::DevMap;
use aya::programs::{ProgramError, Xdp};
use aya::{TestRun, TestRunAttrs, TestRunOptions};

use crate::BpfError;
use crate::frame::Path;
use crate::interrupt::Alarm;
use crate::object::{Cell, Object};
use crate::payload;
use crate::reason::Kernel;

/// Bytes that are restored in every frame before it leaves; see the program.
const HEAD_LEN: usize = 96;
/// Shortest frame: a bare STUN Binding request over IPv4.
const MIN_FRAME_LEN: usize = 62;
/// Interfaces that one injector can feed.
pub const MAX_DEVICES: u32 = 4;
/// Most frames per kernel batch. The kernel allows 256; beyond 64 nothing improves. A paced load has batches of the
/// size of its bursts, so that a burst leaves when it is complete.
const BURST_FRAMES: u32 = 64;
/// Bytes that the template is longer than the longest frame. The kernel restores the length of a recycled frame only
/// if the program cuts something off. Otherwise a frame that the device under test has extended would be sent with
/// that length again.
const TEMPLATE_MARGIN_BYTES: usize = 4;
/// The maximum number of program runs. A run without a due frame takes 30 ns, so no load reaches this limit.
const MAX_RUNS: u32 = u32::MAX;

/// One flow of a load: a ready frame, and where it goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Flow {
    device: u32,
    sequence_at: usize,
    frame: Vec<u8>,
}

/// Datagrams of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Datagram {
    /// A payload as it is, `usize` bytes of it.
    Raw(usize),
    /// ChannelData (RFC 8656 §12.4) on this channel number, with this many bytes of payload and no
    /// padding.
    ChannelData(u16, usize),
    /// A STUN Binding request (RFC 8489 §5) without attributes. The transaction id is the flow, the
    /// sequence and its complement.
    Binding,
}

impl Flow {
    /// The flow numbered `number`, sent along `path` out of the device in `device`.
    ///
    /// # Errors
    /// [`BpfError::Flows`] when the payload is outside
    /// [`payload::MIN_LEN`]`..=`[`payload::MAX_LEN`] or odd, or the path mixes address families.
    pub fn new(
        number: u32,
        device: u32,
        path: &Path,
        datagram: Datagram,
    ) -> Result<Flow, BpfError> {
        let (bytes, sequence_in_payload) = datagram.bytes(number)?;
        let frame = path
            .frame(&bytes)
            .map_err(|_| BpfError::Flows("an IPv4 address and an IPv6 address in one flow"))?;
        Ok(Flow {
            device,
            sequence_at: path.payload_offset() + sequence_in_payload,
            frame,
        })
    }

    /// The frame, with sequence 0.
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }
}

impl Datagram {
    /// The UDP payload with sequence 0, and where in it the sequence is.
    fn bytes(self, flow: u32) -> Result<(Vec<u8>, usize), BpfError> {
        let relayed = |length: usize| {
            if !(payload::MIN_LEN..=payload::MAX_LEN).contains(&length) || !length.is_multiple_of(2)
            {
                return Err(BpfError::Flows(
                    "a payload has 32 to 1536 bytes and an even number of them",
                ));
            }
            let mut bytes = vec![0; length];
            payload::fill(&mut bytes, flow, 0);
            Ok(bytes)
        };
        match self {
            Datagram::Raw(length) => Ok((relayed(length)?, 8)),
            Datagram::ChannelData(channel, length) => {
                let body = relayed(length)?;
                // At most MAX_LEN, checked by `relayed`.
                let header = [channel.to_be_bytes(), (length as u16).to_be_bytes()].concat();
                Ok(([header, body].concat(), 12))
            }
            Datagram::Binding => {
                let mut bytes = vec![0, 1, 0, 0, 0x21, 0x12, 0xa4, 0x42];
                bytes.extend(flow.to_le_bytes());
                bytes.extend(0u32.to_le_bytes());
                bytes.extend((!0u32).to_le_bytes());
                Ok((bytes, 12))
            }
        }
    }
}

/// How a load is sent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Frames per second over all flows; `None` sends as fast as one core can.
    pub rate: Option<f64>,
    /// Length of the run.
    pub duration: Duration,
    /// Frames of one flow in a row before the next flow's turn, at least 1.
    pub train: u32,
    /// Frames that leave together when they are due, at least 1. Wake-ups dominate a receiver's
    /// cost below about 16.
    pub burst: u32,
}

/// What a run did.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Injected {
    /// Frames handed to the devices.
    pub frames: u64,
    /// When the first frame left, CLOCK_MONOTONIC in nanoseconds.
    pub start_ns: u64,
    /// From the first frame to the end of the run.
    pub elapsed: Duration,
    /// Skipped part of the schedule, because the generator had no CPU time for more than 2 ms. If
    /// it exceeds a few percent of `elapsed`, the real rate was below the requested one.
    pub skipped: Duration,
}

/// What the program needs: a test run of XDP that redirects frames for real.
const NEEDS: Kernel = Kernel(5, 18);

/// The loaded program with its flows.
pub struct Injector {
    object: Object,
    max_flows: u32,
    flows: u32,
    scatter: bool,
    template: Vec<u8>,
    next_sequence: u32,
}

impl Injector {
    /// Loads the program with room for `max_flows` flows.
    ///
    /// # Errors
    /// When the kernel refuses (privileges, or older than 5.18).
    pub fn load(max_flows: u32) -> Result<Injector, BpfError> {
        let bytes = aya::include_bytes_aligned!("../objects/bench_inject.o");
        let mut object = Object::load("bench_inject", bytes, &[("FLOWS", max_flows.max(1))])?;
        object.load_program("inject", NEEDS, Xdp::load)?;
        Ok(Injector {
            object,
            max_flows: max_flows.max(1),
            flows: 0,
            scatter: false,
            template: Vec::new(),
            next_sequence: 0,
        })
    }

    /// Puts an interface of the calling thread's network namespace into `slot` (below
    /// [`MAX_DEVICES`]). Each slot may come from another namespace: the map holds the device, not
    /// its number.
    ///
    /// # Errors
    /// When there is no such interface or slot.
    pub fn set_device(&mut self, slot: u32, if_index: u32) -> Result<(), BpfError> {
        let mut devices: DevMap<_> = self.object.map("DEVICES")?;
        Ok(devices.set(slot, if_index, None, 0)?)
    }

    /// Replaces the flows. The program sends one frame of each flow in turn, in this order.
    ///
    /// # Errors
    /// [`BpfError::Flows`] if there are none or too many, or if the frames cannot share one template.
    /// Each frame must be 62 bytes or longer. The bytes after their headers must be equal when aligned
    /// at the end.
    pub fn set_flows(&mut self, flows: &[Flow]) -> Result<(), BpfError> {
        let longest = flows
            .iter()
            .max_by_key(|flow| flow.frame.len())
            .ok_or(BpfError::Flows("no flows"))?;
        let template = [&[0; TEMPLATE_MARGIN_BYTES][..], &longest.frame].concat();
        let count = u32::try_from(flows.len()).unwrap_or(u32::MAX);
        if count > self.max_flows {
            return Err(BpfError::Flows(
                "more flows than the injector was loaded for",
            ));
        }
        let records = flows
            .iter()
            .map(|flow| FlowFrame::new(flow, &template))
            .collect::<Result<Vec<_>, _>>()?;
        let mut map: Array<_, FlowFrame> = self.object.map("FLOWS")?;
        for (number, record) in (0..).zip(records) {
            map.set(number, record, 0)?;
        }
        self.flows = count;
        self.template = template;
        Ok(())
    }

    /// Sets whether every frame has another source address. Bits 3 to 22 of the IPv4 source address then differ, so
    /// there are 2^20 addresses. These bits must be 0 in the addresses of the flows. The addresses follow from the
    /// sequence number and are far apart.
    pub fn scatter_sources(&mut self, on: bool) {
        self.scatter = on;
    }

    /// Sends the load; returns when it is over.
    ///
    /// # Errors
    /// When no flows are set, or the kernel has no live frames (before 5.18).
    pub fn run(&mut self, pace: &Pace) -> Result<Injected, BpfError> {
        self.prepare(pace)?;
        let alarm = Alarm::arm(pace.duration).map_err(BpfError::Timer)?;
        let options = TestRunOptions {
            data_in: Some(&self.template),
            repeat: MAX_RUNS,
            attrs: TestRunAttrs::new().xdp_live_frames(batch(pace)),
            ..TestRunOptions::new()
        };
        let outcome = self.object.program::<Xdp>("inject")?.test_run(options);
        drop(alarm);
        match outcome {
            Ok(_) => {}
            // The alarm: the way every run ends.
            Err(ProgramError::SyscallError(call))
                if call.io_error.kind() == io::ErrorKind::Interrupted => {}
            Err(other) => return Err(other.into()),
        }
        let state = self.state()?;
        // Sequences are 32 bits and wrap.
        self.skip_sequences(state.sent as u32);
        let elapsed = if state.ended == 1 {
            state.span_ns
        } else {
            state.last_ns.saturating_sub(state.start_ns)
        };
        Ok(Injected {
            frames: state.sent,
            start_ns: state.start_ns,
            elapsed: Duration::from_nanos(elapsed),
            skipped: Duration::from_nanos(state.skipped_ps / 1000),
        })
    }

    /// The sequence of the next run's first frame. Runs continue the numbering, so that a counter finds duplicates.
    pub fn next_sequence(&self) -> u32 {
        self.next_sequence
    }

    /// Skips sequence numbers that another sender uses.
    pub fn skip_sequences(&mut self, count: u32) {
        self.next_sequence = self.next_sequence.wrapping_add(count);
    }

    /// Runs the program once on `dirty` without sending: the frame that would have left, or `None`
    /// if none would. For tests, and to find out whether a machine can inject at all.
    ///
    /// # Errors
    /// As [`Injector::run`].
    pub fn rewrite(&mut self, dirty: &[u8]) -> Result<Option<Vec<u8>>, BpfError> {
        const XDP_REDIRECT: u32 = 4;
        let mut out = vec![0; dirty.len() + HEAD_LEN];
        let dirty = [&[0; TEMPLATE_MARGIN_BYTES][..], dirty].concat();
        let options = TestRunOptions {
            data_in: Some(&dirty),
            data_out: Some(&mut out),
            ..TestRunOptions::new()
        };
        let result = self.object.program::<Xdp>("inject")?.test_run(options)?;
        out.truncate(result.data_size_out as usize);
        Ok((result.return_value == XDP_REDIRECT).then_some(out))
    }

    /// Sets schedule and counters for a run; [`Injector::run`] does it by itself,
    /// [`Injector::rewrite`] does not.
    ///
    /// # Errors
    /// When no flows are set.
    pub fn prepare(&mut self, pace: &Pace) -> Result<(), BpfError> {
        if self.flows == 0 {
            return Err(BpfError::Flows("no flows"));
        }
        let gap_ps = match pace.rate {
            // Finite and positive; a rate below one a second is as good as none here.
            Some(rate) if rate > 0.0 => (1e12 / rate) as u64,
            _ => 0,
        };
        let start = Injection {
            flows: self.flows,
            train: pace.train.max(1),
            burst: pace.burst.max(1),
            batch: batch(pace),
            gap_ps,
            span_ns: u64::try_from(pace.duration.as_nanos()).unwrap_or(u64::MAX),
            scatter: self.scatter.into(),
            first_sequence: self.next_sequence,
            ..Injection::default()
        };
        let mut cell: Cell<'_, Injection> = self.object.map("INJECTION")?;
        Ok(cell.set(0, start, 0)?)
    }

    fn state(&mut self) -> Result<Injection, BpfError> {
        let cell: Cell<'_, Injection> = self.object.map("INJECTION")?;
        Ok(cell.get(&0, 0)?)
    }
}

/// Frames that leave together.
fn batch(pace: &Pace) -> u32 {
    match pace.rate {
        Some(_) => pace.burst.clamp(1, BURST_FRAMES),
        None => BURST_FRAMES,
    }
}

/// `struct injection` of the program.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Injection {
    flows: u32,
    train: u32,
    burst: u32,
    batch: u32,
    gap_ps: u64,
    span_ns: u64,
    start_ns: u64,
    last_ns: u64,
    sent: u64,
    skipped_ps: u64,
    flow: u32,
    in_train: u32,
    budget: u32,
    ended: u32,
    in_batch: u32,
    given_up: u32,
    scatter: u32,
    first_sequence: u32,
}

// SAFETY: integers only, laid out without padding (asserted below).
unsafe impl aya::Pod for Injection {}
const _: () = assert!(size_of::<Injection>() == 96);

/// `struct flow_frame` of the program.
#[repr(C)]
#[derive(Clone, Copy)]
struct FlowFrame {
    device: u32,
    trim: u32,
    sequence_at: u32,
    reserved: u32,
    head: [u8; HEAD_LEN],
}

// SAFETY: integers and bytes, laid out without padding (asserted below).
unsafe impl aya::Pod for FlowFrame {}
const _: () = assert!(size_of::<FlowFrame>() == 16 + HEAD_LEN);

impl FlowFrame {
    fn new(flow: &Flow, template: &[u8]) -> Result<FlowFrame, BpfError> {
        let frame = &flow.frame;
        let trim = template.len() - frame.len();
        if frame.len() < MIN_FRAME_LEN || flow.device >= MAX_DEVICES {
            return Err(BpfError::Flows(
                "a frame is shorter than 62 bytes, or its device is beyond the last slot",
            ));
        }
        // The program cuts at most 63 bytes, and what lies behind the head comes from the template.
        if trim > 63
            || frame.get(HEAD_LEN..).unwrap_or_default()
                != template.get(HEAD_LEN + trim..).unwrap_or_default()
        {
            return Err(BpfError::Flows(
                "frames of one load differ behind their heads",
            ));
        }
        let mut head = [0; HEAD_LEN];
        let kept = frame.len().min(HEAD_LEN);
        head[..kept].copy_from_slice(&frame[..kept]);
        // At most 63: far below u32.
        Ok(FlowFrame {
            device: flow.device,
            trim: trim as u32,
            sequence_at: flow.sequence_at as u32,
            reserved: 0,
            head,
        })
    }
}
