package main

import (
	"net"

	"github.com/pion/stun/v3"
)

// A socket that mends one thing in what pion v5.0.12 sends: it puts REQUESTED-ADDRESS-FAMILY behind MESSAGE-INTEGRITY,
// where RFC 8489 §14.5 has a server ignore it, so that a client would never get an IPv6 relay. Here such a request is
// written anew, with the attribute in front and the integrity computed over it. All else passes as it is.
type reorderingSocket struct {
	net.PacketConn
	user, password string
}

func (s *reorderingSocket) WriteTo(datagram []byte, to net.Addr) (int, error) {
	if mended, ok := s.mend(datagram); ok {
		if _, err := s.PacketConn.WriteTo(mended, to); err != nil {
			return 0, err
		}
		return len(datagram), nil
	}
	return s.PacketConn.WriteTo(datagram, to)
}

func (s *reorderingSocket) mend(datagram []byte) ([]byte, bool) {
	old := &stun.Message{Raw: append([]byte(nil), datagram...)}
	if !stun.IsMessage(datagram) || old.Decode() != nil || old.Type != stun.NewType(stun.MethodAllocate, stun.ClassRequest) {
		return nil, false
	}
	var realm stun.Realm
	if !old.Contains(stun.AttrMessageIntegrity) || realm.GetFrom(old) != nil {
		return nil, false
	}
	setters := []stun.Setter{stun.NewTransactionIDSetter(old.TransactionID), old.Type}
	for _, attribute := range old.Attributes {
		if attribute.Type != stun.AttrMessageIntegrity && attribute.Type != stun.AttrFingerprint {
			setters = append(setters, attribute)
		}
	}
	setters = append(setters, stun.NewLongTermIntegrity(s.user, realm.String(), s.password), stun.Fingerprint)
	mended, err := stun.Build(setters...)
	if err != nil {
		return nil, false
	}
	return mended.Raw, true
}
