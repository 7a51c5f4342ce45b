//! A socket that marks what it sends with a TOS byte, and reports the marks of what it receives.

use io::{
    Events, Interest, Poller, RecvBatch, SendOptions, SendQueue, SendTo, UdpOptions, UdpSocket,
};
use std::cell::RefCell;
use std::net::SocketAddr;
use std::time::Duration;

pub(crate) struct Marked {
    socket: UdpSocket,
    poller: Poller,
    tos: u8,
    buffers: RefCell<(RecvBatch, SendQueue)>,
}

impl Marked {
    pub(crate) fn new(address: SocketAddr, tos: u8) -> Marked {
        let socket = UdpSocket::bind(address, &UdpOptions::default()).expect("a socket");
        let poller = Poller::new().expect("epoll");
        poller.add(&socket, 0, Interest::Read).expect("watched");
        let buffers = (
            RecvBatch::new(1, 2048),
            SendQueue::new(&SendOptions::default()),
        );
        Marked {
            socket,
            poller,
            tos,
            buffers: RefCell::new(buffers),
        }
    }

    pub(crate) fn local(&self) -> SocketAddr {
        self.socket.local_addr()
    }

    pub(crate) fn send(&self, datagram: &[u8], to: SocketAddr) {
        let queue = &mut self.buffers.borrow_mut().1;
        let to = SendTo {
            tos: self.tos,
            ..SendTo::new(&self.socket, to)
        };
        queue.start().push_copied(&to, datagram);
    }

    /// Sends datagrams of one length (the last may be shorter) as one train, where the kernel can.
    pub(crate) fn send_train(&self, datagrams: &[Vec<u8>], to: SocketAddr) {
        let queue = &mut self.buffers.borrow_mut().1;
        let bytes: Vec<u8> = datagrams.concat();
        let stride = datagrams[0].len();
        let mut out = queue.start();
        out.push_strided(&SendTo::new(&self.socket, to), &bytes, stride, 0..stride);
        if datagrams.last().is_some_and(Vec::is_empty) {
            out.push_copied(&SendTo::new(&self.socket, to), b"");
        }
    }

    /// The next datagram, where it is from and its mark.
    pub(crate) fn receive(&self) -> (Vec<u8>, SocketAddr, u8) {
        let timeout = Some(Duration::from_secs(5));
        let ready = self
            .poller
            .wait(&mut Events::with_capacity(1), timeout)
            .expect("epoll");
        assert_eq!(ready, 1, "nothing came");
        let batch = &mut self.buffers.borrow_mut().0;
        batch.clear();
        self.socket.recv_one(0, batch).expect("readable");
        let datagram = batch.get(0).expect("one");
        (datagram.bytes.to_vec(), datagram.from, datagram.tos)
    }
}
