package fetch

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// errStalled and errTooLong end a request.
var (
	errStalled = errors.New("stalled")
	errTooLong = errors.New("took too long")
)

const (
	// patience is how long a request waits in place for a host that has asked
	// for a pause; for a longer one the task goes back.
	patience = 30 * time.Second
	// robotsAge is how long a host's robots.txt is believed.
	robotsAge = time.Hour
	// robotsSize is how much of it is read, in bytes.
	robotsSize = 512 << 10
	// maxDelay bounds the Crawl-delay that is honoured.
	maxDelay = 10 * time.Second
)

// polite gives a client manners: it says who it is, asks a host for few things
// at once and not too often, keeps to its robots.txt and to its Retry-After,
// and does not wait for ever. They hold for every hop of a redirect.
func polite(client *http.Client, c Config) *http.Client {
	m := &manners{next: client.Transport, Config: c, hosts: map[string]*host{}}
	m.client = &http.Client{Transport: m, CheckRedirect: client.CheckRedirect}
	return m.client
}

type manners struct {
	next   http.RoundTripper
	client *http.Client // itself, for robots.txt
	Config

	mu    sync.Mutex
	hosts map[string]*host
}

// host is what one host is owed and has said.
type host struct {
	slots chan struct{} // one for each request at once
	pace  *rate.Limiter

	asking chan struct{} // held while robots.txt is asked for; guards rules
	rules  rules
	until  time.Time // when rules are to be asked for again

	mu    sync.Mutex
	pause time.Time // when the host may be asked again
}

func (m *manners) host(u *url.URL) *host {
	key := u.Scheme + "://" + strings.ToLower(u.Host)
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.hosts[key]
	if !ok {
		h = &host{
			slots:  make(chan struct{}, m.PerHost),
			pace:   rate.NewLimiter(rate.Every(m.Interval), 1),
			asking: make(chan struct{}, 1),
		}
		m.hosts[key] = h
	}
	return h
}

// askingRobots marks the context of a request for robots.txt.
type askingRobots struct{}

// RoundTrip sends one request in its turn.
func (m *manners) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := req.Context()
	h := m.host(req.URL)
	if m.Robots && ctx.Value(askingRobots{}) == nil {
		rules, err := m.robots(ctx, h, req.URL)
		if err != nil {
			return nil, err
		}
		if !rules.allow(req.URL) {
			return nil, fault.Permanentf("robots.txt of %s forbids %s; ask the site's owner, or set fetch.robots to false", req.URL.Host, req.URL.RequestURI())
		}
	}
	if err := h.turn(ctx); err != nil {
		return nil, err
	}
	release := sync.OnceFunc(func() { <-h.slots })

	ctx, cancel := context.WithCancelCause(ctx)
	stall := time.AfterFunc(m.Stall, func() { cancel(fmt.Errorf("%w: nothing came for %v", errStalled, m.Stall)) })
	total := time.AfterFunc(m.Timeout, func() { cancel(fmt.Errorf("%w: more than %v", errTooLong, m.Timeout)) })
	end := func() { stall.Stop(); total.Stop(); cancel(nil); release() }

	req = req.Clone(ctx)
	req.Header.Set("User-Agent", m.UserAgent)
	resp, err := m.next.RoundTrip(req)
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		end()
		return nil, err
	}
	h.heed(resp)
	resp.Body = &body{ReadCloser: resp.Body, cause: func() error { return context.Cause(ctx) }, alive: func() { stall.Reset(m.Stall) }, end: end}
	return resp, nil
}

// turn waits until the host may be sent one more request, and takes a slot.
func (h *host) turn(ctx context.Context) error {
	select {
	case h.slots <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := h.wait(ctx)
	if err != nil {
		<-h.slots
	}
	return err
}

func (h *host) wait(ctx context.Context) error {
	h.mu.Lock()
	left := time.Until(h.pause)
	h.mu.Unlock()
	if left > patience {
		return fault.RetryAfter(fmt.Errorf("the host asked for a pause of %v", left.Round(time.Second)), left)
	}
	if left > 0 {
		select {
		case <-time.After(left):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return h.pace.Wait(ctx)
}

// heed keeps the host's wish for a pause.
func (h *host) heed(resp *http.Response) {
	if resp.StatusCode != http.StatusTooManyRequests && resp.StatusCode != http.StatusServiceUnavailable {
		return
	}
	d := fault.After(fault.HTTP(resp.StatusCode, resp.Header, errors.New(resp.Status)))
	h.mu.Lock()
	defer h.mu.Unlock()
	if until := time.Now().Add(d); resp.Header.Get("Retry-After") != "" && until.After(h.pause) {
		h.pause = until
	}
}

// body tells of every sign of life, and of the end.
type body struct {
	io.ReadCloser
	cause func() error // why it was ended before its time
	alive func()
	end   func()
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if n > 0 {
		b.alive()
	}
	if cause := b.cause(); err != nil && !errors.Is(err, io.EOF) && cause != nil {
		err = cause
	}
	return n, err
}

func (b *body) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}

// rules is a robots.txt as it concerns us.
type rules struct {
	lines []rule
	delay time.Duration
}

type rule struct {
	allow bool
	path  string
}

// robots returns the rules of a host. A host without a robots.txt has none;
// one that cannot answer for it is not asked for more.
func (m *manners) robots(ctx context.Context, h *host, u *url.URL) (rules, error) {
	select {
	case h.asking <- struct{}{}:
		defer func() { <-h.asking }()
	case <-ctx.Done():
		return rules{}, ctx.Err()
	}
	if time.Now().Before(h.until) {
		return h.rules, nil
	}
	at := url.URL{Scheme: u.Scheme, Host: u.Host, Path: "/robots.txt"}
	req, err := http.NewRequestWithContext(context.WithValue(ctx, askingRobots{}, true), http.MethodGet, at.String(), http.NoBody)
	if err != nil {
		return rules{}, err
	}
	resp, err := m.client.Do(req)
	if err != nil {
		return rules{}, err
	}
	defer resp.Body.Close()
	switch code := resp.StatusCode; {
	case code == http.StatusTooManyRequests || code >= 500:
		return rules{}, fmt.Errorf("%w; set fetch.robots to false to go without", refusal(resp))
	case code == http.StatusOK:
		text, err := io.ReadAll(io.LimitReader(resp.Body, robotsSize))
		if err != nil {
			return rules{}, fmt.Errorf("%s: %w", at.String(), err)
		}
		h.rules = parseRobots(string(text), m.UserAgent)
	default:
		h.rules = rules{}
	}
	h.until = time.Now().Add(robotsAge)
	if h.rules.delay > m.Interval {
		h.pace.SetLimit(rate.Every(h.rules.delay))
	}
	return h.rules, nil
}

// parseRobots reads the group that names our product, or else the one for all.
func parseRobots(text, userAgent string) rules {
	product := strings.ToLower(userAgent)
	if i := strings.IndexAny(product, "/ ("); i >= 0 {
		product = product[:i]
	}
	var ours, all rules
	named := false
	var into []*rules // the groups that the lines at hand belong to
	inHead := false
	for sc := bufio.NewScanner(strings.NewReader(text)); sc.Scan(); {
		line, _, _ := strings.Cut(sc.Text(), "#")
		key, value, ok := strings.Cut(line, ":")
		if !ok {
			continue
		}
		key, value = strings.ToLower(strings.TrimSpace(key)), strings.TrimSpace(value)
		if key == "user-agent" {
			if !inHead {
				into = nil
			}
			inHead = true
			switch agent := strings.ToLower(value); agent {
			case "*":
				into = append(into, &all)
			case product:
				into, named = append(into, &ours), true
			}
			continue
		}
		inHead = false
		for _, r := range into {
			switch key {
			case "allow", "disallow":
				if value != "" {
					r.lines = append(r.lines, rule{allow: key == "allow", path: value})
				}
			case "crawl-delay":
				if d, err := time.ParseDuration(value + "s"); err == nil && d > 0 {
					r.delay = min(d, maxDelay)
				}
			}
		}
	}
	if named {
		return ours
	}
	return all
}

// allow reports whether a URL may be asked for: the longest rule that matches
// says so, and allow wins a draw.
func (r rules) allow(u *url.URL) bool {
	target := u.EscapedPath()
	if target == "" {
		target = "/"
	}
	if u.RawQuery != "" {
		target += "?" + u.RawQuery
	}
	best, allowed := -1, true
	for _, l := range r.lines {
		if n := len(l.path); matches(l.path, target) && (n > best || n == best && l.allow) {
			best, allowed = n, l.allow
		}
	}
	return allowed
}

// matches tells whether a pattern of robots.txt, with * for anything and $
// for the end, fits the beginning of a path.
func matches(pattern, path string) bool {
	pattern, whole := strings.CutSuffix(pattern, "$")
	parts := strings.Split(pattern, "*")
	if !strings.HasPrefix(path, parts[0]) {
		return false
	}
	path = path[len(parts[0]):]
	for i, part := range parts[1:] {
		if whole && i == len(parts)-2 {
			return strings.HasSuffix(path, part)
		}
		at := strings.Index(path, part)
		if at < 0 {
			return false
		}
		path = path[at+len(part):]
	}
	return !whole || path == ""
}
