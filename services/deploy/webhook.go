package deploy

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/reeve-pipeline/reeve/pkg/fault"
)

// answerSize is how much of a receiver's refusal its error shows, in bytes.
const answerSize = 512

// Webhook is the hook that tells a receiver by a POST signed as Standard
// Webhooks has it: webhook-id, the same for every try; webhook-timestamp; and
// webhook-signature, one for each secret.
type Webhook struct {
	URL     string
	Secrets [][]byte
	Client  *http.Client // must follow no redirects
	Timeout time.Duration
	Now     func() time.Time // for the timestamp, which receivers check
}

// Secrets reads secrets separated by spaces, so that a new one can be put
// beside the old until receivers know it. Each is "whsec_" and base64, or taken
// as it stands; none is shorter than 24 bytes.
func Secrets(s string) ([][]byte, error) {
	var secrets [][]byte
	for i, one := range strings.Fields(s) {
		secret := []byte(one)
		if coded, ok := strings.CutPrefix(one, "whsec_"); ok {
			var err error
			if secret, err = base64.StdEncoding.DecodeString(coded); err != nil {
				return nil, fmt.Errorf("secret %d is no base64 after whsec_", i+1)
			}
		}
		if len(secret) < 24 {
			return nil, fmt.Errorf("secret %d is shorter than 24 bytes", i+1)
		}
		secrets = append(secrets, secret)
	}
	if len(secrets) == 0 {
		return nil, errors.New("a webhook needs a secret to sign with")
	}
	return secrets, nil
}

// message is what a receiver is told. It is the same for every try.
type message struct {
	Type string `json:"type"`
	Data struct {
		Subdomain string `json:"subdomain"`
		Version   string `json:"version"`
		SHA256    string `json:"database_sha256"`
		Size      int64  `json:"database_size"` // bytes
		Documents int    `json:"documents"`
		Minutes   int    `json:"minutes"` // pages
		Agendas   int    `json:"agendas"` // pages
	} `json:"data"`
}

// Name is the hook's name.
func (Webhook) Name() string { return "webhook" }

// Run sends the message. Any answer but 2xx is an error that may pass, for a
// receiver that is being set up says 404 too; only 410 Gone is final.
func (w Webhook) Run(ctx context.Context, r Release) error {
	m := message{Type: "site.deployed"}
	m.Data.Subdomain, m.Data.Version = r.Site.Subdomain, r.Version
	m.Data.SHA256, m.Data.Size = r.Compiled.Database.SHA256, r.Compiled.Database.Size
	m.Data.Documents, m.Data.Minutes, m.Data.Agendas = r.Documents, r.Minutes, r.Agendas
	body, err := json.Marshal(m)
	if err != nil {
		return fault.Permanent(err)
	}
	ctx, cancel := context.WithTimeout(ctx, w.Timeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.URL, bytes.NewReader(body))
	if err != nil {
		return fault.Permanent(err)
	}
	at := strconv.FormatInt(w.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Webhook-Id", r.ID)
	req.Header.Set("Webhook-Timestamp", at)
	req.Header.Set("Webhook-Signature", sign(w.Secrets, r.ID, at, body))
	resp, err := w.Client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if resp.StatusCode/100 == 2 {
		return nil
	}
	answer, _ := io.ReadAll(io.LimitReader(resp.Body, answerSize))
	err = fmt.Errorf("%s answered %s: %.*q", req.URL.Redacted(), resp.Status, answerSize, answer)
	switch resp.StatusCode {
	case http.StatusGone:
		return fault.Permanent(err)
	case http.StatusTooManyRequests, http.StatusServiceUnavailable:
		return fault.HTTP(resp.StatusCode, resp.Header, err)
	}
	return err
}

// sign makes the signatures of a message, one for each secret.
func sign(secrets [][]byte, id, at string, body []byte) string {
	var all []string
	for _, secret := range secrets {
		h := hmac.New(sha256.New, secret)
		fmt.Fprintf(h, "%s.%s.", id, at)
		h.Write(body)
		all = append(all, "v1,"+base64.StdEncoding.EncodeToString(h.Sum(nil)))
	}
	return strings.Join(all, " ")
}
