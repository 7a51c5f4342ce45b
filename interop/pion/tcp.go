package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"
)

// How many bytes a stream carries, each way.
const streamBytes = 4 << 20

// A connection that can be closed in one direction.
type stream interface {
	net.Conn
	CloseWrite() error
}

// A peer that sends everything back, and closes once it has read the end.
func streamPeer(address string) (net.Listener, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
	return listener, nil
}

// Bytes that differ from place to place.
func pattern() []byte {
	all := make([]byte, streamBytes)
	for at := range all {
		all[at] = byte(uint64(at) * 0x9e3779b97f4a7c15 >> 56)
	}
	return all
}

// Writes the pattern, closes this direction, and expects the pattern and the end.
func exchangeStream(out, in stream) error {
	sent := make(chan error, 1)
	go func() {
		_, err := out.Write(pattern())
		sent <- errors.Join(err, out.CloseWrite())
	}()
	if err := in.SetReadDeadline(time.Now().Add(4 * testTimeout)); err != nil {
		return err
	}
	received, err := io.ReadAll(in)
	if err := errors.Join(err, <-sent); err != nil {
		return err
	}
	if !bytes.Equal(received, pattern()) {
		return fmt.Errorf("%d of %d bytes came back, or others", len(received), streamBytes)
	}
	return nil
}

// RFC 6062: the client connects to a peer, through the server.
func dialPeer(t target, server, peerAddress string) (string, error) {
	peer, err := streamPeer(peerAddress)
	if err != nil {
		return "", err
	}
	defer peer.Close()
	c, err := connect(t, "tcp!"+server, 0)
	if err != nil {
		return "", err
	}
	defer c.Close()
	allocation, err := c.AllocateTCP()
	if err != nil {
		return "", err
	}
	defer allocation.Close()
	conn, err := allocation.Dial("tcp", peer.Addr().String())
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := allocation.Dial("tcp", peer.Addr().String()); err == nil || !strings.Contains(err.Error(), "446") {
		return "", fmt.Errorf("a second connection: not refused with 446 but: %w", err)
	}
	data := conn.(stream)
	return allocation.Addr().String(), exchangeStream(data, data)
}

// RFC 6062: a peer connects to the client, through the server.
func acceptPeer(t target) (string, error) {
	c, err := connect(t, "tcp!"+t.v4, 0)
	if err != nil {
		return "", err
	}
	defer c.Close()
	allocation, err := c.AllocateTCP()
	if err != nil {
		return "", err
	}
	defer allocation.Close()
	if err := c.CreatePermission(&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)}); err != nil {
		return "", err
	}
	peer, err := net.DialTimeout("tcp", allocation.Addr().String(), testTimeout)
	if err != nil {
		return "", err
	}
	defer peer.Close()
	if err := allocation.SetDeadline(time.Now().Add(testTimeout)); err != nil {
		return "", err
	}
	conn, err := allocation.AcceptTCP()
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if conn.RemoteAddr().String() != peer.LocalAddr().String() {
		return "", fmt.Errorf("the peer is %s, not %s", conn.RemoteAddr(), peer.LocalAddr())
	}
	data, far := conn.(stream), peer.(stream)
	return peer.LocalAddr().String(), errors.Join(exchangeStream(data, far), exchangeStream(far, data))
}
