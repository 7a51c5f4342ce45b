//! SIP connections that neither side has closed: this machine has ended them.

use crate::common::netns::skipped;
use crate::sip_client::{Stream, options, serve, status};
use hairpin_server::Running;
use hairpin_server::sip::{SipCounters, SipSettings};
use std::process::Command;
use std::time::{Duration, Instant};

/// A busy machine takes its time.
const TEST_TIMEOUT: Duration = Duration::from_secs(60);

fn wait(server: &Running, what: &str, is: impl Fn(&SipCounters) -> bool) -> SipCounters {
    let begun = Instant::now();
    loop {
        let counters = server.stats().sip();
        if is(&counters) {
            return counters;
        }
        assert!(begun.elapsed() < TEST_TIMEOUT, "{what}: {counters:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn a_connection_that_somebody_ends_on_this_machine_is_counted_as_aborted() {
    let server = serve(SipSettings::default(), 1);
    let mut client = Stream::new(server.sip_listeners()[0]);
    client.send(options("one", "TCP", "").as_bytes());
    assert_eq!(status(&client.answer()), 200);
    let (near, far) = (server.sip_listeners()[0].port(), client.local().port());
    let filter = format!("sport = :{near} and dport = :{far}");
    let mut ss = Command::new("ss");
    let output = ss.args(["-K", "-H", "-t", "-n", &filter]).output();
    let killed = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    if !killed.is_ok_and(|text| text.contains(&far.to_string())) {
        return skipped(&"ss ends no connection: no such program, privilege or kernel");
    }
    let sip = wait(&server, "it has ended", |sip| sip.connections == 0);
    assert_eq!((sip.closed_aborted, sip.closed_by_peer), (1, 0));
}
