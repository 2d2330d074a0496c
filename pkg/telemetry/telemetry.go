// Package telemetry builds the logger and the metrics registry of a process,
// and is the one place where metrics are named. Nothing here is global:
// whoever logs or counts is given what it needs.
package telemetry

import (
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// Level reads a log level: debug, info, warn or error.
func Level(name string) (zapcore.Level, error) {
	level, err := zapcore.ParseLevel(name)
	if err != nil || name == "" || level < zapcore.DebugLevel || level > zapcore.ErrorLevel {
		return 0, fmt.Errorf("%q is not one of debug, info, warn, error", name)
	}
	return level, nil
}

// Logger writes to stderr: one JSON object a line with RFC 3339 times in UTC,
// or lines for people where format is console. Nothing is sampled away.
func Logger(level, format string) (*zap.Logger, error) {
	at, err := Level(level)
	if err != nil {
		return nil, err
	}
	c := zap.NewProductionConfig()
	c.Level = zap.NewAtomicLevelAt(at)
	c.Sampling = nil
	c.DisableStacktrace = true
	c.DisableCaller = true
	c.EncoderConfig.TimeKey = "ts"
	c.EncoderConfig.EncodeTime = func(t time.Time, enc zapcore.PrimitiveArrayEncoder) {
		zapcore.RFC3339NanoTimeEncoder(t.UTC(), enc)
	}
	c.EncoderConfig.EncodeDuration = zapcore.StringDurationEncoder
	if format == "console" {
		c.Encoding = "console"
		c.EncoderConfig.EncodeLevel = zapcore.CapitalLevelEncoder
		c.EncoderConfig.EncodeTime = zapcore.TimeEncoderOfLayout(time.TimeOnly)
	}
	return c.Build()
}

// Registry holds what every process reports of itself: the Go runtime, the
// process, and reeve_build_info.
func Registry(service, version string) *prometheus.Registry {
	info := prometheus.NewGauge(prometheus.GaugeOpts{
		Name:        "reeve_build_info",
		Help:        "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"service": service, "version": version},
	})
	info.Set(1)
	r := prometheus.NewRegistry()
	r.MustRegister(
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		info,
	)
	return r
}
