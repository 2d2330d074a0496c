package bus

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	"go.uber.org/zap"
)

const (
	// pullExpiry and pullHeartbeat are of one request for messages. Two
	// heartbeats missed mean that the server has forgotten the request.
	pullExpiry    = 30 * time.Second
	pullHeartbeat = 3 * time.Second
	// giveBackDelay keeps messages given back away from requests that are just
	// being cancelled: there they would be lost until their AckWait ends.
	giveBackDelay = 250 * time.Millisecond
	// drainWait bounds the wait for messages on their way to a cancelled request.
	drainWait = 2 * time.Second
)

// puller takes messages from one consumer, whatever happens to the server, the
// connection or the consumer meanwhile. It is for one goroutine.
type puller struct {
	bus      *Bus
	log      *zap.Logger
	stream   string
	consumer string
	// ahead is how many messages may be on their way here before they are
	// asked for; 1 means none but the one asked for.
	ahead int

	messages   jetstream.MessagesContext // nil when there is none
	reconnects uint64                    // of the connection, when messages was made
}

// next waits for a message. It returns the error of ctx when that ends; any
// other error means that the connection is closed for good.
func (p *puller) next(ctx context.Context) (jetstream.Msg, error) {
	wait := 50 * time.Millisecond
	for {
		msg, err := p.try(ctx)
		switch {
		case err == nil:
			return msg, nil
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case p.bus.nc.IsClosed():
			return nil, nats.ErrConnectionClosed
		}
		p.stop()
		log := p.log.With(zap.String("stream", p.stream), zap.String("consumer", p.consumer), zap.Error(err))
		switch {
		case errors.Is(err, jetstream.ErrNoHeartbeat):
			log.Debug("no word from the server; asking again")
			continue
		case errors.Is(err, jetstream.ErrConsumerNotFound), errors.Is(err, jetstream.ErrStreamNotFound), errors.Is(err, jetstream.ErrConsumerDeleted):
			log.Error("consumer is gone: provision the bus; waiting for it", zap.Duration("again_in", wait))
		default:
			log.Warn("bus does not answer; waiting for it", zap.Duration("again_in", wait))
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(wait):
		}
		wait = min(2*wait, 2*time.Second)
	}
}

func (p *puller) try(ctx context.Context) (jetstream.Msg, error) {
	if p.messages != nil && p.ahead == 1 && p.reconnects != p.bus.nc.Stats().Reconnects {
		// The request from before may still stand beside the one that
		// follows a reconnect, and bring a message that nobody waits for.
		p.stop()
	}
	if p.messages == nil {
		p.reconnects = p.bus.nc.Stats().Reconnects
		c, err := p.bus.js.Consumer(ctx, p.stream, p.consumer)
		if err != nil {
			return nil, err
		}
		p.messages, err = c.Messages(jetstream.PullMaxMessages(p.ahead), jetstream.PullExpiry(pullExpiry), jetstream.PullHeartbeat(pullHeartbeat))
		if err != nil {
			p.messages = nil
			return nil, fmt.Errorf("pull: %w", err)
		}
	}
	return p.messages.Next(jetstream.NextContext(ctx))
}

// stop takes no more messages and gives back those that are here or on their
// way.
func (p *puller) stop() {
	if p.messages == nil {
		return
	}
	p.messages.Drain()
	for {
		msg, err := p.messages.Next(jetstream.NextMaxWait(drainWait))
		if err != nil {
			break // all seen, or the connection is down
		}
		_ = msg.NakWithDelay(giveBackDelay) // or it comes back when its AckWait ends
	}
	p.messages = nil
}
