//! The media relay rtpengine rewrites session descriptions for workers, over its ng protocol. Workers never wait for
//! it.
//!
//! ```text
//!  worker ── request ──> bounded queue ──> one thread ── UDP ──> rtpengine
//!    ^                                         │
//!    └──────── a message in its mailbox <──────┘
//! ```
//!
//! The thread begins with the first request. Its socket is connected, so the kernel drops datagrams of other
//! addresses. Each request has a random cookie, which the response repeats.

mod bencode;
mod thread;

use super::lookups::LateResult;
use crate::worker::{Mailboxes, WorkerMessage};
use sip_server::proxy::{MediaCommand, MediaRequest, MediaResult, Proxy, Stats};
use std::cell::Cell;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use thread::{COOKIE_BYTES, RtpengineRequest};
use tokio::sync::mpsc;

/// Requests that may wait for the thread.
const MAX_QUEUED_REQUESTS: usize = 4096;

/// The outcomes for an offer or an answer that the media relay must rewrite, in the order of
/// [`SipCounters::media_requests`](super::SipCounters::media_requests).
pub const MEDIA_OUTCOMES: [&str; 5] = ["rewritten", "refused", "no_answer", "full", "malformed"];

/// After a log line, further lines of the same kind are left out for this time.
const WARNING_INTERVAL: Duration = Duration::from_secs(10);

/// Limits log lines of one kind.
#[derive(Debug, Default)]
struct LogLimit(Cell<Option<Instant>>);

impl LogLimit {
    /// Whether a line may be logged now.
    fn permits(&self) -> bool {
        let is_quiet = self
            .0
            .get()
            .is_some_and(|at| at.elapsed() < WARNING_INTERVAL);
        if !is_quiet {
            self.0.set(Some(Instant::now()));
        }
        !is_quiet
    }
}

/// The outcome of a request to the media relay.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MediaOutcome {
    /// The session description; empty for a command without one.
    Done(Box<[u8]>),
    /// An error, or a response without a session description.
    Refused,
    /// There was no response in time.
    NoAnswer,
    /// The socket has not sent the request. It is too long, for example.
    NotSent,
    /// Too many requests wait.
    Full,
}

/// The outcome of a request, for the worker that has sent it.
#[derive(Debug)]
pub(crate) struct MediaResponse {
    /// The number of the [`MediaRelay`].
    relay: u64,
    number: u64,
    /// No message in the proxy waits for it.
    is_deletion: bool,
    outcome: MediaOutcome,
}

/// The handle of the thread that sends requests. Clones share the thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct RtpEngine {
    requests: Arc<OnceLock<mpsc::Sender<RtpengineRequest>>>,
    has_failed: Arc<AtomicBool>,
}

impl RtpEngine {
    /// Sends a request. Its `reply` is called on the thread.
    fn send(&self, request: RtpengineRequest) -> Result<(), MediaOutcome> {
        let requests = match self.requests.get() {
            Some(requests) => requests,
            None => {
                let (sender, receiver) = mpsc::channel(MAX_QUEUED_REQUESTS);
                if let Err(error) = thread::spawn(receiver) {
                    // The next request tries again.
                    if !self.has_failed.swap(true, Ordering::Relaxed) {
                        tracing::error!(%error, "cannot start the thread that asks rtpengine");
                    }
                    return Err(MediaOutcome::NoAnswer);
                }
                // If another worker was faster, this thread ends at once.
                self.requests.get_or_init(|| sender)
            }
        };
        requests.try_send(request).map_err(|_| MediaOutcome::Full)
    }
}

/// The media relay of one worker.
#[derive(Debug)]
pub(super) struct MediaRelay {
    /// No other media relay of this process has this number. So a late response to an earlier proxy of the worker is
    /// not for this one.
    number: u64,
    engine: RtpEngine,
    address: Option<SocketAddr>,
    /// Counters in the order of [`MEDIA_OUTCOMES`].
    outcomes: [u64; MEDIA_OUTCOMES.len()],
    malformed: LogLimit,
}

impl MediaRelay {
    pub(super) fn new(engine: RtpEngine, address: Option<SocketAddr>) -> MediaRelay {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        MediaRelay {
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            engine,
            address,
            outcomes: [0; MEDIA_OUTCOMES.len()],
            malformed: LogLimit::default(),
        }
    }

    pub(super) fn set_address(&mut self, address: Option<SocketAddr>) {
        self.address = address;
    }

    /// Counts of [`MEDIA_OUTCOMES`], with requests that the proxy has not sent, or that had no result in time.
    pub(super) fn outcomes(&self, stats: &Stats) -> [u64; MEDIA_OUTCOMES.len()] {
        let [rewritten, refused, no_answer, full, malformed] = self.outcomes;
        [
            rewritten,
            refused,
            no_answer + stats.media_silent,
            full + stats.media_full,
            malformed,
        ]
    }

    /// Sends the requests of a proxy. Their outcomes are messages to this worker.
    pub(super) fn send(&self, proxy: &mut Proxy, worker: u16, mailboxes: &Mailboxes) {
        while let Some(request) = proxy.poll_media() {
            let Some(mailbox) = mailboxes.mailbox(worker) else {
                continue;
            };
            let (relay, number) = (self.number, request.number);
            let is_deletion = request.command == MediaCommand::Delete;
            let reply = move |outcome| {
                if is_deletion && outcome != MediaOutcome::Full {
                    return;
                }
                let response = LateResult::Media(MediaResponse {
                    relay,
                    number,
                    is_deletion,
                    outcome,
                });
                // If the mailbox is full, the response is lost. After `media_time`, the proxy handles the request as a
                // failure of the relay.
                drop(mailbox.post(WorkerMessage::LateSipResult(Box::new(response))));
            };
            let sent = match self.address {
                Some(address) => self.engine.send(RtpengineRequest {
                    address,
                    datagram: datagram(&request),
                    ends_session: is_deletion && request.from_tag.is_empty(),
                    session: request.session,
                    has_sdp: !is_deletion,
                    since: Instant::now(),
                    reply: Box::new(reply.clone()),
                }),
                None => Err(MediaOutcome::NoAnswer),
            };
            if let Err(outcome) = sent {
                reply(outcome);
            }
        }
    }

    /// The number of a request and the session description, if there is one; `None` if an earlier proxy has sent it.
    pub(super) fn read<'r>(&self, response: &'r MediaResponse) -> Option<(u64, Option<&'r [u8]>)> {
        let sdp = match &response.outcome {
            MediaOutcome::Done(sdp) => Some(&sdp[..]),
            _ => None,
        };
        (response.relay == self.number).then_some((response.number, sdp))
    }

    /// Counts the outcome of a request, which was this result for the proxy. The proxy has counted late ones before.
    pub(super) fn count(&mut self, response: &MediaResponse, result: MediaResult) {
        let place = match (&response.outcome, result) {
            (_, MediaResult::Late) if !response.is_deletion => return,
            (_, MediaResult::Malformed) => 4,
            (MediaOutcome::Done(_), _) => 0,
            (MediaOutcome::Refused, _) => 1,
            (MediaOutcome::NoAnswer | MediaOutcome::NotSent, _) => 2,
            (MediaOutcome::Full, _) => 3,
        };
        self.outcomes[place] += 1;
        if let (MediaOutcome::Done(sdp), MediaResult::Malformed) = (&response.outcome, result)
            && self.malformed.permits()
        {
            let bytes = sdp.len();
            tracing::warn!(bytes, "with a result of rtpengine, a message is not valid");
        }
    }
}

/// The request in the ng protocol, with room for its cookie.
fn datagram(request: &MediaRequest) -> Vec<u8> {
    use bencode::{entry, list};
    use sip_server::proxy::MediaProfile;
    let is_offer = request.command == MediaCommand::Offer;
    let receiver = Some(request.receiver).filter(|_| is_offer);
    let mut to = Vec::with_capacity(request.sdp.len() + 512);
    to.resize(COOKIE_BYTES, b'0');
    to.extend_from_slice(b" d");
    match receiver {
        Some(MediaProfile::Rtp) => entry(&mut to, "ICE", b"remove"),
        Some(_) => entry(&mut to, "ICE", b"force"),
        None => {}
    }
    if matches!(
        receiver,
        Some(MediaProfile::SrtpDtls | MediaProfile::WebRtc)
    ) {
        list(&mut to, "SDES", &["off"]);
    }
    entry(&mut to, "call-id", &request.session);
    let command: &[u8] = match request.command {
        MediaCommand::Offer => b"offer",
        MediaCommand::Answer => b"answer",
        MediaCommand::Delete => b"delete",
    };
    entry(&mut to, "command", command);
    let is_of_browser =
        request.sender == MediaProfile::WebRtc && request.command != MediaCommand::Delete;
    if is_of_browser {
        // A browser that has no candidate yet writes the address 0.0.0.0. That is no hold: its direction attributes are
        // right.
        list(&mut to, "flags", &["original-sendrecv"]);
    }
    if !request.from_tag.is_empty() {
        entry(&mut to, "from-tag", &request.from_tag);
    }
    if request.command != MediaCommand::Delete {
        let replaced = ["origin", "session-connection", "zero-address"];
        let count = if is_of_browser { 3 } else { 2 };
        list(&mut to, "replace", &replaced[..count]);
        match receiver {
            Some(MediaProfile::Rtp) => list(&mut to, "rtcp-mux", &["demux"]),
            Some(MediaProfile::WebRtc) => list(&mut to, "rtcp-mux", &["offer"]),
            _ => {}
        }
        entry(&mut to, "sdp", &request.sdp);
    }
    if let Some(tag) = &request.to_tag {
        entry(&mut to, "to-tag", tag);
    }
    if let Some(receiver) = receiver {
        let protocol: &[u8] = match receiver {
            MediaProfile::Rtp | MediaProfile::RtpWithIce => b"RTP/AVP",
            MediaProfile::SrtpSdes => b"RTP/SAVP",
            MediaProfile::SrtpDtls => b"UDP/TLS/RTP/SAVP",
            MediaProfile::WebRtc => b"UDP/TLS/RTP/SAVPF",
        };
        entry(&mut to, "transport-protocol", protocol);
    }
    if request.begins_dialog {
        // The first offer of a session and all its answers have this branch. So a second To tag gets the ports of the
        // first one, which the callee has. Without the branch, rtpengine opens new ports, which neither side has.
        entry(&mut to, "via-branch", b"0");
    }
    to.push(b'e');
    to
}

#[cfg(test)]
mod tests {
    use super::*;
    use sip_server::proxy::MediaProfile;

    fn request(
        command: MediaCommand,
        receiver: MediaProfile,
        to_tag: Option<&str>,
    ) -> MediaRequest {
        MediaRequest {
            number: 7,
            command,
            session: b"c@h".as_slice().into(),
            from_tag: b"f".as_slice().into(),
            to_tag: to_tag.map(|tag| tag.as_bytes().into()),
            begins_dialog: false,
            receiver,
            sender: match receiver {
                MediaProfile::Rtp => MediaProfile::WebRtc,
                _ => MediaProfile::Rtp,
            },
            sdp: b"v=0".as_slice().into(),
        }
    }

    /// The text after the cookie.
    fn text_of(request: &MediaRequest) -> String {
        let mut bytes = datagram(request).split_off(COOKIE_BYTES);
        assert_eq!(bytes.remove(0), b' ');
        String::from_utf8(bytes).expect("text")
    }

    fn text(command: MediaCommand, receiver: MediaProfile, to_tag: Option<&str>) -> String {
        text_of(&request(command, receiver, to_tag))
    }

    #[test]
    fn the_first_offer_and_its_answers_have_one_branch_and_a_session_is_deleted_without_tags() {
        for command in [MediaCommand::Offer, MediaCommand::Answer] {
            let first = MediaRequest {
                begins_dialog: true,
                ..request(command, MediaProfile::Rtp, Some("t"))
            };
            assert!(text_of(&first).ends_with("10:via-branch1:0e"));
        }
        let whole = MediaRequest {
            from_tag: Box::default(),
            ..request(MediaCommand::Delete, MediaProfile::Rtp, None)
        };
        assert_eq!(text_of(&whole), "d7:call-id3:c@h7:command6:deletee");
    }

    #[test]
    fn offers_say_what_their_side_needs_and_answers_do_not() {
        let replace = "7:replacel6:origin18:session-connectione";
        let web = "7:replacel6:origin18:session-connection12:zero-addresse";
        let flags = "5:flagsl17:original-sendrecve";
        assert_eq!(
            text(MediaCommand::Offer, MediaProfile::Rtp, None),
            format!(
                "d3:ICE6:remove7:call-id3:c@h7:command5:offer{flags}8:from-tag1:f{web}\
                 8:rtcp-muxl5:demuxe3:sdp3:v=018:transport-protocol7:RTP/AVPe"
            )
        );
        assert_eq!(
            text(MediaCommand::Offer, MediaProfile::WebRtc, Some("t")),
            format!(
                "d3:ICE5:force4:SDESl3:offe7:call-id3:c@h7:command5:offer8:from-tag1:f{replace}\
                 8:rtcp-muxl5:offere3:sdp3:v=06:to-tag1:t18:transport-protocol17:UDP/TLS/RTP/SAVPFe"
            )
        );
        assert_eq!(
            text(MediaCommand::Answer, MediaProfile::Rtp, Some("t")),
            format!(
                "d7:call-id3:c@h7:command6:answer{flags}8:from-tag1:f{web}3:sdp3:v=06:to-tag1:te"
            )
        );
        assert_eq!(
            text(MediaCommand::Delete, MediaProfile::RtpWithIce, Some("t")),
            "d7:call-id3:c@h7:command6:delete8:from-tag1:f6:to-tag1:te"
        );
        let protocols = [
            (MediaProfile::RtpWithIce, "7:RTP/AVPe"),
            (MediaProfile::SrtpSdes, "8:RTP/SAVPe"),
            (MediaProfile::SrtpDtls, "16:UDP/TLS/RTP/SAVPe"),
        ];
        for (side, end) in protocols {
            let offer = text(MediaCommand::Offer, side, None);
            assert!(
                offer.ends_with(end) && offer.contains("3:ICE5:force"),
                "{offer}"
            );
        }
    }

    #[test]
    fn a_response_to_an_earlier_proxy_of_the_worker_is_not_for_this_one() {
        let earlier = MediaRelay::new(RtpEngine::default(), None);
        let mut relay = MediaRelay::new(RtpEngine::default(), None);
        let response = |relay: u64| MediaResponse {
            relay,
            number: 7,
            is_deletion: false,
            outcome: MediaOutcome::Done(b"v=0".as_slice().into()),
        };
        assert_eq!(relay.read(&response(earlier.number)), None);
        let own = response(relay.number);
        assert_eq!(relay.read(&own), Some((7, Some(&b"v=0"[..]))));
        relay.count(&own, MediaResult::Taken);
        let stats = Stats {
            media_full: 2,
            media_silent: 3,
            ..Stats::default()
        };
        assert_eq!(relay.outcomes(&stats), [1, 0, 3, 2, 0]);
    }

    #[test]
    fn each_result_counts_once() {
        let mut relay = MediaRelay::new(RtpEngine::default(), None);
        let own = relay.number;
        let response = |is_deletion, outcome| MediaResponse {
            relay: own,
            number: 7,
            is_deletion,
            outcome,
        };
        let done = || MediaOutcome::Done(b"v=0".as_slice().into());
        let all = [
            response(false, done()),
            response(false, MediaOutcome::Refused),
            response(false, MediaOutcome::NoAnswer),
            response(false, MediaOutcome::NotSent),
            response(false, MediaOutcome::Full),
        ];
        // The proxy has counted these when their time was over.
        for late in &all {
            relay.count(late, MediaResult::Late);
        }
        assert_eq!(relay.outcomes(&Stats::default()), [0; 5]);
        for taken in &all {
            relay.count(taken, MediaResult::Taken);
        }
        assert_eq!(relay.outcomes(&Stats::default()), [1, 1, 2, 1, 0]);
        // No message waits for a deletion.
        let deletion = response(true, MediaOutcome::Full);
        relay.count(&deletion, MediaResult::Late);
        relay.count(&response(false, done()), MediaResult::Malformed);
        assert_eq!(relay.outcomes(&Stats::default()), [1, 1, 2, 2, 1]);
    }

    #[test]
    fn a_kind_of_message_is_logged_once_in_ten_seconds() {
        let limit = LogLimit::default();
        assert!(limit.permits() && !limit.permits());
        let earlier = Instant::now().checked_sub(WARNING_INTERVAL);
        limit
            .0
            .set(Some(earlier.expect("a machine that is up for seconds")));
        assert!(limit.permits() && !limit.permits());
    }
}
