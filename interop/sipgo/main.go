// User agents of sipgo that register at a server and call each other through its proxy. Each case prints one line:
// `ok NAME: DETAIL` or `FAIL NAME: REASON`.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/emiago/sipgo"
	"github.com/emiago/sipgo/sip"
)

const domain = "example.org"

// Longer than any case takes.
const limit = 20 * time.Second

// A media description that nobody uses.
const description = "v=0\r\no=- 1 1 IN IP4 127.0.0.1\r\ns=-\r\nc=IN IP4 127.0.0.1\r\nt=0 0\r\nm=audio 9 RTP/AVP 0\r\n"

var (
	server    = flag.String("server", "", "address of the server")
	transport = flag.String("transport", "udp", "udp or tcp")
	password  = flag.String("password", "", "of every user")
)

// phone is a user agent of one user: it calls, and what it does when it is called follows from its name.
type phone struct {
	user    string
	client  *sipgo.Client
	calls   *sipgo.DialogClientCache
	called  *sipgo.DialogServerCache
	contact sip.ContactHeader
	// What has come: the methods of requests within dialogs.
	came chan string
}

func newPhone(user string) (*phone, error) {
	filter := sip.WithTransportLayerReadFilter(withoutOverloadControl)
	ua, err := sipgo.NewUA(
		sipgo.WithUserAgent(user),
		sipgo.WithUserAgentHostname(domain),
		sipgo.WithUserAgentTransportLayerOptions(filter),
	)
	if err != nil {
		return nil, err
	}
	srv, err := sipgo.NewServer(ua)
	if err != nil {
		return nil, err
	}
	address, err := listen(ua, srv)
	if err != nil {
		return nil, err
	}
	options := []sipgo.ClientOption{sipgo.WithClientHostname("127.0.0.1"), sipgo.WithClientNAT()}
	if *transport == "udp" {
		// Requests leave from the socket that the Contact names.
		options = append(options, sipgo.WithClientAddr(address), sipgo.WithClientConnectionAddr(address))
	}
	client, err := sipgo.NewClient(ua, options...)
	if err != nil {
		return nil, err
	}
	p := &phone{user: user, client: client, came: make(chan string, 16)}
	contact := "sip:" + user + "@" + address + ";transport=" + *transport
	if err := sip.ParseUri(contact, &p.contact.Address); err != nil {
		return nil, err
	}
	p.calls = sipgo.NewDialogClientCache(client, p.contact)
	p.called = sipgo.NewDialogServerCache(client, p.contact)
	srv.OnInvite(p.invited)
	srv.OnAck(func(req *sip.Request, tx sip.ServerTransaction) {
		_ = p.called.ReadAck(req, tx)
	})
	srv.OnInfo(func(req *sip.Request, tx sip.ServerTransaction) {
		p.came <- "INFO"
		_ = tx.Respond(sip.NewResponseFromRequest(req, 200, "OK", nil))
	})
	srv.OnBye(func(req *sip.Request, tx sip.ServerTransaction) {
		p.came <- "BYE"
		if p.called.ReadBye(req, tx) != nil && p.calls.ReadBye(req, tx) != nil {
			_ = tx.Respond(sip.NewResponseFromRequest(req, 481, "No Such Call", nil))
		}
	})
	return p, nil
}

// withoutOverloadControl removes the parameters of RFC 7339 from Via. sipgo takes a parameter with a quoted value and all
// that follows it for the name of the parameter, and its responses have a Via that nobody can read.
func withoutOverloadControl(_ sip.TransportReadProps, data []byte) ([]byte, error) {
	return bytes.ReplaceAll(data, []byte(`;oc;oc-algo="loss"`), nil), nil
}

// listen opens the socket of a user agent and waits until it is read.
func listen(ua *sipgo.UserAgent, srv *sipgo.Server) (string, error) {
	if *transport == "tcp" {
		listener, err := net.Listen("tcp4", "127.0.0.1:0")
		if err != nil {
			return "", err
		}
		go srv.ServeTCP(listener)
		return listener.Addr().String(), nil
	}
	socket, err := net.ListenPacket("udp4", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	go srv.ServeUDP(socket)
	address := socket.LocalAddr().String()
	for end := time.Now().Add(limit); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if conn, _ := ua.TransportLayer().GetConnection("udp", address); conn != nil {
			return address, nil
		}
	}
	return "", errors.New("nobody reads the socket")
}

func (p *phone) request(method sip.RequestMethod, uri string) (*sip.Request, error) {
	var recipient sip.Uri
	if err := sip.ParseUri(uri, &recipient); err != nil {
		return nil, err
	}
	req := sip.NewRequest(method, recipient)
	req.SetTransport(strings.ToUpper(*transport))
	req.SetDestination(*server)
	return req, nil
}

// register returns the code of the final response.
func (p *phone) register(ctx context.Context, password string) (int, error) {
	req, err := p.request(sip.REGISTER, "sip:"+p.user+"@"+domain)
	if err != nil {
		return 0, err
	}
	req.AppendHeader(sip.HeaderClone(&p.contact))
	req.AppendHeader(sip.NewHeader("Expires", "600"))
	res, err := p.client.Do(ctx, req, sipgo.ClientRequestRegisterBuild)
	if err != nil {
		return 0, err
	}
	if res.StatusCode != 401 {
		return 0, fmt.Errorf("it is not challenged but answered %d", res.StatusCode)
	}
	auth := sipgo.DigestAuth{Username: p.user, Password: password}
	res, err = p.client.DoDigestAuth(ctx, req, res, auth)
	if err != nil {
		return 0, err
	}
	return int(res.StatusCode), nil
}

// invite calls a user and waits for the final response. The call is cancelled when it rings if `cancels`.
func (p *phone) invite(ctx context.Context, user string, cancels bool) (*sipgo.DialogClientSession, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	req, err := p.request(sip.INVITE, "sip:"+user+"@"+domain)
	if err != nil {
		return nil, err
	}
	req.AppendHeader(sip.NewHeader("Content-Type", "application/sdp"))
	req.SetBody([]byte(description))
	call, err := p.calls.WriteInvite(ctx, req)
	if err != nil {
		return nil, err
	}
	ringing := func(res *sip.Response) error {
		if cancels && res.StatusCode == 180 {
			cancel()
		}
		return nil
	}
	options := sipgo.AnswerOptions{OnResponse: ringing, Username: p.user, Password: *password}
	return call, call.WaitAnswer(ctx, options)
}

// invited is called with each INVITE.
func (p *phone) invited(req *sip.Request, tx sip.ServerTransaction) {
	if _, within := req.To().Params.Get("tag"); within {
		p.came <- "INVITE"
		res := sip.NewSDPResponseFromRequest(req, []byte(description))
		res.AppendHeader(sip.HeaderClone(&p.contact))
		_ = tx.Respond(res)
		return
	}
	call, err := p.called.ReadInvite(req, tx)
	if err != nil {
		_ = tx.Respond(sip.NewResponseFromRequest(req, 500, err.Error(), nil))
		return
	}
	defer call.Close()
	if p.user == "busy" {
		_ = call.Respond(486, "Busy Here", nil)
		return
	}
	_ = call.Respond(180, "Ringing", nil)
	if p.user != "ringing" {
		if err := call.RespondSDP([]byte(description)); err != nil {
			p.came <- err.Error()
			return
		}
		p.came <- "ACK"
	}
	if p.user == "short" {
		ctx, cancel := context.WithTimeout(context.Background(), limit)
		defer cancel()
		if err := call.Bye(ctx); err != nil {
			p.came <- err.Error()
		} else {
			p.came <- "the BYE has a 200"
		}
		return
	}
	select {
	case <-call.Context().Done():
		p.came <- "end"
	case <-time.After(2 * limit):
	}
}

// expect waits for these, in this order.
func (p *phone) expect(ctx context.Context, all ...string) error {
	for _, wanted := range all {
		select {
		case what := <-p.came:
			if what != wanted {
				return fmt.Errorf("%s: not %s but %s", p.user, wanted, what)
			}
		case <-ctx.Done():
			return fmt.Errorf("%s: no %s", p.user, wanted)
		}
	}
	return nil
}

// code returns the code of a call that has failed.
func code(err error) (string, error) {
	var refused *sipgo.ErrDialogResponse
	if !errors.As(err, &refused) {
		return "", fmt.Errorf("no failure response: %w", err)
	}
	return fmt.Sprint(int(refused.Res.StatusCode)), nil
}

func attempt(name string, run func(context.Context) (string, error)) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	detail, err := run(ctx)
	if err != nil {
		fmt.Printf("FAIL %s over %s: %v\n", name, *transport, err)
		return
	}
	fmt.Printf("ok %s over %s: %s\n", name, *transport, detail)
}

func main() {
	flag.Parse()
	sip.SetDefaultLogger(slog.New(slog.NewTextHandler(io.Discard, nil)))
	phones := map[string]*phone{}
	attempt("registration", func(ctx context.Context) (string, error) {
		for _, user := range []string{"alice", "bob", "busy", "ringing", "short"} {
			p, err := newPhone(user)
			if err != nil {
				return "", err
			}
			code, err := p.register(ctx, *password)
			if err != nil {
				return "", fmt.Errorf("%s: %w", user, err)
			}
			if code != 200 {
				return "", fmt.Errorf("%s: %d", user, code)
			}
			phones[user] = p
		}
		return fmt.Sprint(len(phones), " phones"), nil
	})
	alice, bob, short := phones["alice"], phones["bob"], phones["short"]
	if len(phones) < 5 {
		return
	}
	attempt("wrong password", func(ctx context.Context) (string, error) {
		p, err := newPhone("alice")
		if err != nil {
			return "", err
		}
		code, err := p.register(ctx, "wrong")
		if err == nil && code != 401 {
			err = fmt.Errorf("answered %d", code)
		}
		return fmt.Sprint(code), err
	})
	attempt("call with INFO and a second INVITE", func(ctx context.Context) (string, error) {
		return calls(ctx, alice, bob)
	})
	attempt("call that the callee ends", func(ctx context.Context) (string, error) {
		call, err := alice.invite(ctx, "short", false)
		if err != nil {
			return "", err
		}
		defer call.Close()
		if err := call.Ack(ctx); err != nil {
			return "", err
		}
		if err := alice.expect(ctx, "BYE"); err != nil {
			return "", err
		}
		return "the BYE came", short.expect(ctx, "ACK", "the BYE has a 200")
	})
	attempt("busy callee", func(ctx context.Context) (string, error) {
		return refused(ctx, alice, "busy", "486")
	})
	attempt("unknown callee", func(ctx context.Context) (string, error) {
		return refused(ctx, alice, "nobody", "404")
	})
	attempt("cancelled call", func(ctx context.Context) (string, error) {
		call, err := alice.invite(ctx, "ringing", true)
		if !errors.Is(err, context.Canceled) {
			return "", fmt.Errorf("the CANCEL has failed: %w", err)
		}
		code := call.InviteResponse.StatusCode
		if code != 487 {
			return "", fmt.Errorf("answered %d", code)
		}
		return fmt.Sprint(code), phones["ringing"].expect(ctx, "end")
	})
}

func calls(ctx context.Context, alice, bob *phone) (string, error) {
	call, err := alice.invite(ctx, bob.user, false)
	if err != nil {
		return "", err
	}
	defer call.Close()
	if err := call.Ack(ctx); err != nil {
		return "", err
	}
	if err := bob.expect(ctx, "ACK"); err != nil {
		return "", err
	}
	target := call.InviteResponse.Contact().Address
	for _, method := range []sip.RequestMethod{sip.INFO, sip.INVITE} {
		req := sip.NewRequest(method, target)
		if method == sip.INVITE {
			req.AppendHeader(sip.NewHeader("Content-Type", "application/sdp"))
			req.SetBody([]byte(description))
		}
		res, err := call.Do(ctx, req)
		if err != nil {
			return "", fmt.Errorf("%s: %w", method, err)
		}
		if res.StatusCode != 200 {
			return "", fmt.Errorf("%s is answered %d", method, res.StatusCode)
		}
		if method == sip.INVITE {
			if err := call.Ack(ctx); err != nil {
				return "", err
			}
		}
		if err := bob.expect(ctx, string(method)); err != nil {
			return "", err
		}
	}
	if err := call.Bye(ctx); err != nil {
		return "", fmt.Errorf("BYE: %w", err)
	}
	return "established and ended", bob.expect(ctx, "BYE", "end")
}

func refused(ctx context.Context, alice *phone, user, wanted string) (string, error) {
	_, err := alice.invite(ctx, user, false)
	if err == nil {
		return "", errors.New("it is answered")
	}
	found, err := code(err)
	if err == nil && found != wanted {
		err = fmt.Errorf("not %s but %s", wanted, found)
	}
	return found, err
}
