//! Starting the threads of a run.

use std::io as stdio;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use io::Offloads;

use super::churn::Churn;
use super::closed::Loop;
use super::end::End;
use super::live::LiveSecond;
use super::plan::{Closed, Flows, Plan, Work, distribute};
use super::receiver::Receiver;
use super::sender::{Sender, SenderStream};
use super::share::Share;
use super::shared::Shared;
use super::sip::Sip;
use super::{Lane, ReceiveSocket};
use crate::measure::Counters;

/// The threads of a run, and what they write.
#[derive(Debug)]
pub(super) struct RunThreads {
    pub(super) shared: Arc<Shared>,
    /// The counters of each thread.
    pub(super) counters: Arc<[Counters]>,
    pub(super) live: Arc<[Mutex<LiveSecond>]>,
    /// The threads that end by themselves when the time is up.
    pub(super) senders: Vec<JoinHandle<End>>,
    /// The threads that must be notified.
    pub(super) receivers: Vec<JoinHandle<End>>,
}

impl RunThreads {
    /// No threads yet.
    pub(super) fn new(plan: &Plan) -> RunThreads {
        let threads = plan.senders + plan.receivers;
        RunThreads {
            shared: Arc::new(Shared::new(plan)),
            counters: (0..threads).map(|_| Counters::new()).collect(),
            live: (0..threads).map(|_| Mutex::default()).collect(),
            senders: Vec::new(),
            receivers: Vec::new(),
        }
    }

    /// Starts all threads; lanes and sockets move from the plan to the threads.
    pub(super) fn start(&mut self, plan: &mut Plan) -> stdio::Result<()> {
        let senders = plan.senders;
        let (timing, memory) = (plan.timing(), plan.memory);
        match (&mut plan.work, plan.closed) {
            (Work::Flows(flows), None) => {
                let offloads = Offloads::probe();
                // UDP_SEGMENT is for datagrams.
                let gso = plan.gso && offloads.gso && !flows.via.has_connections();
                let gso = gso.then_some(offloads.max_segments);
                self.start_receivers(flows, plan.receivers, memory)?;
                self.start_senders(flows, senders, gso)
            }
            (Work::Flows(flows), Some(closed)) => {
                self.start_loops(flows, senders, (closed, memory))
            }
            (Work::Churn(churn), closed) => self.start_churn(churn, senders, closed),
            (Work::Sip(sip), closed) => {
                sip.gso = plan.gso;
                self.start_sip(sip, senders, closed, || Shared::of(&timing))
            }
        }
    }

    fn start_senders(
        &mut self,
        flows: &mut Flows,
        senders: usize,
        gso: Option<usize>,
    ) -> stdio::Result<()> {
        let streams = flows.streams.len();
        let mut tracks: Vec<Vec<SenderStream>> = (0..senders).map(|_| Vec::new()).collect();
        for (number, stream) in flows.streams.iter_mut().enumerate() {
            let lanes = std::mem::take(&mut stream.lanes);
            let all = lanes.len();
            let hands = distribute(lanes, senders.min(all));
            for (index, lanes) in hands.into_iter().enumerate() {
                let share = Share::new(index, senders.min(all), all, stream.train);
                tracks[index].push(SenderStream::new(
                    number,
                    lanes,
                    stream.schedule.clone(),
                    share,
                ));
            }
        }
        tracks.retain(|tracks| !tracks.is_empty());
        for (index, tracks) in tracks.into_iter().enumerate() {
            let sender = Sender::new(tracks, streams, gso);
            let thread = self.spawn(format!("sender-{index}"), |shared, counters, _| {
                sender.run(shared, counters)
            })?;
            self.senders.push(thread);
        }
        Ok(())
    }

    fn start_receivers(
        &mut self,
        flows: &mut Flows,
        receivers: usize,
        memory: Option<usize>,
    ) -> stdio::Result<()> {
        let (ledger, starts) = (flows.expected_flows(), flows.starts());
        let receive_sockets = std::mem::take(&mut flows.receive_sockets);
        let hands = receivers.min(receive_sockets.len());
        for (index, receive_sockets) in distribute(receive_sockets, hands).into_iter().enumerate() {
            let receiver = Receiver::new(receive_sockets, ledger.clone(), starts.clone(), memory)?;
            let thread = self.spawn(format!("receiver-{index}"), |shared, counters, live| {
                receiver.run(shared, counters, live)
            })?;
            self.receivers.push(thread);
        }
        Ok(())
    }

    fn start_loops(
        &mut self,
        flows: &mut Flows,
        workers: usize,
        (closed, memory): (Closed, Option<usize>),
    ) -> stdio::Result<()> {
        let (count, starts, streams) = (flows.count(), flows.starts(), flows.streams.len());
        let ledger = flows.expected_flows();
        let receive_sockets = std::mem::take(&mut flows.receive_sockets);
        let workers = workers
            .min(receive_sockets.len())
            .min(closed.window as usize);
        let hands = distribute(receive_sockets, workers);
        let mut lanes = lanes_by_socket(flows, &hands);
        lanes.retain(|lanes| !lanes.is_empty());
        for (index, (receive_sockets, lanes)) in hands.into_iter().zip(lanes).enumerate() {
            let receiver = Receiver::new(receive_sockets, ledger.clone(), starts.clone(), memory)?;
            let settings = closed.part(index, workers);
            let worker = Loop::new(receiver, lanes, streams, count, settings);
            let thread = self.spawn(format!("worker-{index}"), |shared, counters, live| {
                worker.run(shared, counters, live)
            })?;
            self.senders.push(thread);
        }
        Ok(())
    }

    fn start_churn(
        &mut self,
        churn: &Churn,
        workers: usize,
        closed: Option<Closed>,
    ) -> stdio::Result<()> {
        for (index, worker) in churn.workers(workers, closed)?.into_iter().enumerate() {
            let thread = self.spawn(format!("worker-{index}"), |shared, counters, live| {
                worker.run(shared, counters, live)
            })?;
            self.senders.push(thread);
        }
        Ok(())
    }

    fn start_sip(
        &mut self,
        sip: &Sip,
        workers: usize,
        closed: Option<Closed>,
        times: impl FnOnce() -> Shared,
    ) -> stdio::Result<()> {
        let workers = sip.workers(workers, closed, &self.shared)?;
        // Connections and registrations took their time; the schedule begins after them.
        self.shared = Arc::new(times());
        for (index, worker) in workers.into_iter().enumerate() {
            let thread = self.spawn(format!("worker-{index}"), |shared, counters, live| {
                worker.run(shared, counters, live)
            })?;
            self.senders.push(thread);
        }
        Ok(())
    }

    fn spawn(
        &mut self,
        name: String,
        work: impl FnOnce(&Shared, &Counters, &Mutex<LiveSecond>) -> End + Send + 'static,
    ) -> stdio::Result<JoinHandle<End>> {
        let place = self.senders.len() + self.receivers.len();
        let (shared, counters) = (self.shared.clone(), self.counters.clone());
        let live = self.live.clone();
        let builder = std::thread::Builder::new().name(name.clone());
        builder.spawn(move || End {
            name,
            place,
            ..work(&shared, &counters[place], &live[place])
        })
    }
}

/// The lanes of each hand of taps, with their streams: answers come back to the socket they were asked from.
fn lanes_by_socket(flows: &mut Flows, hands: &[Vec<ReceiveSocket>]) -> Vec<Vec<(usize, Lane)>> {
    let mut owners = std::collections::HashMap::new();
    for (hand, receive_sockets) in hands.iter().enumerate() {
        for receive_socket in receive_sockets {
            owners.insert(receive_socket.socket.identity(), hand);
        }
    }
    let mut lanes: Vec<Vec<(usize, Lane)>> = hands.iter().map(|_| Vec::new()).collect();
    for (number, stream) in flows.streams.iter_mut().enumerate() {
        for lane in std::mem::take(&mut stream.lanes) {
            let owner = owners.get(&lane.socket.identity());
            lanes[owner.copied().unwrap_or(0)].push((number, lane));
        }
    }
    lanes
}
