package deploy

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/reeve-pipeline/reeve/pkg/artifact"
	"github.com/reeve-pipeline/reeve/pkg/civic"
	"github.com/reeve-pipeline/reeve/pkg/egress"
	"github.com/reeve-pipeline/reeve/pkg/fault"
	"github.com/reeve-pipeline/reeve/pkg/s3test"
	"github.com/reeve-pipeline/reeve/pkg/stage"
	"github.com/reeve-pipeline/reeve/pkg/stagetest"
)

func put(t *testing.T, store *artifact.Store, key, text string) civic.Object {
	t.Helper()
	a, err := store.Put(t.Context(), key, strings.NewReader(text), int64(len(text)), "")
	if err != nil {
		t.Fatal(err)
	}
	return civic.Object{Key: a.Key, Size: a.Size, SHA256: a.SHA256}
}

// publish puts a version of a site into the store as compilation does.
func publish(t *testing.T, store *artifact.Store, version string) civic.Compiled {
	t.Helper()
	c := civic.Compiled{Site: civic.Site{Subdomain: "town.ca"}, Version: version, Documents: 3, Minutes: 20, Agendas: 4}
	home := "sites/town.ca/versions/" + version
	c.Database = put(t, store, home+"/meetings.db", "database "+version)
	m, err := json.Marshal(civic.Manifest{Subdomain: "town.ca", Version: version, Database: c.Database})
	if err != nil {
		t.Fatal(err)
	}
	c.Manifest = put(t, store, home+"/manifest.json", string(m))
	put(t, store, civic.SiteKey("town.ca", "manifest.json"), string(m))
	return c
}

func task(t *testing.T, c civic.Compiled) *stage.Task {
	t.Helper()
	spec, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	return &stage.Task{Run: 12, Subject: "town.ca", Stage: Name, Item: "text", Generation: 2, Spec: spec}
}

// note is a hook that keeps what it was given.
type note struct {
	name string
	got  []string
	err  error
}

func (n *note) Name() string { return n.name }

func (n *note) Run(_ context.Context, r Release) error {
	db, err := os.ReadFile(r.Database)
	n.got = append(n.got, r.ID+" "+string(db))
	return errors.Join(err, n.err)
}

func TestHandle(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	c := publish(t, store, strings.Repeat("a", 64))
	first, second := &note{name: "first"}, &note{name: "second", err: errors.New("no room")}

	got, err := New(store, true, "", first).Handle(t.Context(), task(t, c))
	if err != nil || len(first.got) != 0 {
		t.Fatalf("dev mode ran %v: %v", first.got, err)
	}
	if diff := cmp.Diff(civic.Deployed{Version: c.Version, Hooks: []string{}, DryRun: true}, got.Output); diff != "" {
		t.Error(diff)
	}

	temp := t.TempDir()
	d := New(store, false, temp, first, second)
	_, err = d.Handle(t.Context(), task(t, c))
	if err == nil || fault.Of(err) != fault.ClassTransient || !strings.Contains(err.Error(), "hook second: no room") {
		t.Fatalf("a hook that failed: %v", err)
	}
	second.err = nil
	got, err = d.Handle(t.Context(), task(t, c))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(civic.Deployed{Version: c.Version, Hooks: []string{"first", "second"}}, got.Output); diff != "" {
		t.Error(diff)
	}
	want := "run-12-deploy-2-text-aaaaaaaaaaaa database " + c.Version
	if diff := cmp.Diff([]string{want, want}, first.got); diff != "" {
		t.Error(diff)
	}
	if left, _ := os.ReadDir(temp); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A deploy that is tried again after a newer one has been compiled is skipped.
func TestHandle_overtaken(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	old := publish(t, store, strings.Repeat("a", 64))
	old.Site.DeployedVersion = "before"
	newer := publish(t, store, strings.Repeat("b", 64))
	hook := &note{name: "hook"}
	d := New(store, false, "", hook)
	if r, err := d.Handle(t.Context(), task(t, old)); err != nil || r.Skip != "superseded" || len(hook.got) != 0 {
		t.Errorf("%+v, %v, ran %v", r, err, hook.got)
	}
	if r, err := d.Handle(t.Context(), task(t, old)); err != nil || r.Output.(civic.Deployed).Version != "before" {
		t.Errorf("a superseded deploy claims %+v, %v", r.Output, err)
	}
	if r, err := d.Handle(t.Context(), task(t, newer)); err != nil || r.Skip != "" || len(hook.got) != 1 {
		t.Errorf("%+v, %v, ran %v", r, err, hook.got)
	}
}

func TestHandle_bytesThatAreNotThose(t *testing.T) {
	t.Parallel()
	store := s3test.Open(t)
	c := publish(t, store, "v")
	put(t, store, c.Database.Key, "something else")
	hook := &note{name: "hook"}
	if _, err := New(store, false, "", hook).Handle(t.Context(), task(t, c)); err == nil || len(hook.got) != 0 {
		t.Errorf("deployed %v, %v", hook.got, err)
	}
}

func TestHandler(t *testing.T) {
	t.Parallel()
	version := strings.Repeat("a", 64)
	c := publish(t, s3test.Open(t), version)
	fixture := stagetest.Fixture{Name: "a site", Task: *task(t, c)}
	for name, dev := range map[string]bool{"dev": true, "hooks": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			stagetest.Check(t, func(t *testing.T) (stage.Handler, stagetest.Store) {
				store := s3test.Open(t)
				publish(t, store, version)
				return New(store, dev, t.TempDir(), Bucket{Target: s3test.Open(t), Prefix: "live"}), nil
			}, fixture)
		})
	}
}

func release(t *testing.T) Release {
	t.Helper()
	dir := t.TempDir()
	r := Release{
		ID: "run-1-deploy-1-text-v", Database: filepath.Join(dir, "meetings.db"), Manifest: filepath.Join(dir, "manifest.json"),
		Compiled: civic.Compiled{Site: civic.Site{Subdomain: "town.ca"}, Version: "v1", Documents: 3, Database: civic.Object{SHA256: "ab", Size: 2}},
	}
	for _, p := range []string{r.Database, r.Manifest} {
		if err := os.WriteFile(p, []byte(filepath.Base(p)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

func TestBucket(t *testing.T) {
	t.Parallel()
	target := s3test.Open(t)
	r := release(t)
	for range 2 {
		if err := (Bucket{Target: target, Prefix: "live"}).Run(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"meetings.db", "manifest.json"} {
		if b, err := target.ReadAll(t.Context(), "live/town.ca/"+name, "", 1<<20); err != nil || string(b) != name {
			t.Errorf("%s: %q, %v", name, b, err)
		}
	}
}

func TestCommand(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	r := release(t)
	run := func(timeout time.Duration, argv ...string) error {
		return Command{Argv: argv, Environ: []string{"PATH=" + os.Getenv("PATH"), "KEPT=yes"}, Timeout: timeout}.Run(t.Context(), r)
	}
	out := filepath.Join(dir, "out")
	script := `printf '%s|' "$1" "$2" "$REEVE_SITE" "$REEVE_VERSION" "$REEVE_DOCUMENTS" "$KEPT" "$REEVE_S3_SECRET_KEY" "$(cat "$REEVE_DATABASE")" "$(cat "$REEVE_MANIFEST")" >` + out
	if err := run(time.Minute, "sh", "-c", script, "sh", "{site};rm -rf /", "--to={version}"); err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(out)
	if want := "town.ca;rm -rf /|--to=v1|town.ca|v1|3|yes||meetings.db|manifest.json|"; err != nil || string(got) != want {
		t.Errorf("got %q, want %q (%v)", got, want, err)
	}

	err = run(time.Minute, "sh", "-c", "seq 100000; echo the end >&2; exit 3")
	if err == nil || fault.Of(err) != fault.ClassTransient || !strings.Contains(err.Error(), "exit status 3: …") || !strings.HasSuffix(err.Error(), "the end") || len(err.Error()) > tailSize+100 {
		t.Errorf("%v", err)
	}
	if err = run(time.Minute, "no-such-program-here"); fault.Of(err) != fault.ClassPermanent {
		t.Errorf("no such program: %s: %v", fault.Of(err), err)
	}

	// One that hangs is killed with the children it has.
	pid := filepath.Join(dir, "pid")
	err = run(500*time.Millisecond, "sh", "-c", `trap "" TERM; sleep 1000 & echo $! >`+pid+`; wait; wait; sleep 1000`)
	if err == nil || fault.Of(err) != fault.ClassTransient || !strings.Contains(err.Error(), "killed after 500ms") {
		t.Errorf("%v", err)
	}
	b, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); alive(child); {
		if time.Now().After(deadline) {
			t.Fatalf("process %d lives on", child)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// alive reports whether a process runs; one that nobody has buried does not.
func alive(pid int) bool {
	if syscall.Kill(pid, 0) != nil {
		return false
	}
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	return err == nil && !strings.Contains(string(b), ") Z ")
}

func TestWebhook(t *testing.T) {
	t.Parallel()
	secrets, err := Secrets("whsec_" + base64.StdEncoding.EncodeToString([]byte("0123456789abcdef01234567")) + " a-secret-that-is-not-base64")
	if err != nil {
		t.Fatal(err)
	}
	type call struct {
		header http.Header
		body   string
	}
	var code atomic.Int32
	calls := make(chan call, 10)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		calls <- call{r.Header.Clone(), string(b)}
		switch c := int(code.Load()); c {
		case 302:
			http.Redirect(w, r, "http://169.254.169.254/", c)
		case 429:
			w.Header().Set("Retry-After", "90")
			w.WriteHeader(c)
		default:
			w.WriteHeader(c)
			_, _ = io.WriteString(w, strings.Repeat("no ", 1000))
		}
	}))
	defer srv.Close()
	policy, err := egress.Allow("127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	client := egress.Client(policy)
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	hook := Webhook{
		URL: srv.URL + "/hook", Secrets: secrets, Client: client, Timeout: 10 * time.Second,
		Now: func() time.Time { return time.Unix(1705312800, 0) },
	}
	r := release(t)
	var first call
	for _, tt := range []struct {
		code  int32
		class fault.Class
		after time.Duration
	}{
		{200, "", 0},
		{204, "", 0},
		{500, fault.ClassTransient, 0},
		{404, fault.ClassTransient, 0},
		{302, fault.ClassTransient, 0},
		{410, fault.ClassPermanent, 0},
		{429, fault.ClassRateLimited, 90 * time.Second},
		{503, fault.ClassTransient, 0},
	} {
		code.Store(tt.code)
		err := hook.Run(t.Context(), r)
		if fault.Of(err) != tt.class || fault.After(err) != tt.after && tt.after != 0 {
			t.Errorf("%d: %s after %v: %v", tt.code, fault.Of(err), fault.After(err), err)
		}
		if err != nil && len(err.Error()) > 3*answerSize {
			t.Errorf("%d: the error has %d bytes", tt.code, len(err.Error()))
		}
		c := <-calls
		if first.body == "" {
			first = c
		} else if diff := cmp.Diff(first.body, c.body) + cmp.Diff(first.header, c.header); diff != "" {
			t.Errorf("%d: not the same as before: %s", tt.code, diff)
		}
	}
	if got := first.header.Get("webhook-id"); got != r.ID || strings.Contains(got, ".") {
		t.Errorf("webhook-id %q", got)
	}
	signatures := strings.Split(first.header.Get("webhook-signature"), " ")
	if len(signatures) != 2 {
		t.Fatalf("signatures %v", signatures)
	}
	for i, secret := range []string{"0123456789abcdef01234567", "a-secret-that-is-not-base64"} {
		h := hmac.New(sha256.New, []byte(secret))
		_, _ = io.WriteString(h, r.ID+".1705312800."+first.body)
		if want := "v1," + base64.StdEncoding.EncodeToString(h.Sum(nil)); signatures[i] != want {
			t.Errorf("signature %d is %s, want %s", i, signatures[i], want)
		}
	}
	if !strings.Contains(first.body, `"subdomain":"town.ca"`) || !strings.Contains(first.body, `"type":"site.deployed"`) {
		t.Errorf("body %s", first.body)
	}

	hook.Client = egress.Client(egress.Policy{})
	if err := hook.Run(t.Context(), r); !errors.Is(err, egress.ErrRefused) || fault.Of(err) != fault.ClassPermanent {
		t.Errorf("a private address: %v", err)
	}
}

// The vector that the Standard Webhooks libraries publish.
func TestSign(t *testing.T) {
	t.Parallel()
	secrets, err := Secrets("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
	if err != nil {
		t.Fatal(err)
	}
	got := sign(secrets, "msg_p5jXN8AQM9LWM0D4loKWxJek", "1614265330", []byte(`{"test": 2432232314}`))
	if want := "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if hex.EncodeToString(secrets[0][:2]) != "31f2" {
		t.Errorf("secret %x", secrets[0])
	}
}

func TestConfig_Validate(t *testing.T) {
	t.Parallel()
	c := Defaults()
	if err := c.Validate(); err != nil || !c.Dev {
		t.Errorf("defaults: dev %t, %v", c.Dev, err)
	}
	c.Dev = false
	if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "no hook") {
		t.Errorf("no hook: %v", err)
	}
	c.Webhook, c.WebhookSecret, c.Allow = "ftp://x", "short", []string{"http://x"}
	err := c.Validate()
	for _, word := range []string{"deploy.webhook:", "deploy.webhook_secret", "deploy.allow"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("%v does not say %s", err, word)
		}
	}
	if strings.Contains(err.Error(), "short\"") {
		t.Error("the error shows the secret")
	}
}
