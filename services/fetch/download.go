package fetch

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"mime"
	"net/http"
	"net/url"
	"os"
	"strings"

	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/stage"
)

// Store keeps documents. Put is atomic, computes the digest, and may find the
// same bytes there already.
type Store interface {
	Put(ctx context.Context, key string, r io.Reader, size int64, contentType string) (stage.Artifact, error)
}

// file is the name under which a document's bytes are kept.
const file = "source.pdf"

// download stores a document off the web. It asks only for what has changed
// where the earlier bytes need no further work.
func (f *Fetcher) download(ctx context.Context, subdomain string, spec Spec) (stage.Result, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, spec.Source, http.NoBody)
	if err != nil {
		return stage.Result{}, fault.Permanentf("source: %w", err)
	}
	conditional := spec.Previous != nil && spec.Previous.Settled
	if conditional {
		if tag := spec.Previous.ETag; tag != "" {
			req.Header.Set("If-None-Match", tag)
		}
		if at := spec.Previous.LastModified; at != "" {
			req.Header.Set("If-Modified-Since", at)
		}
	}
	req.Header.Set("Accept", "application/pdf,*/*;q=0.5")
	resp, err := f.web.Do(req)
	if err != nil {
		return stage.Result{}, fmt.Errorf("download: %w", err)
	}
	defer resp.Body.Close()
	spec.ETag, spec.LastModified = resp.Header.Get("ETag"), resp.Header.Get("Last-Modified")
	switch {
	case resp.StatusCode == http.StatusNotModified && conditional:
		if spec.ETag == "" {
			spec.ETag = spec.Previous.ETag
		}
		if spec.LastModified == "" {
			spec.LastModified = spec.Previous.LastModified
		}
		return unchanged(spec), nil
	case resp.StatusCode != http.StatusOK:
		return stage.Result{}, refusal(resp)
	case resp.ContentLength > int64(f.MaxSize):
		return stage.Result{}, tooLarge(spec.Source, int64(f.MaxSize))
	}

	temp, err := os.CreateTemp(f.Temp, "reeve-fetch-*")
	if err != nil {
		return stage.Result{}, fault.Infra(err)
	}
	defer func() { _ = temp.Close(); _ = os.Remove(temp.Name()) }()
	m := newMeasure(temp)
	_, err = io.Copy(m, io.LimitReader(resp.Body, int64(f.MaxSize)+1))
	switch _, disk := errors.AsType[*os.PathError](err); {
	case disk:
		return stage.Result{}, fault.Infra(err)
	case err != nil:
		return stage.Result{}, fmt.Errorf("download %s: cut off after %d bytes: %w", spec.Source, m.size, err)
	}
	if _, err := temp.Seek(0, io.SeekStart); err != nil {
		return stage.Result{}, fault.Infra(err)
	}
	return f.keep(ctx, subdomain, spec, m, temp)
}

// refusal is the error of an answer other than the one hoped for.
func refusal(resp *http.Response) error {
	return fault.HTTP(resp.StatusCode, resp.Header, fmt.Errorf("%s answered %s", resp.Request.URL.Redacted(), resp.Status))
}

// keep judges the bytes that m has measured and r holds, and stores them if
// they are new.
func (f *Fetcher) keep(ctx context.Context, subdomain string, spec Spec, m *measure, r io.Reader) (stage.Result, error) {
	if m.size > int64(f.MaxSize) {
		return stage.Result{}, tooLarge(spec.Source, int64(f.MaxSize))
	}
	if err := m.check(); err != nil {
		return stage.Result{}, fault.Permanentf("%s: %w", spec.Source, err)
	}
	spec.SHA256, spec.Size, spec.Version = m.sum(), m.size, 1
	spec.Key = civic.DocumentKey(subdomain, spec.ID, spec.SHA256, file)
	if p := spec.Previous; p != nil {
		spec.Version = p.Version
		if p.SHA256 != spec.SHA256 {
			spec.Version++
		} else if p.Settled {
			result := unchanged(spec)
			result.Metrics = map[string]float64{"bytes_read": float64(m.size)}
			return result, nil
		}
	}
	a, err := f.store.Put(ctx, spec.Key, r, m.size, "application/pdf")
	if err != nil {
		return stage.Result{}, fmt.Errorf("store %s: %w", spec.Source, err)
	}
	if a.SHA256 != spec.SHA256 {
		return stage.Result{}, fmt.Errorf("%s changed while it was read", spec.Source)
	}
	return stage.Result{
		Output:    spec.Document,
		Artifacts: []stage.Artifact{a},
		Metrics:   map[string]float64{"bytes_read": float64(m.size), "bytes_stored": float64(m.size)},
	}, nil
}

// unchanged ends a document's way: what an earlier run made of it stands.
func unchanged(spec Spec) stage.Result {
	p := spec.Previous
	spec.Key, spec.SHA256, spec.Size, spec.Version = p.Key, p.SHA256, p.Size, p.Version
	return stage.Result{Output: spec.Document, Skip: "unchanged"}
}

func tooLarge(source string, limit int64) error {
	return fault.Permanentf("%s is larger than %d bytes; raise fetch.max_size to take it", source, limit)
}

// magic begins a PDF, within its first sniffed bytes.
var magic = []byte("%PDF-")

const sniffed = 1024

// measure passes bytes on and takes their measure: size, digest and beginning.
type measure struct {
	w    io.Writer
	size int64
	hash hash.Hash
	head []byte
}

func newMeasure(w io.Writer) *measure { return &measure{w: w, hash: sha256.New()} }

func (m *measure) Write(p []byte) (int, error) {
	n, err := m.w.Write(p)
	m.size += int64(n)
	m.hash.Write(p[:n])
	if len(m.head) < sniffed {
		m.head = append(m.head, p[:min(n, sniffed-len(m.head))]...)
	}
	return n, err
}

func (m *measure) sum() string { return hex.EncodeToString(m.hash.Sum(nil)) }

// check says why the bytes are no PDF.
func (m *measure) check() error {
	switch {
	case m.size == 0:
		return errors.New("is empty: 0 bytes")
	case bytes.Contains(m.head, magic):
		return nil
	}
	return fmt.Errorf("is no PDF: begins with %s", looks(m.head))
}

// looks shows how some bytes begin, in a form fit for an error's message.
func looks(head []byte) string {
	text := strings.Join(strings.Fields(string(head[:min(len(head), 64)])), " ")
	r := []rune(text)
	return fmt.Sprintf("%.40q", string(r[:min(len(r), 40)]))
}

// isHTML and isPDFBody tell an answer's kind by its header and beginning.
func isHTML(contentType string, head []byte) bool {
	media, _, _ := mime.ParseMediaType(contentType)
	if media == "text/html" || media == "application/xhtml+xml" {
		return true
	}
	return strings.HasPrefix(http.DetectContentType(head), "text/html")
}

// canonical is a URL as a document's source: without fragment, in one spelling.
func canonical(u *url.URL) string {
	c := *u
	c.Fragment, c.RawFragment = "", ""
	c.Host = strings.ToLower(c.Host)
	if port := c.Port(); port == "80" && c.Scheme == "http" || port == "443" && c.Scheme == "https" {
		c.Host = strings.TrimSuffix(c.Host, ":"+port)
	}
	if c.Path == "" {
		c.Path = "/"
	}
	return c.String()
}
