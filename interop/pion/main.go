// Drives pion's TURN client against a server and prints one line for each case:
// "ok NAME: DETAIL" or "FAIL NAME: REASON". It ends with status 1 if a case failed.
//
// Everything is on the loopback addresses of this machine and bounded in time.
package main

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"github.com/pion/dtls/v3"
	"github.com/pion/turn/v5"
)

// How many datagrams each exchange sends, from each side.
const messages = 1000

// How many may be on their way at once: fewer than the receive queues of pion and of the kernel hold.
const window = 32

// No answer on a loopback address takes this long.
const testTimeout = 5 * time.Second

// A server and credentials for it.
type target struct {
	v4, v6         string
	user, password string
	// What the server's certificate must be signed by.
	authorities *x509.CertPool
}

type testCase struct {
	name string
	run  func(target) (string, error)
}

var cases = []testCase{
	{"binding, IPv4", func(t target) (string, error) { return binding(t, t.v4) }},
	{"binding, IPv6", func(t target) (string, error) { return binding(t, t.v6) }},
	{"echo, IPv4", func(t target) (string, error) { return echo(t, t.v4, turn.RequestedAddressFamilyIPv4) }},
	{"echo, IPv6", func(t target) (string, error) { return echo(t, t.v6, turn.RequestedAddressFamilyIPv6) }},
	{"echo, IPv6 relay for an IPv4 client", func(t target) (string, error) {
		return echo(t, t.v4, turn.RequestedAddressFamilyIPv6)
	}},
	{"relay to relay, IPv4", func(t target) (string, error) {
		return relayToRelay(t, t.v4, turn.RequestedAddressFamilyIPv4)
	}},
	{"relay to relay, IPv6", func(t target) (string, error) {
		return relayToRelay(t, t.v6, turn.RequestedAddressFamilyIPv6)
	}},
	{"binding, TCP", func(t target) (string, error) { return binding(t, "tcp!"+t.v4) }},
	{"binding, TLS", func(t target) (string, error) { return binding(t, "tls!"+t.v4) }},
	{"echo, TCP", func(t target) (string, error) {
		return echo(t, "tcp!"+t.v4, turn.RequestedAddressFamilyIPv4)
	}},
	// pion requests the family behind MESSAGE-INTEGRITY, where it is ignored: only IPv4 can be had without reorderingSocket.
	{"echo, TCP over IPv6", func(t target) (string, error) {
		return echo(t, "tcp!"+t.v6, turn.RequestedAddressFamilyIPv4)
	}},
	{"echo, TLS", func(t target) (string, error) {
		return echo(t, "tls!"+t.v4, turn.RequestedAddressFamilyIPv4)
	}},
	{"relay to relay, TLS", func(t target) (string, error) {
		return relayToRelay(t, "tls!"+t.v4, turn.RequestedAddressFamilyIPv4)
	}},
	{"echo, DTLS", func(t target) (string, error) {
		return echo(t, "dtls!"+t.v4, turn.RequestedAddressFamilyIPv4)
	}},
	{"TCP allocation, the client connects", func(t target) (string, error) {
		return dialPeer(t, t.v4, "127.0.0.1:0")
	}},
	{"TCP allocation over IPv6", func(t target) (string, error) {
		return dialPeer(t, t.v6, "127.0.0.1:0")
	}},
	{"TCP allocation, a peer connects", acceptPeer},
	{"permission before data", permission},
	{"wrong password", wrongPassword},
}

func main() {
	var t target
	flag.StringVar(&t.v4, "v4", "", "the server's IPv4 address and port")
	flag.StringVar(&t.v6, "v6", "", "the server's IPv6 address and port")
	flag.StringVar(&t.user, "user", "", "user name")
	flag.StringVar(&t.password, "password", "", "password")
	ca := flag.String("ca", "", "the authority that signed the server's certificate, a PEM file")
	flag.Parse()
	pem, err := os.ReadFile(*ca)
	t.authorities = x509.NewCertPool()
	if err != nil || !t.authorities.AppendCertsFromPEM(pem) {
		fmt.Fprintln(os.Stderr, "no certificate in", *ca, err)
		os.Exit(2)
	}
	status := 0
	for _, c := range cases {
		if detail, err := c.run(t); err != nil {
			fmt.Printf("FAIL %s: %s\n", c.name, strings.ReplaceAll(err.Error(), "\n", " "))
			status = 1
		} else {
			fmt.Printf("ok %s: %s\n", c.name, detail)
		}
	}
	os.Exit(status)
}

// A client with its own socket.
type client struct {
	*turn.Client
	socket net.PacketConn
}

func (c *client) Close() {
	c.Client.Close()
	c.socket.Close()
}

func connect(t target, server string, family turn.RequestedAddressFamily) (*client, error) {
	transport, server := split(server)
	socket, err := open(t, transport, server)
	if err != nil {
		return nil, err
	}
	c, err := turn.NewClient(&turn.ClientConfig{
		STUNServerAddr: server, TURNServerAddr: server,
		Username: t.user, Password: t.password,
		Conn:                   socket,
		RequestedAddressFamily: family,
	})
	if err == nil {
		err = c.Listen()
	}
	if err != nil {
		socket.Close()
		return nil, err
	}
	return &client{c, socket}, nil
}

// The transport before the exclamation mark, UDP if there is none, and the address after it.
func split(server string) (string, string) {
	if transport, address, found := strings.Cut(server, "!"); found {
		return transport, address
	}
	return "udp", server
}

// What the client sends and receives by.
func open(t target, transport, server string) (net.PacketConn, error) {
	switch transport {
	case "tcp":
		conn, err := net.DialTimeout("tcp", server, testTimeout)
		if err != nil {
			return nil, err
		}
		return turn.NewSTUNConn(conn), nil
	case "tls":
		config := &tls.Config{RootCAs: t.authorities, NextProtos: []string{"stun.turn"}}
		conn, err := tls.DialWithDialer(&net.Dialer{Timeout: testTimeout}, "tcp", server, config)
		if err != nil {
			return nil, err
		}
		return turn.NewSTUNConn(conn), nil
	}
	if transport == "dtls" {
		address, err := net.ResolveUDPAddr("udp", server)
		if err != nil {
			return nil, err
		}
		conn, err := dtls.Dial("udp", address, &dtls.Config{RootCAs: t.authorities, ServerName: "localhost"})
		if err != nil {
			return nil, err
		}
		return turn.NewSTUNConn(conn), nil
	}
	host, _, err := net.SplitHostPort(server)
	if err != nil {
		return nil, err
	}
	socket, err := net.ListenPacket("udp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	return &reorderingSocket{socket, t.user, t.password}, nil
}

func binding(t target, server string) (string, error) {
	c, err := connect(t, server, 0)
	if err != nil {
		return "", err
	}
	defer c.Close()
	mapped, err := c.SendBindingRequest()
	if err != nil {
		return "", err
	}
	if mapped.String() != c.socket.LocalAddr().String() {
		return "", fmt.Errorf("mapped address %s, but we sent from %s", mapped, c.socket.LocalAddr())
	}
	return mapped.String(), nil
}

// An allocation of a client of its own.
type allocation struct {
	net.PacketConn
	client *client
}

func allocate(t target, server string, family turn.RequestedAddressFamily) (*allocation, error) {
	c, err := connect(t, server, family)
	if err != nil {
		return nil, err
	}
	relayed, err := c.Allocate()
	if err != nil {
		c.Close()
		return nil, err
	}
	a := &allocation{relayed, c}
	if isIPv4 := relayed.LocalAddr().(*net.UDPAddr).IP.To4() != nil; isIPv4 != (family == turn.RequestedAddressFamilyIPv4) {
		return nil, errors.Join(fmt.Errorf("asked for another family than that of %s", relayed.LocalAddr()), a.Close())
	}
	return a, nil
}

// Close deletes the allocation with a Refresh of lifetime 0.
func (a *allocation) Close() error {
	defer a.client.Close()
	return a.PacketConn.Close()
}

// The loopback address of a relay's family: where its peers are.
func loopback(family turn.RequestedAddressFamily) string {
	if family == turn.RequestedAddressFamilyIPv6 {
		return "[::1]:0"
	}
	return "127.0.0.1:0"
}

// A peer that sends everything back; it ends when its socket is closed.
func echoPeer(family turn.RequestedAddressFamily) (net.PacketConn, error) {
	peer, err := net.ListenPacket("udp", loopback(family))
	if err != nil {
		return nil, err
	}
	go func() {
		buffer := make([]byte, 2048)
		for {
			n, from, err := peer.ReadFrom(buffer)
			if err != nil {
				return
			}
			if _, err := peer.WriteTo(buffer[:n], from); err != nil {
				return
			}
		}
	}()
	return peer, nil
}

// The text of one datagram: of every length up to 1,200 bytes, and different from every other.
func text(from string, number int) []byte {
	return []byte(fmt.Sprintf("%s %d %s", from, number, strings.Repeat("x", number*7%1170)))
}

func echo(t target, server string, family turn.RequestedAddressFamily) (string, error) {
	peer, err := echoPeer(family)
	if err != nil {
		return "", err
	}
	defer peer.Close()
	relayed, err := allocate(t, server, family)
	if err != nil {
		return "", err
	}
	// pion sends indications until its ChannelBind is answered, ChannelData from then on: both are in the thousand.
	err = exchange(relayed, relayed, peer.LocalAddr(), peer.LocalAddr(), "echo")
	return relayed.LocalAddr().String(), errors.Join(err, relayed.Close())
}

func relayToRelay(t target, server string, family turn.RequestedAddressFamily) (string, error) {
	left, err := allocate(t, server, family)
	if err != nil {
		return "", err
	}
	right, err := allocate(t, server, family)
	if err != nil {
		return "", errors.Join(err, left.Close())
	}
	// Both sides need the permission before the first datagram of the other.
	err = errors.Join(left.client.CreatePermission(right.LocalAddr()), right.client.CreatePermission(left.LocalAddr()))
	if err == nil {
		err = exchange(left, right, right.LocalAddr(), left.LocalAddr(), "left")
	}
	if err == nil {
		err = exchange(right, left, left.LocalAddr(), right.LocalAddr(), "right")
	}
	detail := fmt.Sprintf("%s and %s", left.LocalAddr(), right.LocalAddr())
	return detail, errors.Join(err, left.Close(), right.Close())
}

// Sends the messages out of one end to an address, and expects each once, in order and unchanged at the other end.
func exchange(out, in net.PacketConn, to, expectedFrom net.Addr, label string) error {
	buffer := make([]byte, 2048)
	sent := 0
	// The kernel may overtake the server's process at the moment when a channel is bound, so the order is not checked.
	waiting := make(map[string]bool)
	for received := 0; received < messages; received++ {
		for ; sent < messages && sent-received < window; sent++ {
			if _, err := out.WriteTo(text(label, sent), to); err != nil {
				return fmt.Errorf("message %d: %w", sent, err)
			}
			waiting[string(text(label, sent))] = true
		}
		if err := in.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
			return err
		}
		n, from, err := in.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("message %d did not come: %w", received, err)
		}
		if from.String() != expectedFrom.String() {
			return fmt.Errorf("message %d came from %s, not %s", received, from, expectedFrom)
		}
		if !waiting[string(buffer[:n])] {
			return fmt.Errorf("message %d is damaged or came twice: %q", received, buffer[:min(n, 40)])
		}
		delete(waiting, string(buffer[:n]))
	}
	return nil
}

// A peer reaches the client only after CreatePermission, and then by Data indication: there is no channel.
func permission(t target) (string, error) {
	peer, err := net.ListenPacket("udp", loopback(turn.RequestedAddressFamilyIPv4))
	if err != nil {
		return "", err
	}
	defer peer.Close()
	relayed, err := allocate(t, t.v4, turn.RequestedAddressFamilyIPv4)
	if err != nil {
		return "", err
	}
	return "dropped before, delivered after", errors.Join(permissionCase(peer, relayed), relayed.Close())
}

func permissionCase(peer net.PacketConn, relayed *allocation) error {
	if _, err := peer.WriteTo([]byte("before"), relayed.LocalAddr()); err != nil {
		return err
	}
	// The answer of a later transaction: by then the server has seen the datagram, or will see it after the permission
	// and in vain, because "after" is what must come first.
	if err := expectNothing(relayed); err != nil {
		return err
	}
	if err := relayed.client.CreatePermission(peer.LocalAddr()); err != nil {
		return err
	}
	if _, err := peer.WriteTo([]byte("after"), relayed.LocalAddr()); err != nil {
		return err
	}
	buffer := make([]byte, 2048)
	if err := relayed.SetReadDeadline(time.Now().Add(testTimeout)); err != nil {
		return err
	}
	n, from, err := relayed.ReadFrom(buffer)
	if err != nil {
		return err
	}
	if string(buffer[:n]) != "after" || from.String() != peer.LocalAddr().String() {
		return fmt.Errorf("got %q from %s", buffer[:n], from)
	}
	return nil
}

func expectNothing(relayed net.PacketConn) error {
	if err := relayed.SetReadDeadline(time.Now().Add(300 * time.Millisecond)); err != nil {
		return err
	}
	buffer := make([]byte, 2048)
	if n, from, err := relayed.ReadFrom(buffer); err == nil {
		return fmt.Errorf("%q came from %s without a permission", buffer[:n], from)
	}
	return nil
}

func wrongPassword(t target) (string, error) {
	t.password += "?"
	relayed, err := allocate(t, t.v4, turn.RequestedAddressFamilyIPv4)
	if err == nil {
		return "", errors.Join(errors.New("the server let us in"), relayed.Close())
	}
	if !strings.Contains(err.Error(), "401") {
		return "", fmt.Errorf("not refused with 401 but: %w", err)
	}
	return "refused with 401", nil
}
