// Package natstest runs real nats-servers with JetStream for tests. They are in
// the test's own process, keep their store in the test's folder and need
// nothing installed.
package natstest

import (
	"net"
	"os"
	"testing"
	"time"

	natsserver "github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
)

// startup bounds how long a server may take to accept connections.
const startup = 10 * time.Second

// New starts a server without a port and returns a connection to it. Both end
// with the test.
func New(t testing.TB) *nats.Conn {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), port: noPort}
	s.Start()
	t.Cleanup(s.Stop)
	return s.Connect()
}

// Server is a nats-server that a test can stop, start and wipe.
type Server struct {
	t    testing.TB
	dir  string
	port int
	srv  *natsserver.Server
}

const noPort = 0

// NewServer starts a server on a port of its own, on loopback. It keeps the
// port when it is restarted, and ends with the test.
func NewServer(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, dir: t.TempDir(), port: natsserver.RANDOM_PORT}
	s.Start()
	t.Cleanup(s.Stop)
	return s
}

// Start starts the server again after [Server.Stop].
func (s *Server) Start() {
	s.t.Helper()
	srv, err := natsserver.NewServer(&natsserver.Options{
		ServerName: "natstest",
		Host:       "127.0.0.1",
		Port:       s.port,
		DontListen: s.port == noPort,
		JetStream:  true,
		StoreDir:   s.dir,
		NoLog:      true,
		NoSigs:     true,
	})
	if err != nil {
		s.t.Fatalf("nats-server: %v", err)
	}
	srv.Start()
	if !srv.ReadyForConnections(startup) {
		srv.Shutdown()
		s.t.Fatalf("nats-server takes no connections after %v", startup)
	}
	if s.port == natsserver.RANDOM_PORT {
		s.port = srv.Addr().(*net.TCPAddr).Port
	}
	s.srv = srv
}

// Stop shuts the server down; its store stays. Stopping twice does nothing.
func (s *Server) Stop() {
	s.srv.Shutdown()
	s.srv.WaitForShutdown()
}

// Restart stops the server and starts it with the same store.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	s.Start()
}

// Wipe stops the server, deletes its store and starts it empty: JetStream
// without memory.
func (s *Server) Wipe() {
	s.t.Helper()
	s.Stop()
	if err := os.RemoveAll(s.dir); err != nil {
		s.t.Fatal(err)
	}
	s.Start()
}

// URL is where the server listens.
func (s *Server) URL() string { return s.srv.ClientURL() }

// Connect returns a connection that reconnects quickly and for ever, closed at
// the end of the test.
func (s *Server) Connect(options ...nats.Option) *nats.Conn {
	s.t.Helper()
	url := ""
	if s.port == noPort {
		options = append(options, nats.InProcessServer(s.srv))
	} else {
		url = s.URL()
	}
	options = append([]nats.Option{
		nats.MaxReconnects(-1), nats.ReconnectWait(20 * time.Millisecond), nats.ReconnectJitter(0, 0),
	}, options...)
	nc, err := nats.Connect(url, options...)
	if err != nil {
		s.t.Fatalf("connect to nats-server: %v", err)
	}
	s.t.Cleanup(nc.Close)
	return nc
}
