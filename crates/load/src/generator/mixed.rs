//! The `mixed` workload: very many calls, as conversations over a relay look. Every call sends audio both ways all the
//! time. Some send video, each picture a train of datagrams.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use io::UdpSocket;
use stun::ChannelNumber;

use super::frame::Frames;
use super::plan::{Flows, Work};
use super::setup::{Framing, OptionsError, Setup, SetupError, TurnClients, reserve_descriptors};
use super::{Lane, Plan, ReceiveSocket, Stopper, Stream, local_peers};
use crate::client::ClientParts;
use crate::measure::{Payload, Rate, Schedule};

/// What the `mixed` workload needs beyond the plan's own settings.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MixedOptions {
    /// The clients and their server.
    pub turn: TurnClients,
    /// Calls: an allocation each, with one peer in this process; at least 1.
    pub calls: u32,
    /// Each way of every call.
    pub audio: Media,
    /// Each way of those calls that have video.
    pub video: Media,
    /// Share of the calls that have video, 0 to 1.
    pub video_share: f64,
    /// The peers' address; `None` is the one from which this machine reaches the relayed addresses.
    pub ip: Option<IpAddr>,
    /// Sockets of the peers, which the calls share; at least 1.
    pub sockets: u32,
}

/// A stream of trains.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Media {
    /// Trains per second, more than 0.
    pub rate: Rate,
    /// Datagrams of a train; at least 1.
    pub train: u64,
    /// Payload of each in bytes, [`Payload::MIN`] to [`Payload::MAX`].
    pub size: usize,
}

impl Media {
    /// Audio: 50 packets a second, 120 bytes each.
    pub const AUDIO: Media = Media {
        rate: Rate(50.0),
        train: 1,
        size: 120,
    };
    /// Video: 30 pictures a second, each of eight datagrams of 1,100 bytes.
    pub const VIDEO: Media = Media {
        rate: Rate(30.0),
        train: 8,
        size: 1100,
    };

    fn check(&self) -> Result<(), OptionsError> {
        if !(Payload::MIN..=Payload::MAX).contains(&self.size) {
            return Err(OptionsError::Size(self.size));
        }
        if self.train == 0 {
            return Err(OptionsError::NoTrain);
        }
        if self.rate.0.is_nan() || self.rate.0 <= 0.0 {
            return Err(OptionsError::Rate(self.rate.0));
        }
        Ok(())
    }

    /// Lanes that each send at this rate, in turn.
    fn stream(&self, name: &str, lanes: Vec<Lane>) -> Stream {
        let datagrams = self.rate.0 * self.train as f64 * lanes.len() as f64;
        let mut stream = Stream::new(name, lanes);
        stream.schedule = Some(Schedule::constant(Rate(datagrams)).with_burst(self.train));
        (stream.train, stream.burst) = (self.train, self.train);
        stream.weight = datagrams;
        stream
    }
}

impl MixedOptions {
    /// 100 calls, a tenth of them with video, peers on 16 sockets.
    #[must_use]
    pub fn new(turn: TurnClients) -> MixedOptions {
        MixedOptions {
            turn,
            calls: 100,
            audio: Media::AUDIO,
            video: Media::VIDEO,
            video_share: 0.1,
            ip: None,
            sockets: 16,
        }
    }

    fn check(&self) -> Result<(), OptionsError> {
        self.audio.check()?;
        self.video.check()?;
        if self.calls == 0 {
            return Err(OptionsError::NoClients);
        }
        if self.sockets == 0 {
            return Err(OptionsError::NoPeers);
        }
        if !(0.0..=1.0).contains(&self.video_share) {
            return Err(OptionsError::Share(self.video_share));
        }
        let flows = u64::from(self.calls) * 4;
        if flows > 1 << 24 {
            return Err(OptionsError::TooManyFlows(flows));
        }
        Ok(())
    }

    /// Whether a call has video. Such calls are spread evenly over all calls.
    fn has_video(&self, call: u32) -> bool {
        let before = (f64::from(call) * self.video_share).floor();
        (f64::from(call + 1) * self.video_share).floor() > before
    }
}

/// Sets up the calls and adds them to a plan, with the rates of their media. A schedule of the plan scales all rates
/// alike. Latencies are one way.
///
/// # Errors
/// [`SetupError`]; nothing stays allocated then.
pub fn mixed(options: &MixedOptions, stopper: &Stopper) -> Result<Plan, SetupError> {
    options.check()?;
    reserve_descriptors(u64::from(options.calls) + u64::from(options.sockets))?;
    let mut setup = Setup::allocate(&options.turn, options.calls, stopper)?;
    let relayed = setup.relayed_all()?;
    let ip = local_peers::address(options.ip, relayed[0])?;
    let peers = local_peers::sockets(ip, options.sockets)?;
    let peer_of = |call: u32| peers[call as usize % peers.len()].local_addr();
    setup.connect(Framing::Channels, |call| vec![peer_of(call)], stopper)?;
    let channels = (0..options.calls).map(|call| setup.channel(call, peer_of(call)));
    let calls = Calls {
        channels: channels.collect(),
        clients: setup.into_parts(),
        relayed,
        peers,
    };
    let flows = Flows {
        streams: calls.streams(options),
        receive_sockets: calls.into_receive_sockets(),
        via: options.turn.via.clone(),
        ..Flows::default()
    };
    let target = options.turn.target();
    let mut plan = Plan::new("mixed", &target, Work::Flows(flows));
    plan.stopper = stopper.clone();
    describe(&mut plan, options);
    Ok(plan)
}

/// Both ends of every call, by the call's number.
struct Calls {
    clients: Vec<ClientParts>,
    relayed: Vec<SocketAddr>,
    /// To the peer of each.
    channels: Vec<Option<ChannelNumber>>,
    /// Shared by the calls, which take turns.
    peers: Vec<Arc<UdpSocket>>,
}

impl Calls {
    /// Audio of all calls and video of some, each in both directions.
    fn streams(&self, options: &MixedOptions) -> Vec<Stream> {
        let all = 0..options.calls;
        let seen = all.clone().filter(|&call| options.has_video(call));
        let mut streams = Vec::new();
        let mut flow = 0;
        for (name, media, calls) in [
            ("audio", options.audio, all.collect::<Vec<_>>()),
            ("video", options.video, seen.collect()),
        ] {
            let frames = Frames::new(Framing::Channels, media.size);
            let numbered = |first: u32| calls.iter().copied().zip(first..);
            let up = numbered(flow).map(|(call, flow)| self.up(&frames, call, flow));
            let up: Vec<Lane> = up.collect();
            flow += up.len() as u32;
            let down = numbered(flow).map(|(call, flow)| self.down(&frames, call, flow));
            let down: Vec<Lane> = down.collect();
            flow += down.len() as u32;
            if !calls.is_empty() {
                streams.push(media.stream(&format!("{name} up"), up));
                streams.push(media.stream(&format!("{name} down"), down));
            }
        }
        streams
    }

    fn peer(&self, call: u32) -> &Arc<UdpSocket> {
        &self.peers[call as usize % self.peers.len()]
    }

    fn up(&self, frames: &Frames, call: u32, flow: u32) -> Lane {
        let peer = self.peer(call).local_addr();
        let (client, channel) = (&self.clients[call as usize], self.channels[call as usize]);
        let lane = frames.lane(client, flow, peer, channel);
        lane.with_receiver(&self.peer(call).clone().into())
    }

    fn down(&self, frames: &Frames, call: u32, flow: u32) -> Lane {
        let relayed = self.relayed[call as usize];
        let lane = frames.peer_lane(self.peer(call).clone(), flow, relayed);
        lane.with_receiver(&self.clients[call as usize].socket)
    }

    fn into_receive_sockets(self) -> Vec<ReceiveSocket> {
        let clients = self.clients.into_iter().map(ReceiveSocket::turn);
        clients
            .chain(self.peers.into_iter().map(ReceiveSocket::raw))
            .collect()
    }
}

fn describe(plan: &mut Plan, options: &MixedOptions) {
    let media = |media: &Media| {
        let Media { rate, train, size } = media;
        format!("{}/s of {train} x {size} B each way", rate.0)
    };
    for (name, value) in [
        ("calls", options.calls.to_string()),
        ("audio", media(&options.audio)),
        ("video", media(&options.video)),
        ("video share", options.video_share.to_string()),
        ("transport", options.turn.via.to_string()),
    ] {
        plan.settings.insert(name.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generator::Target;

    #[test]
    fn pictures_are_spread_over_the_calls() {
        let server = Target::admit("127.0.0.1:3478".parse().unwrap(), false).unwrap();
        let mut options = MixedOptions::new(TurnClients::new(server));
        for (share, expected) in [(0.0, 0), (0.1, 100), (0.25, 250), (1.0, 1000)] {
            options.video_share = share;
            let with: Vec<u32> = (0..1000).filter(|&call| options.has_video(call)).collect();
            assert_eq!(with.len(), expected, "{share}");
            let gap = with.windows(2).map(|pair| pair[1] - pair[0]).max();
            assert!(gap.is_none_or(|gap| f64::from(gap) <= 1.0 / share + 1.0));
        }
    }

    #[test]
    fn options_that_make_no_sense_are_refused() {
        let server = Target::admit("127.0.0.1:3478".parse().unwrap(), false).unwrap();
        let good = MixedOptions::new(TurnClients::new(server));
        assert_eq!(good.check(), Ok(()));
        let refused = |change: fn(&mut MixedOptions)| {
            let mut options = good.clone();
            change(&mut options);
            options.check().unwrap_err()
        };
        assert_eq!(refused(|o| o.calls = 0), OptionsError::NoClients);
        assert_eq!(refused(|o| o.sockets = 0), OptionsError::NoPeers);
        assert_eq!(refused(|o| o.video_share = 1.5), OptionsError::Share(1.5));
        assert_eq!(refused(|o| o.audio.size = 5), OptionsError::Size(5));
        assert_eq!(refused(|o| o.video.train = 0), OptionsError::NoTrain);
        assert_eq!(
            refused(|o| o.audio.rate = Rate(0.0)),
            OptionsError::Rate(0.0)
        );
    }
}
