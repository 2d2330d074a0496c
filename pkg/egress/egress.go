// Package egress is how Reeve reaches addresses that users give it: an HTTP
// client that connects to the public Internet and nowhere else, unless its
// policy allows a place by name. Names are resolved first and the address is
// judged when the socket is made, so that neither a redirect nor a name that
// changes its address gets around it. What it refuses is a permanent fault.
package egress

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"syscall"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// ErrRefused is wrapped by every error of an address that the policy refuses.
var ErrRefused = errors.New("refused")

// maxRedirects bounds the hops of one request.
const maxRedirects = 10

// Policy says where a client may connect. The zero Policy allows http and
// https to public addresses at ports 80 and 443.
type Policy struct {
	hosts    map[string]bool // "host" or "host:port", lower case
	prefixes []netip.Prefix
	resolver *net.Resolver // nil: the system's
}

// Allow returns a policy that also allows these places: a host name, an
// address or a CIDR block at any port, or host:port for one port only.
func Allow(places ...string) (Policy, error) {
	p := Policy{hosts: map[string]bool{}}
	for _, place := range places {
		place = strings.ToLower(strings.TrimSpace(place))
		if prefix, err := netip.ParsePrefix(place); err == nil {
			p.prefixes = append(p.prefixes, prefix.Masked())
			continue
		}
		if a, err := netip.ParseAddr(strings.Trim(place, "[]")); err == nil {
			p.prefixes = append(p.prefixes, netip.PrefixFrom(a.Unmap(), a.Unmap().BitLen()))
			continue
		}
		host, port, err := net.SplitHostPort(place)
		if err != nil {
			host, port = place, ""
		}
		if host == "" || strings.ContainsAny(host, "/ @*") || strings.Contains(place, "://") {
			return Policy{}, fmt.Errorf("%q is no host, host:port, address or CIDR block", place)
		}
		if port != "" {
			host = net.JoinHostPort(host, port)
		}
		p.hosts[host] = true
	}
	return p, nil
}

// Check reports whether a URL may be asked for at all, as far as the URL
// alone can tell. The client checks every hop itself.
func (p Policy) Check(u *url.URL) error {
	if u.Scheme != "http" && u.Scheme != "https" {
		return refuse("%s: scheme %q is neither http nor https", u.Redacted(), u.Scheme)
	}
	if u.Hostname() == "" {
		return refuse("%s: no host", u.Redacted())
	}
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	addr, err := netip.ParseAddr(u.Hostname())
	if err != nil {
		addr = netip.Addr{}
	}
	if p.names(u.Hostname(), port) || p.holds(addr) {
		return nil
	}
	if port != "80" && port != "443" {
		return refuse("%s: port %s is not allowed; allow %s:%s to reach it", u.Redacted(), port, u.Hostname(), port)
	}
	if addr.IsValid() && !public(addr) {
		return refuse("%s: %s is no public address; allow it to reach it", u.Redacted(), addr)
	}
	return nil
}

// Client returns a client that keeps to the policy: it uses no proxy, no
// cookies, verifies every certificate, and follows at most ten redirects.
// Requests bound their own time by their context.
func Client(p Policy) *http.Client {
	return &http.Client{
		Transport: &http.Transport{
			DialContext:            p.dial,
			ForceAttemptHTTP2:      true,
			TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
			TLSHandshakeTimeout:    15 * time.Second,
			MaxIdleConnsPerHost:    4,
			MaxIdleConns:           256,
			IdleConnTimeout:        90 * time.Second,
			MaxResponseHeaderBytes: 1 << 20,
		},
		CheckRedirect: func(req *http.Request, via []*http.Request) error {
			if len(via) >= maxRedirects {
				return fault.Permanentf("%s redirects more than %d times", via[0].URL.Redacted(), maxRedirects)
			}
			return p.Check(req.URL)
		},
	}
}

// dial connects to an address of the host that the policy allows, judging the
// very address that the socket is about to connect to.
func (p Policy) dial(ctx context.Context, network, hostport string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(hostport)
	if err != nil {
		return nil, err
	}
	named := p.names(host, port)
	d := net.Dialer{
		Timeout:  15 * time.Second,
		Resolver: p.resolver,
		Control: func(_, address string, _ syscall.RawConn) error {
			ap, err := netip.ParseAddrPort(address)
			if err != nil {
				return refuse("%s: %s is no address", host, address)
			}
			switch {
			case named || p.holds(ap.Addr()):
				return nil
			case !public(ap.Addr()):
				return refuse("%s is at %s, no public address; allow it to reach it", host, ap.Addr())
			case ap.Port() != 80 && ap.Port() != 443:
				return refuse("%s: port %d is not allowed; allow %s:%d to reach it", host, ap.Port(), host, ap.Port())
			}
			return nil
		},
	}
	return d.DialContext(ctx, network, hostport)
}

// names reports whether the policy allows the host by its name.
func (p Policy) names(host, port string) bool {
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	return p.hosts[host] || p.hosts[net.JoinHostPort(host, port)]
}

// holds reports whether the policy allows the address.
func (p Policy) holds(a netip.Addr) bool {
	for _, prefix := range p.prefixes {
		if prefix.Contains(a.Unmap().WithZone("")) {
			return true
		}
	}
	return false
}

// reserved are the blocks of the IANA registries of special-purpose addresses
// that netip has no question for.
var reserved = []netip.Prefix{
	netip.MustParsePrefix("0.0.0.0/8"),       // this network
	netip.MustParsePrefix("100.64.0.0/10"),   // carrier-grade NAT
	netip.MustParsePrefix("192.0.0.0/24"),    // protocol assignments
	netip.MustParsePrefix("192.0.2.0/24"),    // documentation
	netip.MustParsePrefix("192.88.99.0/24"),  // 6to4 relays
	netip.MustParsePrefix("198.18.0.0/15"),   // benchmarks
	netip.MustParsePrefix("198.51.100.0/24"), // documentation
	netip.MustParsePrefix("203.0.113.0/24"),  // documentation
	netip.MustParsePrefix("240.0.0.0/4"),     // reserved, broadcast
	netip.MustParsePrefix("2001::/23"),       // protocol assignments, Teredo
	netip.MustParsePrefix("2001:db8::/32"),   // documentation
	netip.MustParsePrefix("2002::/16"),       // 6to4: wraps any IPv4 address
	netip.MustParsePrefix("3fff::/20"),       // documentation
}

var (
	unicast6 = netip.MustParsePrefix("2000::/3")
	nat64    = netip.MustParsePrefix("64:ff9b::/96")
)

// public reports whether an address is one of the public Internet.
func public(a netip.Addr) bool {
	a = a.Unmap()
	if nat64.Contains(a) {
		b := a.As16()
		a = netip.AddrFrom4([4]byte(b[12:]))
	}
	if a.Is6() && !unicast6.Contains(a) {
		return false
	}
	for _, r := range reserved {
		if r.Contains(a) {
			return false
		}
	}
	return a.IsGlobalUnicast() && !a.IsPrivate()
}

func refuse(format string, args ...any) error {
	return fault.Permanent(fmt.Errorf("%w: "+format, append([]any{ErrRefused}, args...)...))
}
