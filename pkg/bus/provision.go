package bus

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/reeve-pipeline/reeve/pkg/pipeline"
)

// Options are what a deployment may choose about its streams. Zero fields have
// the defaults given.
type Options struct {
	// Stages each get a consumer; default: all of this build.
	Stages []pipeline.Stage
	// Partitions is the number of fan-in workers that outcomes are spread
	// over; default 1. A run's outcomes stay together.
	Partitions int
	// AckWait is how long a task stays in hand without a sign of life; default 30 s.
	AckWait time.Duration
	// TaskBytes, DoneBytes and AdvisoryBytes bound the streams; default 1 GiB,
	// 1 GiB and 64 MiB.
	TaskBytes, DoneBytes, AdvisoryBytes int64
	// Replicas of each stream in a cluster; default 1.
	Replicas int
	// DryRun says what would change, and changes nothing.
	DryRun bool
}

func (o Options) withDefaults() Options {
	if o.Stages == nil {
		o.Stages = pipeline.Stages()
	}
	set(&o.Partitions, 1)
	set(&o.AckWait, 30*time.Second)
	set(&o.TaskBytes, 1<<30)
	set(&o.DoneBytes, 1<<30)
	set(&o.AdvisoryBytes, 64<<20)
	set(&o.Replicas, 1)
	return o
}

func set[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// Change is one thing that [Provision] did, or would do.
type Change struct {
	Do   string // create, update or delete
	Kind string // stream or consumer
	Name string // as in REEVE_TASKS, or REEVE_TASKS/fetch
	// What lists the settings that an update changes: "max_bytes: 1 -> 2".
	What []string
}

func (c Change) String() string {
	s := c.Do + " " + c.Kind + " " + c.Name
	if len(c.What) > 0 {
		s += ": " + strings.Join(c.What, ", ")
	}
	return s
}

// ErrRefused says that a change would lose messages, or the thing is not Reeve's.
var ErrRefused = errors.New("refused")

// Metadata of streams and consumers. The server adds keys of its own, which
// begin with "_nats.".
const (
	metaApp        = "app"
	metaOwner      = "owner"
	metaStage      = "stage"
	metaSchema     = "schema_version"
	metaPartitions = "partitions"
	app            = "reeve"
)

func metadata(owner string, more ...string) map[string]string {
	m := map[string]string{metaApp: app, metaOwner: owner, metaSchema: strconv.Itoa(Schema)}
	for i := 0; i+1 < len(more); i += 2 {
		m[more[i]] = more[i+1]
	}
	return m
}

// Provision makes the streams and consumers what they should be and returns
// what it changed. It may be repeated, and run by several processes at once. It
// never loses a message: where a change would, the error wraps [ErrRefused],
// and what came before it stays done.
func Provision(ctx context.Context, js jetstream.JetStream, o Options) ([]Change, error) {
	p := &provisioner{js: js, Options: o.withDefaults()}
	if err := p.dropPartitions(ctx); err != nil {
		return p.changes, fmt.Errorf("provision stream %s: %w", DoneStream, err)
	}
	for _, s := range p.streams() {
		if err := p.stream(ctx, s); err != nil {
			return p.changes, fmt.Errorf("provision stream %s: %w", s.Name, err)
		}
	}
	for _, s := range p.Stages {
		if err := p.consumer(ctx, TaskStream, p.stageConsumer(s)); err != nil {
			return p.changes, fmt.Errorf("provision consumer %s of %s: %w", s.Name, TaskStream, err)
		}
	}
	for i := range p.Partitions {
		if err := p.consumer(ctx, DoneStream, fanInConsumer(i)); err != nil {
			return p.changes, fmt.Errorf("provision consumer %s of %s: %w", fanIn(i), DoneStream, err)
		}
	}
	return p.changes, nil
}

type provisioner struct {
	js jetstream.JetStream
	Options
	changes []Change
}

func (p *provisioner) streams() []jetstream.StreamConfig {
	return []jetstream.StreamConfig{
		{
			Name:                 TaskStream,
			Description:          "Tasks queued or in hand, one message each. May be lost: Postgres is the truth.",
			Subjects:             []string{"reeve.task.>"},
			Retention:            jetstream.WorkQueuePolicy,
			Storage:              jetstream.FileStorage,
			MaxMsgsPerSubject:    1,
			Discard:              jetstream.DiscardNew,
			DiscardNewPerSubject: true,
			MaxBytes:             p.TaskBytes,
			AllowDirect:          true,
			Replicas:             p.Replicas,
			Metadata:             metadata("dispatcher"),
		},
		{
			Name:              DoneStream,
			Description:       "Outcomes on their way to fan-in, kept for a week to be looked at.",
			Subjects:          []string{"reeve.done.>"},
			Retention:         jetstream.LimitsPolicy,
			Storage:           jetstream.FileStorage,
			Discard:           jetstream.DiscardNew,
			MaxBytes:          p.DoneBytes,
			MaxAge:            7 * 24 * time.Hour,
			MaxMsgsPerSubject: -1,
			AllowDirect:       true,
			Replicas:          p.Replicas,
			Metadata:          metadata("fanin", metaPartitions, strconv.Itoa(p.Partitions)),
		},
		{
			Name:        AdvisoryStream,
			Description: "What the server reports of messages given up or dropped.",
			Subjects: []string{
				"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + TaskStream + ".>",
				"$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + DoneStream + ".>",
				"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED." + TaskStream + ".>",
				"$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED." + DoneStream + ".>",
			},
			Retention:         jetstream.LimitsPolicy,
			Storage:           jetstream.FileStorage,
			Discard:           jetstream.DiscardOld,
			MaxBytes:          p.AdvisoryBytes,
			MaxAge:            7 * 24 * time.Hour,
			MaxMsgsPerSubject: -1,
			AllowDirect:       true,
			Replicas:          p.Replicas,
			Metadata:          metadata("operator"),
		},
	}
}

func (p *provisioner) stageConsumer(s pipeline.Stage) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       s.Name,
		Description:   fmt.Sprintf("Hands out the tasks of stage %s to the workers of service %s.", s.Name, s.Service),
		FilterSubject: stageFilter(s.Name),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       p.AckWait,
		MaxDeliver:    -1, // attempts are counted in Postgres
		MaxAckPending: s.MaxInFlight,
		MaxWaiting:    2048, // idle hands
		Metadata:      metadata(s.Service, metaStage, s.Name),
	}
}

func fanInConsumer(partition int) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable:       fanIn(partition),
		Description:   fmt.Sprintf("Hands out the outcomes of partition %d to fan-in.", partition),
		FilterSubject: partitionFilter(partition),
		AckPolicy:     jetstream.AckExplicitPolicy,
		AckWait:       15 * time.Second, // also how late a crashed fan-in's successor sees what was in its hands
		MaxDeliver:    -1,
		MaxAckPending: 2000,
		MaxWaiting:    512,
		Metadata:      metadata("fanin"),
	}
}

func (p *provisioner) stream(ctx context.Context, want jetstream.StreamConfig) error {
	s, err := p.js.Stream(ctx, want.Name)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return p.change(Change{Do: "create", Kind: "stream", Name: want.Name}, func() error {
			_, err := p.js.CreateStream(ctx, want)
			return err
		})
	}
	if err != nil {
		return err
	}
	have := s.CachedInfo().Config
	next := have
	next.Metadata = merged(have.Metadata, want.Metadata)
	var d diff
	field(&d, "description", &next.Description, want.Description)
	field(&d, "max_msgs_per_subject", &next.MaxMsgsPerSubject, want.MaxMsgsPerSubject)
	field(&d, "discard", &next.Discard, want.Discard)
	field(&d, "discard_new_per_subject", &next.DiscardNewPerSubject, want.DiscardNewPerSubject)
	field(&d, "max_bytes", &next.MaxBytes, want.MaxBytes)
	field(&d, "max_age", &next.MaxAge, want.MaxAge)
	field(&d, "allow_direct", &next.AllowDirect, want.AllowDirect)
	field(&d, "num_replicas", &next.Replicas, want.Replicas)
	d.subjects(have.Subjects, want.Subjects)
	next.Subjects = want.Subjects
	d.metadata(have.Metadata, next.Metadata)

	state := s.CachedInfo().State
	switch {
	case have.Metadata[metaApp] != app:
		return fmt.Errorf("%w: it exists and is not Reeve's (its metadata lacks app=%s): rename or delete it", ErrRefused, app)
	case have.Retention != want.Retention:
		return fmt.Errorf("%w: its retention is %s and must be %s, which cannot be changed without losing its messages: stop Reeve, delete the stream and provision again; the sweeper sends lost tasks again",
			ErrRefused, have.Retention, want.Retention)
	case have.Storage != want.Storage:
		return fmt.Errorf("%w: its storage is %s and must be %s, which cannot be changed without losing its messages: stop Reeve, delete the stream and provision again; the sweeper sends lost tasks again",
			ErrRefused, have.Storage, want.Storage)
	case want.MaxBytes < have.MaxBytes && state.Bytes > uint64(want.MaxBytes):
		return fmt.Errorf("%w: it holds %d bytes, more than the new limit of %d: drain it first", ErrRefused, state.Bytes, want.MaxBytes)
	case want.MaxAge > 0 && (have.MaxAge == 0 || want.MaxAge < have.MaxAge) && !state.FirstTime.IsZero() && time.Since(state.FirstTime) > want.MaxAge:
		return fmt.Errorf("%w: it holds messages older than the new limit of %v: drain it first", ErrRefused, want.MaxAge)
	case len(d) == 0:
		return nil
	}
	return p.change(Change{Do: "update", Kind: "stream", Name: want.Name, What: d}, func() error {
		_, err := p.js.UpdateStream(ctx, next)
		return err
	})
}

func (p *provisioner) consumer(ctx context.Context, stream string, want jetstream.ConsumerConfig) error {
	name := stream + "/" + want.Durable
	c, err := p.js.Consumer(ctx, stream, want.Durable)
	if errors.Is(err, jetstream.ErrConsumerNotFound) || p.DryRun && errors.Is(err, jetstream.ErrStreamNotFound) {
		return p.change(Change{Do: "create", Kind: "consumer", Name: name}, func() error {
			_, err := p.js.CreateOrUpdateConsumer(ctx, stream, want)
			return err
		})
	}
	if err != nil {
		return err
	}
	have := c.CachedInfo().Config
	next := have
	next.Metadata = merged(have.Metadata, want.Metadata)
	var d diff
	field(&d, "description", &next.Description, want.Description)
	field(&d, "filter_subject", &next.FilterSubject, want.FilterSubject)
	field(&d, "ack_wait", &next.AckWait, want.AckWait)
	field(&d, "max_deliver", &next.MaxDeliver, want.MaxDeliver)
	field(&d, "max_ack_pending", &next.MaxAckPending, want.MaxAckPending)
	d.metadata(have.Metadata, next.Metadata)
	switch {
	case have.AckPolicy != want.AckPolicy || have.DeliverPolicy != want.DeliverPolicy || have.DeliverSubject != "":
		return fmt.Errorf("%w: it delivers or acknowledges in another way, which cannot be changed: delete the consumer and provision again; its messages stay in the stream", ErrRefused)
	case len(d) == 0:
		return nil
	}
	return p.change(Change{Do: "update", Kind: "consumer", Name: name, What: d}, func() error {
		_, err := p.js.UpdateConsumer(ctx, stream, next)
		return err
	})
}

// dropPartitions deletes the consumers of partitions that are no more.
func (p *provisioner) dropPartitions(ctx context.Context) error {
	s, err := p.js.Stream(ctx, DoneStream)
	if errors.Is(err, jetstream.ErrStreamNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	consumers := s.ListConsumers(ctx)
	for info := range consumers.Info() {
		n, ok := strings.CutPrefix(info.Name, "fanin-")
		if i, err := strconv.Atoi(n); !ok || err != nil || i < p.Partitions {
			continue
		}
		if left := info.NumPending + uint64(info.NumAckPending); left > 0 {
			return fmt.Errorf("%w: consumer %s has %d messages of outcomes left: let fan-in work these off before the partitions are reduced", ErrRefused, info.Name, left)
		}
		err := p.change(Change{Do: "delete", Kind: "consumer", Name: DoneStream + "/" + info.Name}, func() error {
			err := p.js.DeleteConsumer(ctx, DoneStream, info.Name)
			if errors.Is(err, jetstream.ErrConsumerNotFound) {
				return nil
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return consumers.Err()
}

// change does it, unless this is a dry run, and notes it.
func (p *provisioner) change(c Change, do func() error) error {
	if !p.DryRun {
		if err := do(); err != nil {
			return err
		}
	}
	p.changes = append(p.changes, c)
	return nil
}

// diff gathers what differs.
type diff []string

// field sets a field to what it should be, and notes it if it was not.
func field[T comparable](d *diff, name string, have *T, want T) {
	if *have != want {
		*d = append(*d, fmt.Sprintf("%s: %v -> %v", name, *have, want))
		*have = want
	}
}

func (d *diff) subjects(have, want []string) {
	if strings.Join(have, " ") != strings.Join(want, " ") {
		*d = append(*d, fmt.Sprintf("subjects: %v -> %v", have, want))
	}
}

func (d *diff) metadata(have, next map[string]string) {
	if !maps.Equal(have, next) {
		*d = append(*d, "metadata")
	}
}

// merged is what there is, with ours over it.
func merged(have, ours map[string]string) map[string]string {
	m := maps.Clone(have)
	if m == nil {
		m = map[string]string{}
	}
	maps.Copy(m, ours)
	return m
}
