package bus

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// InputsRequest asks for what a task reads besides its spec.
type InputsRequest struct {
	Run         int64
	Stage, Item string
	// Cursor is where the last page ended; empty for the first.
	Cursor string
}

const (
	// inputsTimeout bounds the wait for one page.
	inputsTimeout = 30 * time.Second
	// pageSize is how many inputs a page has at most.
	pageSize = 500
	// inputsHands is how many pages are read at once.
	inputsHands = 8
)

// Inputs reads a task's inputs from fan-in, page by page as they are asked
// for. An error ends them and has class infra.
func (b *Bus) Inputs(ctx context.Context, r InputsRequest) iter.Seq2[stage.Input, error] {
	return func(yield func(stage.Input, error) bool) {
		for {
			inputs, cursor, err := b.page(ctx, r)
			if err != nil {
				yield(stage.Input{}, fault.Infra(fmt.Errorf("inputs of %s/%s of run %d: %w", r.Stage, r.Item, r.Run, err)))
				return
			}
			for _, in := range inputs {
				if !yield(in, nil) {
					return
				}
			}
			if cursor == "" {
				return
			}
			r.Cursor = cursor
		}
	}
}

func (b *Bus) page(ctx context.Context, r InputsRequest) ([]stage.Input, string, error) {
	data, err := encode(wireInputsRequest{Run: wireInt64(r.Run), Stage: r.Stage, Item: r.Item, Cursor: r.Cursor})
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, inputsTimeout)
	defer cancel()
	msg, err := b.nc.RequestWithContext(ctx, inputsSubject(r.Stage), data)
	if errors.Is(err, nats.ErrNoResponders) {
		return nil, "", errors.New("nobody answers: is fan-in running?")
	}
	if err != nil {
		return nil, "", err
	}
	var reply wireInputsReply
	if err := json.Unmarshal(msg.Data, &reply); err != nil {
		return nil, "", fmt.Errorf("reply: %w", err)
	}
	if reply.Error != "" {
		return nil, "", errors.New(reply.Error)
	}
	inputs := make([]stage.Input, 0, len(reply.Inputs))
	for _, in := range reply.Inputs {
		inputs = append(inputs, stage.Input{Item: in.Item, Status: in.Status, Output: json.RawMessage(in.Output), Artifacts: artifactsIn(in.Artifacts)})
	}
	return inputs, reply.Cursor, nil
}

// PageFunc reads one page of at most limit inputs, and says where the next one
// begins: empty after the last. The cursor is its own and means nothing here.
type PageFunc func(ctx context.Context, r InputsRequest, limit int) (inputs []stage.Input, cursor string, err error)

// ServeInputs answers requests for inputs until ctx ends, sharing them with
// all who serve in the same group. A page that is too large for a message is
// read again with fewer inputs.
func (b *Bus) ServeInputs(ctx context.Context, group string, page PageFunc) error {
	requests := make(chan *nats.Msg, 256)
	sub, err := b.nc.ChanQueueSubscribe("reeve.inputs.*", group, requests)
	if err != nil {
		return fmt.Errorf("serve inputs: %w", err)
	}
	var hands sync.WaitGroup
	for range inputsHands {
		hands.Go(func() {
			for {
				select {
				case <-ctx.Done():
					return
				case msg := <-requests:
					b.answer(ctx, msg, page)
				}
			}
		})
	}
	<-ctx.Done()
	hands.Wait()
	return sub.Unsubscribe()
}

func (b *Bus) answer(ctx context.Context, msg *nats.Msg, page PageFunc) {
	ctx, cancel := context.WithTimeout(ctx, inputsTimeout)
	defer cancel()
	data, err := b.readPage(ctx, msg.Data, page)
	if err != nil {
		data, err = encode(wireInputsReply{Error: text(err.Error())})
	}
	if err == nil {
		_ = msg.Respond(data) // who asked asks again
	}
}

func (b *Bus) readPage(ctx context.Context, request []byte, page PageFunc) ([]byte, error) {
	var r wireInputsRequest
	if err := json.Unmarshal(request, &r); err != nil {
		return nil, fmt.Errorf("request: %w", err)
	}
	for limit := pageSize; ; {
		inputs, cursor, err := page(ctx, InputsRequest{Run: int64(r.Run), Stage: r.Stage, Item: r.Item, Cursor: r.Cursor}, limit)
		if err != nil {
			return nil, err
		}
		reply := wireInputsReply{Cursor: cursor}
		for _, in := range inputs {
			reply.Inputs = append(reply.Inputs, wireInput{Item: in.Item, Status: in.Status, Output: object(in.Output), Artifacts: artifactsOut(in.Artifacts)})
		}
		data, err := encode(reply)
		if err != nil {
			return nil, err
		}
		if len(data) <= b.maxPayload() {
			return data, nil
		}
		if limit == 1 {
			return nil, fmt.Errorf("input %s has %d bytes, at most %d fit a message", inputs[0].Item, len(data), b.maxPayload())
		}
		// As many as would fit if all were of one size, and some less.
		limit = max(1, min(limit/2, len(inputs)*b.maxPayload()/len(data)*3/4))
	}
}
