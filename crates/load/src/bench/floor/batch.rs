//! recvmmsg and sendmmsg, with or without GRO and GSO.

use std::io;

use ::io::{
    Events, Interest, Outbox, Poller, RecvBatch, SendOptions, SendQueue, SendTo, UdpSocket,
};

use super::{BATCH, BATCH_LIMIT, binding_answer, flow_of, open_all, options, payload_of};
use crate::bench::layout;

const LISTENER: u64 = 0;

/// Relays until the process is killed.
pub(super) fn run(flows: u16, offload: bool) -> io::Result<()> {
    let (listener, relays) = open_all(flows, |address, is_listener| {
        UdpSocket::bind(address, &options(is_listener, offload))
    })?;
    let poller = Poller::new()?;
    poller.add(&listener, LISTENER, Interest::Read)?;
    for (token, relay) in (1..).zip(&relays) {
        poller.add(relay, token, Interest::Read)?;
    }
    let (mut batch, mut queue) = storage(offload);
    let mut events = Events::with_capacity(64);
    loop {
        poller.wait(&mut events, None)?;
        batch.clear();
        for event in events.iter() {
            // Tokens were counted up from 1 beside the flows.
            let socket = if event.token == LISTENER {
                &listener
            } else {
                &relays[event.token as usize - 1]
            };
            // Nothing to read, or no slot left: another turn comes.
            let _ = socket.recv(event.token, &mut batch);
        }
        let mut out = queue.start();
        for datagrams in batch.iter() {
            match datagrams.tag {
                LISTENER => from_client(&listener, &relays, datagrams, &mut out),
                token => from_peer(&listener, token as usize - 1, datagrams, &mut out),
            }
        }
        out.flush();
    }
}

fn storage(offload: bool) -> (RecvBatch, SendQueue) {
    let slot = if offload {
        RecvBatch::LARGE
    } else {
        RecvBatch::SMALL
    };
    let queue = SendQueue::new(&SendOptions {
        gso: offload,
        capacity: BATCH_LIMIT,
        ..SendOptions::default()
    });
    // More room than a batch that keeps up needs is of use only if what meets in it can be sent together.
    let most = if offload { BATCH_LIMIT } else { BATCH };
    (RecvBatch::new(most, slot), queue)
}

fn from_client<'a>(
    listener: &'a UdpSocket,
    relays: &'a [UdpSocket],
    datagrams: ::io::Datagrams<'a>,
    out: &mut Outbox<'_, 'a>,
) {
    let client = datagrams.from;
    let flow = flow_of(client, relays.len());
    for datagram in datagrams.segments() {
        match flow.and_then(|flow| Some((flow, payload_of(datagram)?))) {
            Some((flow, payload)) => {
                // Flows are numbered with 16 bits.
                out.push(
                    &SendTo::new(&relays[flow], layout::peer(flow as u16)),
                    payload,
                );
            }
            None => {
                let mut answer = [0; 64];
                if let Some(answer) = binding_answer(datagram, client, &mut answer) {
                    out.push_copied(&SendTo::new(listener, client), answer);
                }
            }
        }
    }
}

fn from_peer<'a>(
    listener: &'a UdpSocket,
    flow: usize,
    datagrams: ::io::Datagrams<'a>,
    out: &mut Outbox<'_, 'a>,
) {
    // Flows are numbered with 16 bits.
    let flow = flow as u16;
    if datagrams.from != layout::peer(flow) {
        return;
    }
    let to = SendTo::new(listener, layout::client(flow));
    for payload in datagrams.segments() {
        let mut header = [0; 4];
        header[0..2].copy_from_slice(&layout::CHANNEL.to_be_bytes());
        // A datagram is shorter than 64 KiB.
        header[2..4].copy_from_slice(&(payload.len() as u16).to_be_bytes());
        out.push_prefixed(&to, &header, payload, 0);
    }
}
