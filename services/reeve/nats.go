package reeve

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"
)

// natsServer is the NATS server of this process.
type natsServer struct {
	*server.Server
	fatal chan error
}

// startNATS starts a NATS server with JetStream. The services speak to it
// within the process; its port on the loopback is for the nats command.
func startNATS(o Options, at ports, password string) (*natsServer, error) {
	// The cheapest hash: the password is as good as random bits get.
	hash, err := bcrypt.GenerateFromPassword([]byte(password), bcrypt.MinCost)
	if err != nil {
		return nil, fmt.Errorf("nats password: %w", err)
	}
	s, err := server.NewServer(&server.Options{
		ServerName: "reeve", Host: "127.0.0.1", Port: at.nats, HTTPHost: "127.0.0.1", HTTPPort: at.monitor,
		Username: "reeve", Password: string(hash),
		JetStream: true, StoreDir: filepath.Join(o.Data, "nats"),
		// Postgres is the truth: what a power cut takes from here is sent again.
		SyncInterval: time.Second,
		NoSigs:       true,
	})
	if err != nil {
		return nil, fmt.Errorf("nats: %w", err)
	}
	n := &natsServer{Server: s, fatal: make(chan error, 1)}
	s.SetLoggerV2(natsLog{o.Log.Named("nats").Sugar(), n.fatal}, false, false, false)
	go s.Start()
	if !s.ReadyForConnections(20 * time.Second) {
		n.stop()
		select {
		case err := <-n.fatal:
			return nil, err
		default:
			return nil, errors.New("nats: not ready after 20 s")
		}
	}
	if !s.JetStreamEnabled() {
		n.stop()
		return nil, fmt.Errorf("nats: JetStream does not start on %s; its files may be damaged: as Postgres is the truth, the folder may be removed", filepath.Join(o.Data, "nats"))
	}
	return n, nil
}

// stop ends the server and waits for its files to be closed.
func (n *natsServer) stop() {
	n.Shutdown()
	n.WaitForShutdown()
}

// natsLog is the server's log in ours: what it says at its start and of each
// client is of interest only when something is looked for.
type natsLog struct {
	*zap.SugaredLogger
	fatal chan<- error
}

func (l natsLog) Noticef(format string, v ...any) { l.Debugf(format, v...) }
func (l natsLog) Tracef(format string, v ...any)  { l.Debugf(format, v...) }

// Fatalf must not end the process, which has more to stop than NATS.
func (l natsLog) Fatalf(format string, v ...any) {
	l.Errorf(format, v...)
	select {
	case l.fatal <- fmt.Errorf("nats: "+format, v...):
	default:
	}
}
