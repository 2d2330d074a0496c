package stage

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// Spawned items travel in parts of at most so many items and bytes.
const (
	partItems = 500
	partBytes = 256 << 10
)

// maxItem is the longest name of an item, in bytes.
const maxItem = 1024

// spawner makes the children of one attempt durable, each once.
type spawner struct {
	tell func(context.Context, Outcome) error
	// part is the outcome that carries items: everything but these.
	part Outcome

	mu   sync.Mutex
	seen map[string]struct{}
}

// spawn is [Task.Spawn].
func (s *spawner) spawn(ctx context.Context, items ...Item) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var part []SpawnedItem
	inPart, size := map[string]struct{}{}, 0
	flush := func() error {
		o := s.part
		o.Items = part
		if err := s.tell(ctx, o); err != nil {
			return fmt.Errorf("spawn: %w", err)
		}
		for name := range inPart {
			s.seen[name] = struct{}{}
		}
		part, inPart, size = nil, map[string]struct{}{}, 0
		return nil
	}
	for _, item := range items {
		_, old := s.seen[item.Item]
		_, twice := inPart[item.Item]
		if old || twice {
			continue
		}
		if err := ValidItem(item.Item); err != nil {
			return fault.Permanent(fmt.Errorf("spawn: %w", err))
		}
		spec, err := object(item.Spec)
		if err != nil {
			return fault.Permanent(fmt.Errorf("spawn: spec of item %s: %w", item.Item, err))
		}
		n := len(item.Item) + len(spec)
		if len(part) == partItems || len(part) > 0 && size+n > partBytes {
			if err := flush(); err != nil {
				return err
			}
		}
		part, size = append(part, SpawnedItem{Item: item.Item, Spec: spec}), size+n
		inPart[item.Item] = struct{}{}
	}
	if len(part) == 0 {
		return nil
	}
	return flush()
}

// spawned counts the different items that are durable.
func (s *spawner) spawned() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.seen)
}

// ValidItem reports why an item cannot have a name: it must be text of 1 to
// 1024 bytes.
func ValidItem(name string) error {
	switch {
	case name == "":
		return errors.New("an item has no name")
	case len(name) > maxItem:
		return fmt.Errorf("the name of item %s… is %d bytes long, at most %d are allowed", strings.ToValidUTF8(name[:64], ""), len(name), maxItem)
	case !utf8.ValidString(name), strings.ContainsRune(name, 0):
		return fmt.Errorf("the name of item %q is not text", name)
	}
	return nil
}

// object marshals what travels as a JSON object; nil becomes nothing.
func object(v any) (json.RawMessage, error) {
	if v == nil {
		return nil, nil
	}
	b, err := json.Marshal(v)
	switch {
	case err != nil:
		return nil, err
	case bytes.Equal(b, []byte("null")):
		return nil, nil
	case b[0] != '{':
		return nil, fmt.Errorf("%T does not marshal as a JSON object", v)
	}
	return b, nil
}
