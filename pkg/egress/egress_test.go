package egress

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/net/dns/dnsmessage"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

func TestPublic(t *testing.T) {
	t.Parallel()
	for address, want := range map[string]bool{
		"8.8.8.8": true, "192.0.1.1": true, "2606:4700::1111": true,
		"::ffff:8.8.8.8": true, "64:ff9b::808:808": true,
		"127.0.0.1": false, "127.255.0.9": false, "0.0.0.0": false, "0.1.2.3": false,
		"10.0.0.1": false, "172.16.0.1": false, "172.31.255.255": false, "192.168.1.1": false,
		"169.254.169.254": false, "100.64.0.1": false, "100.127.255.255": false,
		"192.0.0.1": false, "192.0.2.1": false, "198.18.0.1": false, "198.19.255.255": false,
		"198.51.100.7": false, "203.0.113.9": false, "224.0.0.1": false, "240.0.0.1": false,
		"255.255.255.255": false, "192.88.99.1": false,
		"::": false, "::1": false, "fe80::1": false, "fe80::1%eth0": false, "fc00::1": false, "fd12::1": false,
		"ff02::1": false, "2001:db8::1": false, "2002:7f00:1::": false, "2001::1": false, "3fff::1": false,
		"::ffff:127.0.0.1": false, "::ffff:10.0.0.1": false, "64:ff9b::7f00:1": false, "::127.0.0.1": false,
		"100::1": false, "fec0::1": false,
	} {
		if got := public(netip.MustParseAddr(address)); got != want {
			t.Errorf("public(%s) = %t, want %t", address, got, want)
		}
	}
}

func TestPolicy_Check(t *testing.T) {
	t.Parallel()
	p, err := Allow("files.town.example:8080", "intra.example", "10.1.0.0/16", "::1")
	if err != nil {
		t.Fatal(err)
	}
	for raw, ok := range map[string]bool{
		"https://town.example/a.pdf":          true,
		"http://town.example:80/":             true,
		"http://files.town.example:8080/":     true,
		"http://FILES.town.example.:8080/":    true,
		"http://files.town.example:8081/":     false,
		"http://intra.example:9000/":          true,
		"http://10.1.2.3:9000/":               true,
		"http://10.2.2.3/":                    false,
		"http://[::1]:9000/":                  true,
		"http://[::ffff:10.1.2.3]/":           true,
		"http://[::ffff:10.2.2.3]/":           false,
		"http://127.0.0.1/":                   false,
		"http://town.example:22/":             false,
		"ftp://town.example/":                 false,
		"file:///etc/passwd":                  false,
		"gopher://town.example/":              false,
		"http:///nohost":                      false,
		"http://169.254.169.254/latest/meta/": false,
	} {
		u, err := url.Parse(raw)
		if err != nil {
			t.Fatal(err)
		}
		err = p.Check(u)
		if (err == nil) != ok {
			t.Errorf("Check(%s) = %v, want ok %t", raw, err, ok)
		}
		if err != nil && (!errors.Is(err, ErrRefused) || fault.Of(err) != fault.ClassPermanent) {
			t.Errorf("Check(%s) = %v of class %s: not marked as refused for good", raw, err, fault.Of(err))
		}
	}
	for _, wrong := range []string{"", "http://x", "a b", "x/y", "user@host", "*.example"} {
		if _, err := Allow(wrong); err == nil {
			t.Errorf("Allow(%q) took it", wrong)
		}
	}
}

func get(ctx context.Context, c *http.Client, u string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u, http.NoBody)
	if err != nil {
		return "", err
	}
	resp, err := c.Do(req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

func mustRefuse(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, ErrRefused) || fault.Of(err) != fault.ClassPermanent {
		t.Fatalf("got %v of class %s, want refused for good", err, fault.Of(err))
	}
}

func TestClient_RefusesThisMachineUnlessAllowed(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "hello") }))
	defer srv.Close()
	_, err := get(t.Context(), Client(Policy{}), srv.URL)
	mustRefuse(t, err)

	p, err := Allow(strings.TrimPrefix(srv.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	body, err := get(t.Context(), Client(p), srv.URL)
	if err != nil || body != "hello" {
		t.Fatalf("got %q, %v", body, err)
	}
}

func TestClient_JudgesEveryHop(t *testing.T) {
	t.Parallel()
	var touched atomic.Bool
	private := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { touched.Store(true) }))
	defer private.Close()
	var target atomic.Value
	outer := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, target.Load().(string), http.StatusFound)
	}))
	defer outer.Close()
	p, err := Allow(strings.TrimPrefix(outer.URL, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	for _, to := range []string{
		private.URL, "http://169.254.169.254/latest/meta-data/", "file:///etc/passwd",
		"http://[::ffff:127.0.0.1]:" + private.URL[strings.LastIndex(private.URL, ":")+1:] + "/",
		"http://localhost:" + private.URL[strings.LastIndex(private.URL, ":")+1:] + "/",
	} {
		target.Store(to)
		_, err := get(t.Context(), Client(p), outer.URL)
		mustRefuse(t, err)
	}
	if touched.Load() {
		t.Fatal("the private server was reached")
	}
	target.Store(outer.URL) // for ever
	if _, err := get(t.Context(), Client(p), outer.URL); err == nil || fault.Of(err) != fault.ClassPermanent {
		t.Fatalf("got %v of class %s, want an end to redirects", err, fault.Of(err))
	}
}

// A name that answers with a public address when it is checked and a private
// one when it is dialled gets nowhere: the address dialled is the one judged.
func TestClient_NameThatChangesItsAddress(t *testing.T) {
	t.Parallel()
	var touched atomic.Bool
	srv := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { touched.Store(true) }))
	defer srv.Close()
	var asked atomic.Int32
	resolver := nameserver(t, func(name string) [4]byte {
		if asked.Add(1) == 1 {
			return [4]byte{93, 184, 216, 34}
		}
		return [4]byte{127, 0, 0, 1}
	})
	p := Policy{resolver: resolver}

	if addrs, err := resolver.LookupHost(t.Context(), "rebind.example"); err != nil || addrs[0] != "93.184.216.34" {
		t.Fatalf("first look: %v, %v", addrs, err)
	}
	_, err := get(t.Context(), Client(p), "http://rebind.example/")
	mustRefuse(t, err)
	if touched.Load() {
		t.Fatal("the private server was reached")
	}
}

// nameserver is a resolver that asks a name server of this test's own.
func nameserver(t *testing.T, answer func(name string) [4]byte) *net.Resolver {
	t.Helper()
	conn, err := (&net.ListenConfig{}).ListenPacket(t.Context(), "udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	go func() {
		buf := make([]byte, 512)
		for {
			n, from, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(buf[:n]) != nil || len(m.Questions) == 0 {
				continue
			}
			q := m.Questions[0]
			m.Response, m.Additionals = true, nil
			if q.Type == dnsmessage.TypeA {
				m.Answers = []dnsmessage.Resource{{
					Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class},
					Body:   &dnsmessage.AResource{A: answer(q.Name.String())},
				}}
			}
			if out, err := m.Pack(); err == nil {
				_, _ = conn.WriteTo(out, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "udp", conn.LocalAddr().String())
	}}
}

func FuzzAllow(f *testing.F) {
	for _, s := range []string{"", "a", "a:1", "10.0.0.0/8", "::1", "[::1]:80", "http://x", "\x00", "a:b:c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, place string) {
		p, err := Allow(place)
		if err != nil {
			return
		}
		if p.names("never.example", "80") && !strings.Contains(strings.ToLower(place), "never.example") {
			t.Fatalf("Allow(%q) allows never.example", place)
		}
	})
}
