package telemetry_test

import (
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/telemetry"
)

// touch gives every metric a series.
func touch(r prometheus.Registerer) {
	w := telemetry.NewWorker(r)
	w.TasksInHand.WithLabelValues("ocr").Inc()
	w.TaskSeconds.WithLabelValues("ocr", "completed").Observe(1)
	w.QueueWait.WithLabelValues("ocr").Observe(1)
	f := telemetry.NewFanIn(r)
	f.Tasks.WithLabelValues("ocr", "failed", "permanent").Inc()
	f.Events.WithLabelValues(telemetry.Applied).Inc()
	f.StageSeconds.WithLabelValues("ocr").Observe(1)
	f.SuccessRate.WithLabelValues("ocr").Set(1)
	f.Backlog.WithLabelValues("ocr").Set(1)
	f.Runs.WithLabelValues("completed").Inc()
	s := telemetry.NewSweeper(r)
	s.Recoveries.WithLabelValues("lost").Inc()
	s.Sweeps.WithLabelValues("acted").Inc()
}

func TestMetrics_NamesAndLabels(t *testing.T) {
	t.Parallel()
	r := prometheus.NewPedanticRegistry()
	touch(r)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	bounded := []string{"stage", "outcome", "class", "result", "reason"}
	unit := regexp.MustCompile(`_(seconds|bytes|total|count|size|rate|in_hand|backlog)$`)
	var names []string
	for _, f := range families {
		names = append(names, f.GetName())
		if !unit.MatchString(f.GetName()) {
			t.Errorf("%s does not end in what it counts", f.GetName())
		}
		if total := strings.HasSuffix(f.GetName(), "_total"); total != (f.GetType() == dto.MetricType_COUNTER) {
			t.Errorf("%s: counters, and only these, end in _total", f.GetName())
		}
		for _, label := range f.GetMetric()[0].GetLabel() {
			if !slices.Contains(bounded, label.GetName()) {
				t.Errorf("%s has a label %s, which may have any number of values", f.GetName(), label.GetName())
			}
		}
	}
	for _, promised := range []string{
		"pipeline_stage_duration_seconds", "pipeline_stage_success_rate", "pipeline_stuck_sites_count", "reconciliation_recoveries_total",
	} {
		if !slices.Contains(names, promised) {
			t.Errorf("%s is missing", promised)
		}
	}
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if !strings.HasSuffix(p.Metric, "_count") { // a name that dashboards know already
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

// Services that share a process share its metrics.
func TestMetrics_TwiceInOneRegistry(t *testing.T) {
	t.Parallel()
	r := telemetry.Registry("reeve", "v1")
	touch(r)
	touch(r)
	if got := testutil.ToFloat64(telemetry.NewFanIn(r).Events.WithLabelValues(telemetry.Applied)); got != 2 {
		t.Errorf("%v events, want 2", got)
	}
}

func TestLogger(t *testing.T) {
	t.Parallel()
	for _, format := range []string{"json", "console"} {
		log, err := telemetry.Logger("warn", format)
		if err != nil {
			t.Fatal(err)
		}
		if log.Core().Enabled(zap.InfoLevel) || !log.Core().Enabled(zap.WarnLevel) {
			t.Errorf("%s: the level is not kept", format)
		}
		log.Debug("unseen", zap.Duration("took", time.Second))
	}
	for _, level := range []string{"", "loud", "fatal", "dpanic"} {
		if _, err := telemetry.Logger(level, "json"); err == nil {
			t.Errorf("%q is taken for a level", level)
		}
	}
}
