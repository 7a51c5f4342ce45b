//! What a run is going to do.

use std::collections::BTreeMap;
use std::time::Duration;

use super::churn::Churn;
use super::sip::Sip;
use super::{Lane, ReceiveSocket, Stopper};
use crate::Via;
use crate::measure::{Counter, Schedule};
use crate::peer::Peer;
use crate::report::Pace;

/// The plan of a [`Run`](super::Run). Built by a workload, such as [`binding`](super::binding) or
/// [`relay`](super::relay). Without a schedule it sends as fast as it can. Dropping it releases what was allocated for
/// it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Plan {
    /// `binding`, `relay`, ...
    pub workload: String,
    /// The server under test.
    pub target: String,
    /// `one way` or `round trip`.
    pub latency_is: String,
    /// Clients, sizes and the like, for the report.
    pub settings: BTreeMap<String, String>,
    /// Sent before anything is measured.
    pub warm_up: Duration,
    /// The measured part.
    pub duration: Duration,
    /// How long to wait for what is on its way when the last datagram has left.
    pub linger: Duration,
    /// Sender threads, at least 1. In a closed loop they receive as well.
    pub senders: usize,
    /// Receiver threads, at least 1.
    pub receivers: usize,
    /// Send trains by UDP_SEGMENT. Off, single datagrams leave, as real clients send them.
    pub gso: bool,
    /// The run ends when nothing has come back, or nothing could be sent, for this long. 0 is never.
    pub silence: Duration,
    /// The server's process on this machine: the report says what it and its children spend. SIP has an option of its
    /// own.
    pub server_pid: Option<u32>,
    /// Pieces of 4,096 numbers that are remembered of each flow, at least 2, to tell a late datagram from a duplicate.
    /// `None`: the flows share 272 MB.
    pub memory: Option<usize>,
    /// The key of the payloads, if another program checks them, too: `hairpin peer --sink`. `None`: each run has a key
    /// that nobody else knows.
    pub payload_key: Option<u64>,
    /// Ends the run, from anywhere.
    pub stopper: Stopper,
    pub(super) work: Work,
    pub(super) closed: Option<Closed>,
}

/// What the threads of a run do.
#[derive(Debug)]
pub(super) enum Work {
    Flows(Flows),
    Churn(Box<Churn>),
    Sip(Box<Sip>),
}

/// Datagrams to be sent and received.
#[derive(Debug, Default)]
pub(super) struct Flows {
    pub(super) streams: Vec<Stream>,
    pub(super) receive_sockets: Vec<ReceiveSocket>,
    /// Peers that live as long as the plan.
    pub(super) peers: Vec<Peer>,
    /// What is not answered is not lost, such as garbage.
    pub(super) one_sided: bool,
    /// How clients reach the server.
    pub(super) via: Via,
}

/// Lanes that take turns on one schedule.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stream {
    /// What the report calls it: `up`, `video`, ...
    pub name: String,
    /// What to send. Flow numbers ascend, from stream to stream as well.
    pub lanes: Vec<Lane>,
    /// When to send; `None` is as fast as it leaves.
    pub schedule: Option<Schedule>,
    /// Datagrams of one lane in a row before the next lane's turn, at least 1.
    pub train: u64,
    /// Its part of the rate, relative to the other streams'; 0 if it keeps its own schedule regardless of the rate.
    pub weight: f64,
    /// Sends that leave at the same time regardless of the schedule: a picture is one.
    pub(super) burst: u64,
}

/// A closed loop: this many requests are in flight, and the next leaves when one is answered or given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Closed {
    pub(super) window: u32,
    pub(super) timeout: Duration,
}

impl Closed {
    /// The part of worker `index` of `workers`.
    pub(super) fn part(self, index: usize, workers: usize) -> Closed {
        let (index, workers) = (index as u32, workers as u32);
        let remainder = u32::from(index < self.window % workers);
        Closed {
            window: self.window / workers + remainder,
            ..self
        }
    }
}

/// Why a plan cannot run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// Nothing to send or nowhere to listen.
    #[error("the plan has nothing to send, or nowhere to receive")]
    Empty,
    /// No sender or no receiver thread.
    #[error("there must be at least one sender thread and one receiver thread")]
    NoThreads,
    /// More flows than a stamp can number.
    #[error("{0} flows are more than 16777216")]
    TooManyFlows(u32),
    /// There is no answering side at the sender.
    #[error(
        "a closed loop needs answers: this workload measures one way (let a peer send it back) or expects none"
    )]
    NoAnswers,
    /// A closed loop of nothing.
    #[error("a closed loop needs a window of at least 1")]
    NoWindow,
}

/// A request that was not answered for this long is lost, and the next takes its place.
const CLOSED_TIMEOUT: Duration = Duration::from_secs(1);

impl Stream {
    /// A stream of these lanes, one datagram each in turn, as fast as it leaves.
    #[must_use]
    pub fn new(name: &str, lanes: Vec<Lane>) -> Stream {
        let weight = lanes.len() as f64;
        Stream {
            name: name.to_owned(),
            lanes,
            schedule: None,
            train: 1,
            weight,
            burst: 1,
        }
    }
}

impl Plan {
    /// A plan of one sender, one receiver, ten seconds after one of warm-up, that sends and receives these.
    #[must_use]
    pub fn of_flows(
        workload: &str,
        target: &str,
        streams: Vec<Stream>,
        receive_sockets: Vec<ReceiveSocket>,
    ) -> Plan {
        let flows = Flows {
            streams,
            receive_sockets,
            ..Flows::default()
        };
        Plan::new(workload, target, Work::Flows(flows))
    }

    pub(super) fn new(workload: &str, target: &str, work: Work) -> Plan {
        Plan {
            workload: workload.to_owned(),
            target: target.to_owned(),
            latency_is: "one way".to_owned(),
            settings: BTreeMap::new(),
            warm_up: Duration::from_secs(1),
            duration: Duration::from_secs(10),
            linger: Duration::from_millis(500),
            senders: 1,
            receivers: 1,
            gso: false,
            silence: Duration::from_secs(3),
            server_pid: None,
            memory: None,
            payload_key: None,
            stopper: Stopper::new(),
            work,
            closed: None,
        }
    }

    /// Sends by this schedule, regardless of responses (an open loop); streams share it by their weights. For
    /// `allocate` it says when cycles start.
    pub fn set_schedule(&mut self, schedule: &Schedule) {
        self.closed = None;
        match &mut self.work {
            Work::Churn(churn) => churn.schedule = Some(schedule.clone()),
            Work::Sip(sip) => sip.schedule = Some(schedule.clone()),
            Work::Flows(flows) => {
                let weights: f64 = flows.streams.iter().map(|stream| stream.weight).sum();
                for stream in flows
                    .streams
                    .iter_mut()
                    .filter(|stream| stream.weight > 0.0)
                {
                    let share = schedule.scaled(stream.weight / weights);
                    let burst = schedule.burst().max(stream.burst);
                    stream.schedule = Some(share.with_burst(burst));
                }
            }
        }
    }

    /// Sends as fast as it leaves.
    pub fn flat_out(&mut self) {
        self.closed = None;
        match &mut self.work {
            Work::Churn(churn) => churn.schedule = None,
            Work::Sip(sip) => sip.schedule = None,
            Work::Flows(flows) => {
                for stream in flows
                    .streams
                    .iter_mut()
                    .filter(|stream| stream.weight > 0.0)
                {
                    stream.schedule = None;
                }
            }
        }
    }

    /// Keeps `window` requests in flight: the next leaves when one is answered, or given up after a second. Latencies
    /// then hide stalls, as with every client that waits for each response.
    pub fn close_loop(&mut self, window: u32) {
        self.flat_out();
        self.closed = Some(Closed {
            window,
            timeout: CLOSED_TIMEOUT,
        });
    }

    /// Lets each lane send this many datagrams in a row.
    pub fn set_train(&mut self, train: u64) {
        if let Work::Flows(flows) = &mut self.work {
            for stream in &mut flows.streams {
                stream.train = train.max(1);
            }
        }
    }

    /// Sends per second after the warm-up, if there is a schedule.
    pub(super) fn offered_rate(&self) -> Option<f64> {
        let (from, to) = (self.warm_up, self.warm_up + self.duration);
        let seconds = self.duration.as_secs_f64().max(1e-9);
        let rate = |schedule: &Schedule| (schedule.due(to) - schedule.due(from)) as f64 / seconds;
        match &self.work {
            Work::Churn(churn) => churn.schedule.as_ref().map(rate),
            Work::Sip(sip) => sip.schedule.as_ref().map(rate),
            Work::Flows(flows) => flows
                .streams
                .iter()
                .map(|stream| stream.schedule.as_ref().map(rate))
                .sum(),
        }
    }

    /// What decides when the next send is due.
    pub(super) fn pace(&self) -> Pace {
        match (&self.work, self.closed, self.offered_rate()) {
            (_, Some(_), _) => Pace::Closed,
            (_, None, Some(_)) => Pace::Open,
            // Without a schedule these keep a window.
            (Work::Sip(_) | Work::Churn(_), None, None) => Pace::Closed,
            (Work::Flows(_), None, None) => Pace::FlatOut,
        }
    }

    /// What the peers of this process have dropped so far.
    pub(super) fn dropped_by_peers(&self) -> u64 {
        match &self.work {
            Work::Flows(flows) => flows.dropped_by_peers(),
            Work::Churn(_) | Work::Sip(_) => 0,
        }
    }

    /// How clients reach the server; `None` for SIP, which says so itself.
    pub(super) fn via(&self) -> Option<&Via> {
        match &self.work {
            Work::Flows(flows) => Some(&flows.via),
            Work::Churn(churn) => Some(churn.via()),
            Work::Sip(_) => None,
        }
    }

    /// What the report calls the parts of the latencies.
    pub(super) fn part_names(&self) -> Vec<String> {
        match &self.work {
            Work::Churn(churn) => churn.steps(),
            Work::Sip(sip) => sip.part_names(),
            Work::Flows(flows) => {
                let names = flows.streams.iter().map(|stream| stream.name.clone());
                names.collect()
            }
        }
    }

    /// Puts back what a thread had taken.
    pub(super) fn take_back(&mut self, lanes: Vec<Vec<Lane>>, receive_sockets: Vec<ReceiveSocket>) {
        let Work::Flows(flows) = &mut self.work else {
            return;
        };
        for (stream, lanes) in flows.streams.iter_mut().zip(lanes) {
            stream.lanes.extend(lanes);
            stream.lanes.sort_by_key(|lane| lane.flow);
        }
        flows.receive_sockets.extend(receive_sockets);
    }

    pub(super) fn check(&self) -> Result<(), PlanError> {
        if self.senders == 0 || self.receivers == 0 {
            return Err(PlanError::NoThreads);
        }
        if self.closed.is_some_and(|closed| closed.window == 0) {
            return Err(PlanError::NoWindow);
        }
        let Work::Flows(flows) = &self.work else {
            return Ok(());
        };
        let empty = flows.streams.iter().any(|stream| stream.lanes.is_empty());
        if flows.streams.is_empty() || empty || flows.receive_sockets.is_empty() {
            return Err(PlanError::Empty);
        }
        if flows.count() > 1 << 24 {
            return Err(PlanError::TooManyFlows(flows.count()));
        }
        if self.closed.is_some() && (flows.one_sided || self.latency_is != ROUND_TRIP) {
            return Err(PlanError::NoAnswers);
        }
        Ok(())
    }
}

/// What latencies are when the sender itself gets the response.
pub(super) const ROUND_TRIP: &str = "round trip";

impl Flows {
    /// The highest flow number and one.
    pub(super) fn count(&self) -> u32 {
        let lanes = self.streams.iter().flat_map(|stream| &stream.lanes);
        lanes.map(|lane| lane.flow + 1).max().unwrap_or(0)
    }

    /// How many datagrams the peers of this process have dropped so far. They do not count as loss of the server.
    pub(super) fn dropped_by_peers(&self) -> u64 {
        let peers = self.peers.iter().map(Peer::snapshot);
        let drops = peers.map(|all| all.get(Counter::Overflow) + all.get(Counter::NotSent));
        drops.sum()
    }

    /// The first flow of each stream.
    pub(super) fn starts(&self) -> Vec<u32> {
        let first = |stream: &Stream| stream.lanes.first().map_or(0, |lane| lane.flow);
        self.streams.iter().map(first).collect()
    }
}

/// Deals `items` out to `count` hands, one after the other.
pub(super) fn distribute<T>(items: Vec<T>, count: usize) -> Vec<Vec<T>> {
    let mut hands: Vec<Vec<T>> = (0..count).map(|_| Vec::new()).collect();
    for (index, item) in items.into_iter().enumerate() {
        hands[index % count].push(item);
    }
    hands
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::measure::Rate;

    fn stream(weight: f64, burst: u64) -> Stream {
        Stream {
            weight,
            burst,
            ..Stream::new("one", Vec::new())
        }
    }

    fn schedules(plan: &Plan) -> Vec<Option<Schedule>> {
        let Work::Flows(flows) = &plan.work else {
            return Vec::new();
        };
        let streams = flows.streams.iter();
        streams.map(|stream| stream.schedule.clone()).collect()
    }

    #[test]
    fn streams_share_a_rate_by_weight_and_keep_their_nature() {
        let mut pinned = stream(0.0, 1);
        pinned.schedule = Some(Schedule::constant(Rate(7.0)));
        let streams = vec![stream(1.0, 1), stream(3.0, 8), pinned];
        let mut plan = Plan::of_flows("test", "nobody", streams, Vec::new());
        let of = |rate, burst| Some(Schedule::constant(Rate(rate)).with_burst(burst));
        plan.set_schedule(&Schedule::constant(Rate(100.0)).with_burst(4));
        assert_eq!(schedules(&plan), [of(25.0, 4), of(75.0, 8), of(7.0, 1)]);
        plan.set_schedule(&Schedule::constant(Rate(200.0)));
        assert_eq!(schedules(&plan), [of(50.0, 1), of(150.0, 8), of(7.0, 1)]);
        plan.flat_out();
        assert_eq!(schedules(&plan), [None, None, of(7.0, 1)]);
    }

    #[test]
    fn a_window_is_shared_without_remainder() {
        let closed = Closed {
            window: 7,
            timeout: CLOSED_TIMEOUT,
        };
        let parts: Vec<u32> = (0..3).map(|index| closed.part(index, 3).window).collect();
        assert_eq!(parts, [3, 2, 2]);
    }
}
