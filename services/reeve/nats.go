package reeve

import (
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"go.uber.org/zap"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"
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
		// Each stream has its own limit. The server's, three quarters of what
		// the disk has free, would refuse them on a small disk.
		JetStreamMaxStore: 1 << 40,
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

// Errorf ends the all-in-one when the disk takes no more: a stream that could
// not be written to stays shut until the server is started again.
func (l natsLog) Errorf(format string, v ...any) {
	l.SugaredLogger.Errorf(format, v...)
	for _, a := range v {
		if err, ok := a.(error); ok && (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EIO)) {
			l.end(fmt.Errorf("nats: %w; make room and start again, nothing is lost", err))
		}
	}
}

// Fatalf must not end the process, which has more to stop than NATS.
func (l natsLog) Fatalf(format string, v ...any) {
	l.SugaredLogger.Errorf(format, v...)
	l.end(fmt.Errorf("nats: "+format, v...))
}

// end has the process end for a reason, of which the first is told.
func (l natsLog) end(err error) {
	select {
	case l.fatal <- err:
	default:
	}
}
