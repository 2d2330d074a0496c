package ledger

import (
	"context"
	"testing"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/pgtest"
)

// Every session plans for the tables as they are, and ends when nothing is
// heard of its client; leading needs two of them, whatever the DSN allows.
func TestOpen_sessions(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l, err := Open(ctx, pgtest.New(t)+"&pool_max_conns=1")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	led, err := l.Lead(ctx, "test", func(ctx context.Context) error {
		for name, want := range map[string]string{
			"plan_cache_mode": "force_custom_plan", "idle_in_transaction_session_timeout": "1min", "tcp_keepalives_idle": "30",
		} {
			var got string
			if err := l.pool.QueryRow(ctx, "SHOW "+name).Scan(&got); err != nil {
				return err
			}
			if got != want {
				t.Errorf("%s is %s, want %s", name, got, want)
			}
		}
		return nil
	})
	if err != nil || !led {
		t.Errorf("leading: %t, %v", led, err)
	}
}
