//! The client against this project's server engine, on tokio's paused clock: hours take milliseconds.

mod lab;

use std::net::SocketAddr;
use std::time::Duration;

use client::turn::client::{Advice, Event, RequestError};
use client::{AllocateError, Allocation, Client, Ended, PermitError, RecvError, Server};
use hairpin_client as client;
use lab::{Lab, PASSWORD, USER};

const LONG: Duration = Duration::from_secs(25 * 60);

fn server() -> Server {
    Server::new(Lab::server_address()).credentials(USER, PASSWORD)
}

fn peer(port: u16) -> SocketAddr {
    ([203, 0, 113, 77], port).into()
}

async fn allocated(lab: &Lab, port: u16) -> (Client, Allocation) {
    let client = Client::over(lab.link(port), server()).expect("randomness");
    let allocation = client.allocate().await.expect("an allocation");
    (client, allocation)
}

/// Waits, and fails the test rather than hang.
async fn soon<T>(what: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(60), what)
        .await
        .expect("in time")
}

#[tokio::test(start_paused = true)]
async fn an_allocation_a_permission_and_a_channel_outlive_their_lifetimes() {
    let lab = Lab::start();
    let (client, allocation) = allocated(&lab, 1).await;
    assert_eq!(allocation.lifetime(), Duration::from_secs(600));
    let bound = soon(allocation.peer(peer(1))).await.expect("a channel");
    // Another address, so that the channel's permission is not its permission.
    let other: SocketAddr = ([203, 0, 113, 78], 2).into();
    soon(allocation.permit(&[other.ip()]))
        .await
        .expect("a permission");
    let mut buffer = [0; 64];
    for _ in 0..3 {
        bound.send(b"by channel").await.expect("sent");
        assert_eq!(soon(bound.recv(&mut buffer)).await, Ok(10));
        allocation
            .try_send_to(b"by indication", other)
            .expect("permitted");
        assert_eq!(
            soon(allocation.recv_from(&mut buffer)).await,
            Ok((13, other))
        );
        tokio::time::sleep(LONG).await;
    }
    assert_eq!(lab.allocations(), 1);
    assert_eq!(client.stats().received, 6);
    soon(allocation.close()).await.expect("closed");
    assert_eq!(lab.allocations(), 0);
}

#[tokio::test(start_paused = true)]
async fn without_keep_alive_everything_lapses() {
    let lab = Lab::start();
    let link = lab.link(1);
    let client = Client::over(link, server().keep_alive(false)).expect("randomness");
    let allocation = client.allocate().await.expect("an allocation");
    soon(allocation.permit(&[peer(1).ip()]))
        .await
        .expect("a permission");
    tokio::time::sleep(Duration::from_secs(301)).await;
    assert!(allocation.try_send_to(b"late", peer(1)).is_err());
    tokio::time::sleep(LONG).await;
    assert_eq!(allocation.ended(), Some(Ended::Expired));
    assert_eq!(lab.allocations(), 0);
}

#[tokio::test(start_paused = true)]
async fn sending_asks_for_a_permission_once() {
    let lab = Lab::start();
    let (_client, allocation) = allocated(&lab, 1).await;
    let mut buffer = [0; 64];
    soon(allocation.send_to(b"hello", peer(9)))
        .await
        .expect("sent");
    assert_eq!(
        soon(allocation.recv_from(&mut buffer)).await,
        Ok((5, peer(9)))
    );
    assert!(allocation.try_send_to(b"again", peer(9)).is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_peer_has_a_queue_of_its_own_and_a_full_queue_drops_and_counts() {
    let lab = Lab::start();
    let client = Client::over(lab.link(1), server().queue(4)).expect("randomness");
    let allocation = client.allocate().await.expect("an allocation");
    let one = soon(allocation.peer(peer(1))).await.expect("a channel");
    lab.flood(peer(1), allocation.relayed(), 10);
    lab.flood(peer(2), allocation.relayed(), 3);
    tokio::time::sleep(Duration::from_millis(1)).await;
    let stats = client.stats();
    assert_eq!((stats.received, stats.dropped), (7, 6));
    let mut buffer = [0; 1];
    for _ in 0..4 {
        assert_eq!(soon(one.recv(&mut buffer)).await, Ok(1));
    }
    assert_eq!(client.stats().truncated, 4);
    drop(one);
    assert_eq!(
        soon(allocation.recv_from(&mut buffer)).await,
        Ok((1, peer(2)))
    );
}

#[tokio::test(start_paused = true)]
async fn a_receive_that_is_cancelled_loses_nothing() {
    let lab = Lab::start();
    let (_client, allocation) = allocated(&lab, 1).await;
    soon(allocation.permit(&[peer(1).ip()]))
        .await
        .expect("a permission");
    let mut buffer = [0; 64];
    for _ in 0..10 {
        let wait = allocation.recv_from(&mut buffer);
        assert!(
            tokio::time::timeout(Duration::from_millis(1), wait)
                .await
                .is_err()
        );
    }
    lab.flood(peer(1), allocation.relayed(), 2);
    for number in 0..2u16 {
        assert_eq!(
            soon(allocation.recv_from(&mut buffer)).await,
            Ok((2, peer(1)))
        );
        assert_eq!(buffer[..2], number.to_be_bytes());
    }
}

#[tokio::test(start_paused = true)]
async fn an_allocation_that_nobody_waits_for_is_released() {
    let lab = Lab::start();
    let client = Client::over(lab.link(1), server()).expect("randomness");
    {
        let mut asked = Box::pin(client.allocate().into_future());
        // The first poll sends the request; then it is dropped.
        assert!(futures_now(asked.as_mut()).is_none());
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(lab.allocations(), 0);
    let allocation = soon(client.allocate().into_future())
        .await
        .expect("one that is waited for");
    assert_eq!(lab.allocations(), 1);
    drop(allocation);
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(lab.allocations(), 0, "dropping it releases it");
}

/// Polls once.
fn futures_now<F: Future>(future: std::pin::Pin<&mut F>) -> Option<F::Output> {
    match future.poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(output) => Some(output),
        std::task::Poll::Pending => None,
    }
}

#[tokio::test(start_paused = true)]
async fn a_five_tuple_has_one_allocation_and_then_another() {
    let lab = Lab::start();
    let (client, first) = allocated(&lab, 1).await;
    let second = client.allocate().await;
    assert!(matches!(second, Err(AllocateError::AlreadyAllocated)));
    let stale = first.clone();
    soon(first.close()).await.expect("closed");
    let second = soon(client.allocate().into_future())
        .await
        .expect("another");
    assert_eq!(stale.ended(), Some(Ended::Closed));
    assert!(matches!(
        stale.permit(&[peer(1).ip()]).await,
        Err(PermitError::Ended(_))
    ));
    drop(stale);
    assert_eq!(
        second.ended(),
        None,
        "an old handle does nothing to a new allocation"
    );
}

#[tokio::test(start_paused = true)]
async fn options_reach_the_server() {
    let lab = Lab::start();
    let client = Client::over(lab.link(1), server()).expect("randomness");
    let asked = client.allocate().dual().lifetime(Duration::from_secs(1200));
    let dual = soon(asked.into_future()).await.expect("dual");
    assert!(dual.relayed().is_ipv4() && dual.additional_relayed().is_some_and(|six| six.is_ipv6()));
    assert_eq!(dual.lifetime(), Duration::from_secs(1200));
    soon(dual.close()).await.expect("closed");
    let asked = client.allocate().even_port_and_next();
    let even = soon(asked.into_future()).await.expect("even");
    assert_eq!(even.relayed().port() % 2, 0);
    let token = even.reservation().expect("a token");
    let other = Client::over(lab.link(2), server()).expect("randomness");
    let next = soon(other.allocate().reserved(token).into_future())
        .await
        .expect("reserved");
    assert_eq!(next.relayed().port(), even.relayed().port() + 1);
}

#[tokio::test(start_paused = true)]
async fn wrong_credentials_are_an_error_of_the_operation() {
    let lab = Lab::start();
    let server = Server::new(Lab::server_address()).credentials(USER, "guessed");
    let client = Client::over(lab.link(1), server).expect("randomness");
    let refused = client.allocate().await.expect_err("refused");
    assert!(matches!(
        refused,
        AllocateError::Request {
            error: RequestError::WrongCredentials { .. },
            advice: Advice::GiveUp
        }
    ));
    let mapped = soon(client.binding()).await.expect("a Binding needs none");
    assert_eq!(mapped.address, client.local_addr().expect("an address"));
}

#[tokio::test(start_paused = true)]
async fn a_lost_server_ends_every_waiting_call() {
    let lab = Lab::start();
    let (_client, allocation) = allocated(&lab, 1).await;
    let peer = soon(allocation.peer(peer(1))).await.expect("a channel");
    lab.stop();
    let waiting = tokio::spawn(async move { peer.recv(&mut [0; 8]).await });
    let asked = allocation.permit(&[[203, 0, 113, 5].into()]).await;
    assert!(matches!(
        asked,
        Err(PermitError::Request(RequestError::TimedOut(_)))
    ));
    tokio::time::sleep(LONG).await;
    assert_eq!(
        waiting.await.expect("no panic"),
        Err(RecvError::Ended(Ended::Expired))
    );
    let mut events = Vec::new();
    while let Some(event) = allocation.event().await {
        events.push(event);
    }
    assert!(
        events
            .iter()
            .any(|event| matches!(event, Event::RefreshFailed(_)))
    );
    assert!(events.iter().any(|event| matches!(event, Event::Lost(_))));
}

#[tokio::test(start_paused = true)]
async fn no_task_is_left_when_the_handles_are_gone() {
    let lab = Lab::start();
    let tasks = || {
        tokio::runtime::Handle::current()
            .metrics()
            .num_alive_tasks()
    };
    let before = tasks();
    for stop in [false, true] {
        let (client, allocation) = allocated(&lab, 1 + u16::from(stop)).await;
        let peer = soon(allocation.peer(peer(1))).await.expect("a channel");
        assert_eq!(tasks(), before + 1);
        if stop {
            lab.stop();
        }
        drop((client, allocation));
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(tasks(), before + 1, "a peer keeps the allocation");
        drop(peer);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert_eq!(tasks(), before, "stopped server: {stop}");
    }
}
