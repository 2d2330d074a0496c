package natstest_test

import (
	"errors"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/goleak"

	"github.com/reeve-pipeline/reeve/pkg/natstest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestNew(t *testing.T) {
	t.Parallel()
	js, err := jetstream.New(natstest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.AccountInfo(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A restart keeps what was stored, a wipe forgets it, and a connection
// survives both.
func TestServer(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	srv := natstest.NewServer(t)
	js, err := jetstream.New(srv.Connect())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	srv.Restart()
	if _, err := js.Stream(ctx, "S"); err != nil {
		t.Errorf("after a restart: %v", err)
	}
	srv.Wipe()
	if _, err := js.Stream(ctx, "S"); !errors.Is(err, jetstream.ErrStreamNotFound) {
		t.Errorf("after a wipe: got %v, want %v", err, jetstream.ErrStreamNotFound)
	}
}
