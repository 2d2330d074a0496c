package bus

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// The streams, one each of the whole deployment.
const (
	// TaskStream holds the tasks that are queued or in hand: at most one
	// message per task.
	TaskStream = "REEVE_TASKS"
	// DoneStream holds the outcomes on their way to fan-in.
	DoneStream = "REEVE_DONE"
	// AdvisoryStream holds what the server itself reports of messages given up.
	AdvisoryStream = "REEVE_ADVISORIES"
)

// TaskRef names a task's message.
type TaskRef struct {
	Stage    string
	Priority int // 0 high, 1 normal, 2 low
	Pipeline string
	Run      int64
	Item     string
}

// Subject is where the task's message stands:
//
//	reeve.task.STAGE.PRIORITY.PIPELINE.RUN.ITEM
//
// The item is escaped, see [EscapeItem].
func (r TaskRef) Subject() string {
	return fmt.Sprintf("reeve.task.%s.%d.%s.%d.%s", r.Stage, r.Priority, r.Pipeline, r.Run, EscapeItem(r.Item))
}

// ParseTaskSubject is the inverse of [TaskRef.Subject]. When the item was too
// long to stand in the subject, whole is false and Item is empty.
func ParseTaskSubject(subject string) (ref TaskRef, whole bool, err error) {
	bad := func(err error) (TaskRef, bool, error) {
		return TaskRef{}, false, fmt.Errorf("subject %q is not a task's: %w", subject, err)
	}
	tokens := strings.Split(subject, ".")
	if len(tokens) != 7 || tokens[0] != "reeve" || tokens[1] != "task" {
		return bad(errors.New("it must read reeve.task.STAGE.PRIORITY.PIPELINE.RUN.ITEM"))
	}
	ref.Stage, ref.Pipeline = tokens[2], tokens[4]
	if ref.Priority, err = strconv.Atoi(tokens[3]); err != nil {
		return bad(err)
	}
	if ref.Run, err = strconv.ParseInt(tokens[5], 10, 64); err != nil {
		return bad(err)
	}
	if ref.Item, whole, err = UnescapeItem(tokens[6]); err != nil {
		return bad(err)
	}
	return ref, whole, nil
}

// DoneSubject is where outcomes of a stage go: reeve.done.PARTITION.STAGE.
func DoneSubject(partition int, stage string) string {
	return fmt.Sprintf("reeve.done.%d.%s", partition, stage)
}

// Partition is the partition that a run's outcomes go to.
func Partition(run int64, partitions int) int {
	return int(uint64(run) % uint64(max(1, partitions)))
}

// fanIn names the consumer of a partition.
func fanIn(partition int) string { return "fanin-" + strconv.Itoa(partition) }

func partitionFilter(partition int) string { return fmt.Sprintf("reeve.done.%d.>", partition) }

const wakeSubject = "reeve.wake"

func inputsSubject(stage string) string { return "reeve.inputs." + stage }

func cancelSubject(run int64) string { return fmt.Sprintf("reeve.cancel.%d", run) }

// maxToken is the longest escaped item that stands in a subject as it is, in bytes.
const maxToken = 200

// EscapeItem makes an item's name one token of a subject. Letters, digits, "_"
// and "-" stay; every other byte becomes "=" and two hex digits; no bytes at all
// become "=". Different names become different tokens. A name that would be
// longer than 200 bytes keeps its beginning, followed by "~" and a digest of
// the whole.
func EscapeItem(item string) string {
	if item == "" {
		return "="
	}
	plain := true
	for i := range len(item) {
		plain = plain && kept(item[i])
	}
	if plain && len(item) <= maxToken {
		return item
	}
	var b strings.Builder
	cut := 0 // the longest beginning that leaves room for the digest
	for i := range len(item) {
		if c := item[i]; kept(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "=%02X", c)
		}
		if b.Len() <= maxToken-1-2*digestLen {
			cut = b.Len()
		}
	}
	if b.Len() <= maxToken {
		return b.String()
	}
	sum := sha256.Sum256([]byte(item))
	return b.String()[:cut] + "~" + hex.EncodeToString(sum[:digestLen])
}

// digestLen is the number of bytes of a long item's digest.
const digestLen = 16

// UnescapeItem is the inverse of [EscapeItem]. whole is false for a name that
// was too long; then it cannot be told and is empty.
func UnescapeItem(token string) (item string, whole bool, err error) {
	if token == "=" {
		return "", true, nil
	}
	var b strings.Builder
	for i := 0; i < len(token); i++ {
		switch c := token[i]; {
		case kept(c):
			b.WriteByte(c)
		case c == '=' && i+2 < len(token):
			v, err := strconv.ParseUint(token[i+1:i+3], 16, 8)
			if err != nil {
				return "", false, fmt.Errorf("item %q: %w", token, err)
			}
			b.WriteByte(byte(v))
			i += 2
		case c == '~' && len(token)-i-1 == 2*digestLen:
			return "", false, nil
		default:
			return "", false, fmt.Errorf("item %q: unexpected %q", token, c)
		}
	}
	if EscapeItem(b.String()) != token {
		return "", false, fmt.Errorf("item %q is not how it would be escaped", token)
	}
	return b.String(), true, nil
}

func kept(c byte) bool {
	return 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '-'
}
