package service

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"go.uber.org/zap"
)

const (
	dialTime     = 5 * time.Second
	pingInterval = 10 * time.Second
)

// errDescribe ends a wire that is only asked for its settings.
var errDescribe = errors.New("nothing is opened while settings are described")

// NATS returns the process's one connection, dialled on first use and named
// service/version/host. It reconnects for ever; while it is down the process
// is not ready. Replies come to _INBOX_<service>, so that permissions can be
// given to each service alone.
func (e *Env) NATS() (*nats.Conn, error) {
	p := e.proc
	if p.describe {
		return nil, errDescribe
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.conn != nil {
		return p.conn, nil
	}
	name := p.settings.flags.Name() // the process's, not the part's
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	log := e.Log.Named("nats")
	opts := []nats.Option{
		nats.Name(name + "/" + e.Version + "/" + host),
		nats.CustomInboxPrefix("_INBOX_" + name),
		nats.Timeout(dialTime),
		nats.PingInterval(pingInterval),
		nats.MaxReconnects(-1),
		nats.ReconnectWait(500 * time.Millisecond),
		nats.NoCallbacksAfterClientClose(),
		nats.DisconnectErrHandler(func(_ *nats.Conn, err error) {
			log.Warn("connection lost", zap.Error(err))
		}),
		nats.ReconnectHandler(func(nc *nats.Conn) {
			p.permit(nil) // the server may have other permissions by now
			log.Info("connected again", zap.String("url", nc.ConnectedUrlRedacted()))
		}),
		nats.ErrorHandler(func(_ *nats.Conn, sub *nats.Subscription, err error) {
			subject := ""
			if sub != nil {
				subject = sub.Subject
			}
			if errors.Is(err, nats.ErrPermissionViolation) {
				p.permit(err)
				log.Error("permission denied", zap.String("subject", subject), zap.Error(err))
				return
			}
			log.Warn("asynchronous error", zap.String("subject", subject), zap.Error(err))
		}),
	}
	s := p.common.NATS
	if s.Creds != "" {
		opts = append(opts, nats.UserCredentials(s.Creds))
	}
	if s.NKey != "" {
		nkey, err := nats.NkeyOptionFromSeed(s.NKey)
		if err != nil {
			return nil, wrong(fmt.Errorf("nats.nkey: %w", err))
		}
		opts = append(opts, nkey)
	}
	if s.CA != "" {
		opts = append(opts, nats.RootCAs(s.CA))
	}
	where := redact(s.URL)
	if p.server != nil {
		opts, where = append(opts, nats.InProcessServer(p.server)), "in this process"
	}
	nc, err := nats.Connect(s.URL, opts...)
	switch {
	case errors.Is(err, nats.ErrNoServers):
		return nil, fmt.Errorf("nats at %s: nothing answers; start nats-server there or set nats.url (%s)", where, envName("nats.url"))
	case errors.Is(err, nats.ErrAuthorization):
		return nil, fmt.Errorf("nats at %s: %w; check nats.url, nats.creds or nats.nkey", where, err)
	case err != nil:
		return nil, fmt.Errorf("nats at %s: %s; check nats.url (%s)", where, withoutPassword(err, s.URL), envName("nats.url"))
	}
	p.conn = nc
	p.closers = append(p.closers, func(ctx context.Context) error {
		defer nc.Close()
		if !nc.IsConnected() {
			return nil // what is not sent by now is sent again by others
		}
		return nc.FlushWithContext(ctx) // the last acknowledgements
	})
	p.checks = append(p.checks, check{name: "nats", ask: func(context.Context) error {
		if status := nc.Status(); status != nats.CONNECTED {
			return errors.New(strings.ToLower(status.String()))
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.forbidden
	}})
	return nc, nil
}

func (p *process) permit(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.forbidden = err
}

// withoutPassword is the text of an error that may quote one of the URLs.
func withoutPassword(err error, urls string) string {
	text := err.Error()
	for part := range strings.SplitSeq(urls, ",") {
		text = strings.ReplaceAll(text, part, redact(part))
	}
	return text
}
