package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"

	"github.com/reeve-pipeline/reeve/pkg/stage"
)

const (
	// batchOutcomes and batchBytes are what a batch has at most, give or take
	// the last message's: one transaction's worth, the children of a listing of
	// any length included.
	batchOutcomes = 2000
	batchBytes    = 8 << 20
	// doneAhead is how many messages of outcomes are on their way here at most.
	doneAhead = 256
	// trimEvery is the least time between two looks at how full the stream is.
	trimEvery = time.Minute
)

// Outcomes reads the outcomes of one partition, for one goroutine. It goes on
// whatever happens to the server, the connection or the consumer meanwhile.
type Outcomes struct {
	bus       *Bus
	log       *zap.Logger
	partition int

	messages chan jetstream.Msg
	end      context.CancelFunc
	ended    chan struct{}
	err      error // why the pump has ended; read after ended is closed
	trimmed  time.Time
	idle     time.Duration // how long nothing comes before room is made
}

// Batch is what one transaction takes.
type Batch struct {
	Outcomes []stage.Outcome
	// Poison lists the messages that cannot be read, wholly or in part.
	Poison []Poison

	from   *Outcomes
	bytes  int
	good   []jetstream.Msg
	poison []jetstream.Msg
}

// Poison is a message that cannot be read.
type Poison struct {
	Subject string
	Seq     uint64 // in the stream
	Data    []byte
	Err     error
}

// Outcomes begins to read the outcomes of a partition. [Outcomes.Close] ends it.
func (b *Bus) Outcomes(ctx context.Context, partition int, log *zap.Logger) (*Outcomes, error) {
	if _, err := b.js.Consumer(ctx, DoneStream, fanIn(partition)); err != nil {
		return nil, fmt.Errorf("consumer %s: %w", fanIn(partition), provisionFirst(err))
	}
	ctx, end := context.WithCancel(context.WithoutCancel(ctx))
	o := &Outcomes{bus: b, log: log, partition: partition, messages: make(chan jetstream.Msg, doneAhead), end: end, ended: make(chan struct{}), trimmed: time.Now(), idle: trimEvery}
	go o.pump(ctx)
	return o, nil
}

// pump moves messages from the puller, which can only be waited for, to a
// channel, which can be asked whether there are any.
func (o *Outcomes) pump(ctx context.Context) {
	defer close(o.ended)
	p := &puller{bus: o.bus, log: o.log, stream: DoneStream, consumer: fanIn(o.partition), ahead: doneAhead}
	defer p.stop()
	for {
		msg, err := p.next(ctx)
		if err != nil {
			o.err = err
			return
		}
		select {
		case o.messages <- msg:
		case <-ctx.Done():
			o.err = ctx.Err()
			_ = msg.NakWithDelay(giveBackDelay) // or it comes back when its AckWait ends
			return
		}
	}
}

// Close gives back what is not yet in a batch. A batch that was not
// acknowledged is handed out again after a while.
func (o *Outcomes) Close() {
	o.end()
	<-o.ended
	for {
		select {
		case msg := <-o.messages:
			_ = msg.NakWithDelay(giveBackDelay) // or it comes back when its AckWait ends
		default:
			return
		}
	}
}

// Next waits for outcomes and returns those that are there, without waiting
// for more. It returns the error of ctx when that ends; any other error means
// that the connection is closed for good.
func (o *Outcomes) Next(ctx context.Context) (*Batch, error) {
	batch := &Batch{from: o}
	for batch.bytes == 0 {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-o.ended:
			return nil, o.err
		case msg := <-o.messages:
			batch.add(msg)
		case <-time.After(o.idle):
			o.trim() // the stream may be too full for anything to come
		}
	}
	for len(batch.Outcomes) < batchOutcomes && batch.bytes < batchBytes {
		select {
		case msg := <-o.messages:
			batch.add(msg)
		default:
			return batch, nil
		}
	}
	return batch, nil
}

func (b *Batch) add(msg jetstream.Msg) {
	b.bytes += max(1, len(msg.Data()))
	outcomes, err := decodeOutcomes(msg.Data())
	b.Outcomes = append(b.Outcomes, outcomes...)
	if err == nil {
		b.good = append(b.good, msg)
		return
	}
	b.poison = append(b.poison, msg)
	p := Poison{Subject: msg.Subject(), Data: msg.Data(), Err: err}
	if meta, err := msg.Metadata(); err == nil {
		p.Seq = meta.Sequence.Stream
	}
	b.Poison = append(b.Poison, p)
}

// Ack says that everything in the batch is durable elsewhere. An error is only
// worth a line in the log: what is not acknowledged comes again.
func (b *Batch) Ack() error {
	var errs []error
	for _, msg := range b.good {
		errs = append(errs, msg.Ack())
	}
	for _, msg := range b.poison {
		errs = append(errs, msg.TermWithReason("unreadable"))
	}
	b.from.trim()
	return errors.Join(errs...)
}

// trim makes room before the stream is full: when it is half full, it forgets
// outcomes that every partition has acknowledged. It looks at most once in
// trimEvery.
func (o *Outcomes) trim() {
	if time.Since(o.trimmed) < trimEvery {
		return
	}
	o.trimmed = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), ackTimeout)
	defer cancel()
	if err := o.bus.trimDone(ctx); err != nil {
		o.log.Warn("outcomes not trimmed", zap.Error(err))
	}
}

func (b *Bus) trimDone(ctx context.Context) error {
	s, err := b.js.Stream(ctx, DoneStream)
	if err != nil {
		return err
	}
	info := s.CachedInfo()
	if limit := info.Config.MaxBytes; limit <= 0 || info.State.Bytes < uint64(limit)/2 {
		return nil
	}
	floor, err := b.counted(ctx, s)
	if err != nil {
		return err
	}
	return s.Purge(ctx, jetstream.WithPurgeSequence(floor+1))
}

// counted returns up to where in the stream of outcomes all of them have been
// acknowledged: as of s, or a little earlier.
//
// A partition's last outcome is looked up rather than its consumer's number of
// pending messages asked for, which lags behind what has been published.
func (b *Bus) counted(ctx context.Context, s jetstream.Stream) (uint64, error) {
	partitions, err := b.Partitions(ctx)
	if err != nil {
		return 0, err
	}
	floor := s.CachedInfo().State.LastSeq
	for i := range partitions {
		last, err := s.GetLastMsgForSubject(ctx, partitionFilter(i))
		if errors.Is(err, jetstream.ErrMsgNotFound) {
			continue
		}
		if err != nil {
			return 0, fmt.Errorf("last outcome of partition %d: %w", i, err)
		}
		c, err := s.Consumer(ctx, fanIn(i))
		if err != nil {
			return 0, fmt.Errorf("consumer %s: %w", fanIn(i), provisionFirst(err))
		}
		if done := c.CachedInfo().AckFloor.Stream; done < last.Sequence {
			floor = min(floor, done)
		}
	}
	return floor, nil
}
