"""Drives aioice's TURN client against a server and prints one line per case: "ok NAME: DETAIL" or "FAIL NAME: REASON".

Everything is on the loopback addresses of this machine and bounded in time.
"""

import argparse
import asyncio
import ssl
import sys

from aioice import stun, turn

# How many messages each exchange sends, from each side.
MESSAGES = 1000
# How many may be in flight at once: fewer than the receive queue of a UDP socket holds.
WINDOW = 32
# No response on a loopback address takes this long.
TEST_TIMEOUT = 20
# What opens the way for an exchange; it may arrive more than once.
PROBE = b"probe"


class Received(asyncio.DatagramProtocol):
    """What comes out of a relay, or to a peer's socket."""

    def __init__(self):
        self.queue = asyncio.Queue()
        self.closed = asyncio.get_running_loop().create_future()

    def datagram_received(self, data, address):
        self.queue.put_nowait((data, address))

    def error_received(self, error):
        self.queue.put_nowait((error, None))

    def connection_lost(self, error):
        if not self.closed.done():
            self.closed.set_result(error)


class Echo(asyncio.DatagramProtocol):
    """A peer that sends everything back."""

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


class Target:
    """A server, and how to reach it."""

    def __init__(self, options):
        self.options = options
        # The server's certificate is verified, for the address too.
        self.tls = ssl.create_default_context(cafile=options.ca)

    async def allocate(self, transport, host, password=None):
        return await turn.create_turn_endpoint(
            Received,
            (host, self.options.port),
            self.options.user,
            password or self.options.password,
            ssl=self.tls if transport == "tls" else None,
            transport="udp" if transport == "udp" else "tcp",
        )


def text(label, number):
    """One message: of every length up to 1,200 bytes, and different from every other."""
    return f"{label} {number} ".encode() + b"x" * (number * 7 % 1170)


async def exchange(send, receiver, expected_from, label):
    """Sends the messages; expects each once, in order and unchanged."""
    sent = 0
    for number in range(MESSAGES):
        while sent < MESSAGES and sent - number < WINDOW:
            send(text(label, sent))
            sent += 1
        data, address = PROBE, None
        while data == PROBE:
            data, address = await receiver.queue.get()
        if isinstance(data, Exception):
            raise data
        if address != expected_from:
            raise ValueError(f"message {number} came from {address}, not {expected_from}")
        if data != text(label, number):
            raise ValueError(f"message {number} came as {data[:40]}")


async def close(allocation):
    transport, protocol = allocation
    transport.close()
    await protocol.closed


async def echo(target, transport, host):
    loop = asyncio.get_running_loop()
    peer, _ = await loop.create_datagram_endpoint(Echo, local_addr=("127.0.0.1", 0))
    address = peer.get_extra_info("sockname")
    allocation = await target.allocate(transport, host)
    relay, received = allocation
    await exchange(lambda data: relay.sendto(data, address), received, address, "echo")
    await close(allocation)
    peer.close()
    return "{}:{}".format(*relay.get_extra_info("sockname"))


async def permit(from_, to, address):
    """Sends probes until one arrives: the receiver has bound its channel only after its own first message."""
    while to[1].queue.empty():
        from_[0].sendto(PROBE, address)
        await asyncio.sleep(0.05)


async def relay_to_relay(target, transport, host):
    left = await target.allocate(transport, host)
    right = await target.allocate(transport, host)
    ends = [left[0].get_extra_info("sockname"), right[0].get_extra_info("sockname")]
    await asyncio.gather(permit(left, right, ends[1]), permit(right, left, ends[0]))
    await asyncio.gather(
        exchange(lambda data: left[0].sendto(data, ends[1]), right[1], ends[0], "left"),
        exchange(lambda data: right[0].sendto(data, ends[0]), left[1], ends[1], "right"),
    )
    await close(left)
    await close(right)
    return "{}:{} and {}:{}".format(*ends[0], *ends[1])


async def wrong_password(target, transport, host):
    try:
        allocation = await target.allocate(transport, host, password="wrong")
    except stun.TransactionFailed as error:
        code = error.response.error_code
        if code != 401:
            raise ValueError(f"refused with {code}, not 401") from error
        return "refused with 401"
    await close(allocation)
    raise ValueError("the server accepts a wrong password")


async def wrong_name(target, _transport, host):
    """The certificate is not valid for every name: otherwise the cases above prove nothing."""
    try:
        await turn.create_turn_endpoint(
            Received, (host, target.options.port), "nobody", "nothing", ssl=ssl.create_default_context(), transport="tcp"
        )
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    raise ValueError("a certificate of an unknown authority was accepted")


V4, V6 = "127.0.0.1", "::1"
CASES = [
    ("echo, UDP", echo, "udp", V4),
    ("echo, TCP", echo, "tcp", V4),
    ("echo, TCP over IPv6", echo, "tcp", V6),
    ("echo, TLS", echo, "tls", V4),
    ("echo, TLS over IPv6", echo, "tls", V6),
    ("relay to relay, TCP", relay_to_relay, "tcp", V4),
    ("relay to relay, TLS", relay_to_relay, "tls", V4),
    ("wrong password, TCP", wrong_password, "tcp", V4),
    ("unknown authority, TLS", wrong_name, "tls", V4),
]


async def run(options):
    target = Target(options)
    failed = False
    for name, case, transport, host in CASES:
        try:
            detail = await asyncio.wait_for(case(target, transport, host), TEST_TIMEOUT)
            print(f"ok {name}: {detail}", flush=True)
        except Exception as error:
            print(f"FAIL {name}: {error!r}".replace("\n", " "), flush=True)
            failed = True
    return failed


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--user", required=True)
    parser.add_argument("--password", required=True)
    parser.add_argument("--ca", required=True, help="the authority that signed the server's certificate")
    sys.exit(asyncio.run(run(parser.parse_args())))
