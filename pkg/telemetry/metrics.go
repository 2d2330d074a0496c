package telemetry

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Labels are bounded: stage names, outcomes, classes, reasons. A run, a site or
// an item is never a label.
const (
	labelStage   = "stage"
	labelOutcome = "outcome"
	labelClass   = "class"
	labelResult  = "result"
	labelReason  = "reason"
)

// Worker are the metrics of a process that works tasks off.
type Worker struct {
	TasksInHand *prometheus.GaugeVec     // stage
	TaskSeconds *prometheus.HistogramVec // stage, outcome
	QueueWait   *prometheus.HistogramVec // stage
}

// NewWorker registers the metrics of a worker, or finds those already there.
func NewWorker(r prometheus.Registerer) *Worker {
	return &Worker{
		TasksInHand: gauges(r, "pipeline_tasks_in_hand",
			"Tasks being worked on by this process.", labelStage),
		TaskSeconds: histograms(r, "pipeline_task_duration_seconds",
			"Time a handler took for one task.", taskBuckets, labelStage, labelOutcome),
		QueueWait: histograms(r, "pipeline_queue_wait_seconds",
			"Time from a task's publication to its handler's start.", waitBuckets, labelStage),
	}
}

// Results of an event, as the label of FanIn.Events.
const (
	Applied   = "applied"   // it changed the books
	Duplicate = "duplicate" // it was in the books already
	Stale     = "stale"     // of an earlier generation, or of a task that has ended
	Unknown   = "unknown"   // of no task there is, or unreadable
)

// FanIn are the metrics of what keeps the books and plans the next tasks.
type FanIn struct {
	Tasks        *prometheus.CounterVec   // stage, outcome, class
	Events       *prometheus.CounterVec   // result
	Claims       prometheus.Counter       // scopes closed
	BatchSize    prometheus.Histogram     // outcomes in one transaction
	Lag          prometheus.Histogram     // seconds
	StageSeconds *prometheus.HistogramVec // stage
	SuccessRate  *prometheus.GaugeVec     // stage
	Backlog      *prometheus.GaugeVec     // stage
	Runs         *prometheus.CounterVec   // outcome
}

// NewFanIn registers the metrics of fan-in, or finds those already there.
func NewFanIn(r prometheus.Registerer) *FanIn {
	return &FanIn{
		Tasks: counters(r, "pipeline_tasks_total",
			"Tasks that ended, each counted once; class is empty for those that did not fail.", labelStage, labelOutcome, labelClass),
		Events: counters(r, "pipeline_events_total",
			"Outcomes received, by what became of them: applied, duplicate, stale, unknown.", labelResult),
		Claims: one(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pipeline_coordinator_claims_total", Help: "Stage scopes closed, each by exactly one claim.",
		})),
		BatchSize: one(r, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pipeline_fanin_batch_size", Help: "Outcomes counted in one transaction.",
			Buckets: prometheus.ExponentialBuckets(1, 2, 12),
		})),
		Lag: one(r, prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "pipeline_fanin_lag_seconds", Help: "Time from an outcome's publication to its commit.",
			Buckets: waitBuckets,
		})),
		StageSeconds: histograms(r, "pipeline_stage_duration_seconds",
			"Time from a stage's opening to its closing, for one run.", runBuckets, labelStage),
		SuccessRate: gauges(r, "pipeline_stage_success_rate",
			"Share of a stage's recently ended tasks that completed, 0 to 1.", labelStage),
		Backlog: gauges(r, "pipeline_stage_backlog",
			"Tasks planned and not ended.", labelStage),
		Runs: counters(r, "pipeline_runs_total",
			"Runs that ended.", labelOutcome),
	}
}

// Sweeper are the metrics of what looks after stuck work.
type Sweeper struct {
	StuckSites prometheus.Gauge
	Recoveries *prometheus.CounterVec // reason
	Violations prometheus.Counter
	Sweeps     *prometheus.CounterVec // outcome
}

// NewSweeper registers the metrics of the sweeper, or finds those already there.
func NewSweeper(r prometheus.Registerer) *Sweeper {
	return &Sweeper{
		StuckSites: one(r, prometheus.NewGauge(prometheus.GaugeOpts{ //nolint:promlinter // the name is promised
			Name: "pipeline_stuck_sites_count", Help: "Sites whose run has not moved for the set time.",
		})),
		Recoveries: counters(r, "reconciliation_recoveries_total",
			"Repairs made, by what was found.", labelReason),
		Violations: one(r, prometheus.NewCounter(prometheus.CounterOpts{
			Name: "pipeline_invariant_violations_total", Help: "Times the books did not balance. Anything above 0 is a fault of Reeve.",
		})),
		Sweeps: counters(r, "pipeline_sweeps_total",
			"Sweeps made.", labelOutcome),
	}
}

// Buckets in seconds: waits from a millisecond to an hour, tasks from ten
// milliseconds to an hour, stages of a run from a tenth of a second to a day.
var (
	waitBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 5, 15, 60, 300, 900, 3600}
	taskBuckets = []float64{.01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600}
	runBuckets  = []float64{.1, .5, 1, 5, 15, 60, 300, 900, 1800, 3600, 7200, 21600, 86400}
)

// one registers a collector. Several services in one process share a registry:
// the one that comes second is given what is there.
func one[C prometheus.Collector](r prometheus.Registerer, c C) C {
	err := r.Register(c)
	if there, ok := errors.AsType[prometheus.AlreadyRegisteredError](err); ok {
		if same, ok := there.ExistingCollector.(C); ok {
			return same
		}
	}
	if err != nil {
		panic(err) // two metrics of one name and different shape: a bug in this file
	}
	return c
}

func counters(r prometheus.Registerer, name, help string, labels ...string) *prometheus.CounterVec {
	return one(r, prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels))
}

func gauges(r prometheus.Registerer, name, help string, labels ...string) *prometheus.GaugeVec {
	return one(r, prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, labels))
}

func histograms(r prometheus.Registerer, name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
	return one(r, prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets}, labels))
}
